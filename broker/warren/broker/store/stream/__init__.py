"""Streams on disk: chunk format, log, segments, reading, retention, recovery."""
