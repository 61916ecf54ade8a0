"""Indexes of log segments: format, builder, manager."""
