"""Which part of a stream is read, as the options of the data source say, and how it is cut into tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from warren.pipeline.errors import PipelineError
from warren.pipeline.replay import Replay

OPTIONS = (
    "url",
    "stream",
    "timeout",
    "startingOffset",
    "endingOffset",
    "startingTimestamp",
    "endingTimestamp",
    "messagesPerTask",
    "maxMessagesPerTrigger",
    "failOnDataLoss",
)
MESSAGES_PER_TASK = 1_000_000
Bound: TypeAlias = int | str | datetime


@dataclass(frozen=True)
class Ranges:
    """A stream, and from where to where it is read.

    :param starting: `first`, `next`, an offset, or a time
    :param ending: `last`, an offset that is not read any more, or such a time
    :param per_task: a longer range is cut into several tasks
    :param per_trigger: of a continuous read; 0 is all that there is
    :param whole: fail if retention has removed what was to be read
    """

    replay: Replay
    starting: Bound = "first"
    ending: Bound = "last"
    per_task: int = MESSAGES_PER_TASK
    per_trigger: int = 0
    whole: bool = True

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Ranges:
        """:param given: the options, their names in lower case
        :raises PipelineError: for one that is unknown, missing or cannot be meant"""
        known = {name.lower(): name for name in OPTIONS}
        if unknown := sorted(given.keys() - known.keys()):
            names = ", ".join(OPTIONS)
            raise PipelineError(f"format 'amqp' has no option {unknown[0]!r} for streams; there are: {names}")
        if not given.get("url"):
            raise PipelineError("format 'amqp' needs the option 'url'")
        return cls(
            Replay(given["url"], given["stream"], seconds(given.get("timeout", "30"))),
            bound(given, "startingOffset", "startingTimestamp", ("first", "next")),
            bound(given, "endingOffset", "endingTimestamp", ("last",)),
            count(given, "messagesPerTask", MESSAGES_PER_TASK),
            count(given, "maxMessagesPerTrigger", 0),
            truth(given, "failOnDataLoss", True),
        )

    def start(self, end: int) -> int:
        """The offset at which reading begins.

        :param end: the one behind the last message
        :raises PipelineError: the stream cannot be read
        """
        match self.starting:
            case int(offset):
                return offset
            case "next":
                return end
            case start:
                found = self.replay.find(start)
                return end if found is None else found

    def stop(self, end: int) -> int:
        """The offset before which reading ends.

        :raises PipelineError: the stream cannot be read
        """
        match self.ending:
            case int(offset):
                return min(offset, end)
            case datetime() as time:
                found = self.replay.find(time)
                return end if found is None else found
            case _:
                return end

    def tasks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The range in pieces of about equal length."""
        length = max(stop - start, 0)
        pieces = -(-length // self.per_task)
        return [
            (start + length * number // pieces, start + length * (number + 1) // pieces)
            for number in range(pieces)
        ]


def bound(given: Mapping[str, str], offset: str, timestamp: str, names: tuple[str, ...]) -> Bound:
    """An end of the range: an offset or a time, but not both; the first name if neither is given."""
    number, time = given.get(offset.lower()), given.get(timestamp.lower())
    if number is not None and time is not None:
        raise PipelineError(f"{offset} and {timestamp} are both given: one of them says where")
    if time is not None:
        return moment(timestamp, time)
    if number is None or number in names:
        return number or names[0]
    if not number.isdecimal():
        raise PipelineError(f"{offset} is {number!r}: it must be an offset or {' or '.join(names)}")
    return int(number)


def moment(name: str, text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"{name} is {text!r}: it must be a time in ISO 8601, 2026-01-31T12:00:00+00:00"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise PipelineError(f"timeout is {text!r}: it must be a number of seconds") from None


def count(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.isdecimal() or not int(text):
        raise PipelineError(f"{name} is {text!r}: it must be a number of messages, at least 1")
    return int(text)


def truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"{name} is {text!r}: it must be true or false")
    return text.lower() == "true"
