"""Stable ids of test parameters: the same in each process."""

from __future__ import annotations

from pamqp.base import Frame


def frame_id(value: object) -> str:
    """Return a frame as code, `Basic.Ack(2, True)`; for a list, all frames."""
    if isinstance(value, list):
        return " ".join(frame_id(each) for each in value)
    if isinstance(value, Frame):
        return f"{value.name}({', '.join(repr(field) for _, field in value if field is not None)})"
    return repr(value)
