"""Streams: queues that keep their messages."""
