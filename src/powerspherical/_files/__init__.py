"""Atomic file writes, and checkpoints."""
