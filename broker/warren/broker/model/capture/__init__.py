"""Capture of life-cycle events of messages."""
