"""Indexes of the log's segments: format, builder, reader, files, scheduling."""
