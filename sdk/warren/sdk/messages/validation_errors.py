"""What pydantic found wrong with content, without the content."""

from __future__ import annotations

from pydantic import ValidationError

SHOWN = 5
"""How many errors of one content are named."""


def format_validation_error(error: ValueError) -> str:
    """Each with its field, in one line; it may be logged and sent to others, for it shows no value."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = [
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}" if each["loc"] else each["msg"]
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return " ".join(("; ".join(found[:SHOWN]) + more).split())
