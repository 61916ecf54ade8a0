"""Segments of streams: format, log, reader, recovery."""
