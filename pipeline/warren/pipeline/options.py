"""Parsing of the data source's options, which Spark passes as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from warren.pipeline.errors import PipelineError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Earliest time that an AMQP timestamp can represent."""
DIGITS = 18
"""Largest number of decimal digits with which every number fits into a signed 64-bit integer."""
NAME_BYTES = 255
"""Maximum length in bytes of a name in AMQP, which is a short string."""


def parse_time(name: str, text: str) -> datetime:
    """Parse a time in ISO 8601; without a zone it is in UTC.

    :param name: name of the option, for the error
    :param text: value of the option
    :raises PipelineError: if the text is no such time, or the time is before 1970
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"{name} is {text!r}: it must be a time in ISO 8601, 2026-01-31T12:00:00+00:00"
        ) from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    if time < EPOCH:
        raise PipelineError(f"{name} is {text!r}: it must be a time of 1970 or later")
    return time


def parse_seconds(name: str, text: str) -> float:
    """Parse a finite number of seconds.

    :param name: name of the option, for the error
    :param text: value of the option
    :raises PipelineError: if the text is no such number
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PipelineError(f"{name} is {quoted(text)}: it must be a number of seconds")
    return number


def parse_count(given: Mapping[str, str], name: str, default: int, of: str = "messages") -> int:
    """Return the value of the option `name` as a positive number, or the default if the option is not set.

    :param given: options with lower-case names, as Spark passes them
    :param of: the counted unit, for the error
    :raises PipelineError: if the value is not a positive number
    """
    text = given.get(name.lower())
    if text is None:
        return default
    number = parse_natural(text)
    if not number:
        raise PipelineError(f"{name} is {quoted(text)}: it must be a number of {of}, at least 1")
    return number


def parse_natural(text: str) -> int | None:
    """Return the number that a text of decimal digits states; None for other text, or for more than `DIGITS` digits."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS else None


def parse_bool(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Return the boolean of the option `name`, or the default if the option is not set.

    :param given: options with lower-case names, as Spark passes them
    :raises PipelineError: if the option is neither `true` nor `false`
    """
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"{name} is {text!r}: it must be true or false")
    return text.lower() == "true"


def missing_option(name: str, given: Mapping[str, str]) -> str:
    """Return the error for a required option that is not set.

    :param given: options as Spark passes them. Spark passes none of those of a table of its catalogue to a statement
        that reads or writes the table.
    """
    if not given:
        return (
            f"format 'amqp' needs the option {name!r}: Spark does not pass the options of a table of its catalogue; add "
            "them to the statement (FROM t WITH (url = '...', queue = '...')), or use CREATE TEMPORARY VIEW"
        )
    return f"format 'amqp' needs the option {name!r}"


def queue_name(kind: str, name: str) -> str:
    """Return the name unchanged, after a check that AMQP can carry it.

    :param kind: kind of the named thing, such as `queue`, for the error
    :raises PipelineError: if the name is longer than 255 bytes
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES:
        raise PipelineError(
            f"the name of the {kind} {quoted(name)} has {size} bytes: AMQP allows {NAME_BYTES}"
        )
    return name


def quoted(text: str) -> str:
    """Return a user's text between quotation marks, shortened to 60 characters, for use in a one-line error."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}…"
