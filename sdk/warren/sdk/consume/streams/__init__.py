"""Typed handlers on streams: reader options, stored offsets, the lease of the active reader, filters and replay."""
