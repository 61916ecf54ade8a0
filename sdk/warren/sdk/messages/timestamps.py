"""Timestamps in messages: they need a time zone, and are sent as RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic_core import core_schema


def require_utc(schema: Any) -> None:
    """Change a pydantic core schema in place: every datetime in it needs a time zone, and is written to JSON in UTC."""
    if isinstance(schema, dict):
        if schema.get("type") == "datetime" and "serialization" not in schema:
            schema["tz_constraint"] = "aware"
            schema["serialization"] = core_schema.plain_serializer_function_ser_schema(
                rfc3339,
                # With the format in the JSON Schema, which a serialiser's result does not have by itself.
                return_schema=core_schema.str_schema(
                    metadata={"pydantic_js_updates": {"format": "date-time"}}
                ),
                when_used="json-unless-none",
            )
            return
        for name, value in schema.items():
            if name not in ("metadata", "default"):
                require_utc(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            require_utc(value)


def rfc3339(time: datetime) -> str:
    """Return the time as in `2026-02-01T12:00:00Z`, with microseconds if they are not zero.

    :raises ValueError: if it has no time zone, or is outside the years 1 to 9999 in UTC.
    """
    if time.tzinfo is None:
        raise ValueError("the time has no time zone")
    try:
        return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    except OverflowError:
        raise ValueError("the time is outside the years 1 to 9999 in UTC") from None
