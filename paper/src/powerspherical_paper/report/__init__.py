"""Describe the results in a folder, and write them as one HTML page."""
