"""Times in messages: a time zone is demanded, and the wire carries RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic_core import core_schema


def in_utc(schema: Any) -> None:
    """Make every datetime in a core schema of pydantic refuse what has no time zone and serialise in UTC."""
    if isinstance(schema, dict):
        if schema.get("type") == "datetime" and "serialization" not in schema:
            schema["tz_constraint"] = "aware"
            schema["serialization"] = core_schema.plain_serializer_function_ser_schema(
                rfc3339, return_schema=core_schema.str_schema(), when_used="json-unless-none"
            )
            return
        for value in schema.values():
            in_utc(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            in_utc(value)


def rfc3339(time: datetime) -> str:
    """`2026-02-01T12:00:00Z`; microseconds only if there are any."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
