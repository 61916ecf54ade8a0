"""Options of the data source, which come as text: what each kind of them means."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from warren.pipeline.errors import PipelineError


def moment(name: str, text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"{name} is {text!r}: it must be a time in ISO 8601, 2026-01-31T12:00:00+00:00"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise PipelineError(f"{name} is {text!r}: it must be a number of seconds") from None


def count(given: Mapping[str, str], name: str, default: int, of: str = "messages") -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or not int(text):
        raise PipelineError(f"{name} is {text!r}: it must be a number of {of}, at least 1")
    return int(text)


def truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"{name} is {text!r}: it must be true or false")
    return text.lower() == "true"
