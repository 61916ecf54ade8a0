"""Capture of life-cycle events of messages and consumers into an event stream."""
