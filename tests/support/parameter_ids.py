"""Names of parametrised tests that are the same in each process."""

from __future__ import annotations

from pamqp.base import Frame


def frame_id(value: object) -> str:
    """`Basic.Ack(2, True)` as it would be written; of a list, all of it."""
    if isinstance(value, list):
        return " ".join(frame_id(each) for each in value)
    if isinstance(value, Frame):
        return f"{value.name}({', '.join(repr(field) for _, field in value if field is not None)})"
    return repr(value)
