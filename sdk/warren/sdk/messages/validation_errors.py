"""Format pydantic errors without message content."""

from __future__ import annotations

from pydantic import ValidationError

MAX_ERRORS = 5
"""Largest number of validation errors of one message that an error text lists."""


def format_validation_error(error: ValueError) -> str:
    """Return all errors with their fields in one line. It contains no values, so that it may be logged and sent."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = [
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}" if each["loc"] else each["msg"]
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f", and {len(found) - MAX_ERRORS} more" if len(found) > MAX_ERRORS else ""
    return " ".join(("; ".join(found[:MAX_ERRORS]) + more).split())
