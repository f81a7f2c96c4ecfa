"""Helpers that tests in several folders share: `from helpers.examples import families`."""
