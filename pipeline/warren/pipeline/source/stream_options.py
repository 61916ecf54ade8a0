"""Which part of which streams is read, as the options of the data source say, and how it is cut into tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from warren.pipeline.broker_connection import Address
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import (
    parse_bool,
    parse_count,
    parse_natural,
    parse_seconds,
    parse_time,
    queue_name,
    quoted,
)
from warren.pipeline.source.stream_client import StreamClient

OPTIONS = (
    "url",
    "stream",
    "streams",
    "timeout",
    "startingOffset",
    "endingOffset",
    "startingTimestamp",
    "endingTimestamp",
    "messagesPerTask",
    "maxMessagesPerTrigger",
    "failOnDataLoss",
    "pushFilters",
    "timestampTolerance",
)
MESSAGES_PER_TASK = 1_000_000
MAX_TOLERANCE = 10_000_000_000
"""Seconds, the highest: some centuries."""
MAX_PARALLEL_LOOKUPS = 8
"""Streams whose offsets are asked for at the same time."""
Bound: TypeAlias = int | str | datetime
Bounds: TypeAlias = dict[str, Bound]
"""Of each stream."""
Offsets: TypeAlias = dict[str, int]
"""Of each stream."""


@dataclass(frozen=True)
class StreamOptions:
    """Streams, and from where to where they are read.

    :param starting: of each `first`, `next`, an offset, or a time
    :param ending: of each `last`, an offset that is not read any more, or such a time
    :param per_task: a longer range is cut into several tasks
    :param per_trigger: of a continuous read, of all streams together; 0 is all that there is
    :param whole: fail if retention has removed what was to be read
    :param pushing: let the filters of a query decide what is read
    :param tolerance: seconds by which a message's timestamp and the time of its writing may differ; None is not known
    """

    address: Address
    starting: Bounds
    ending: Bounds
    per_task: int = MESSAGES_PER_TASK
    per_trigger: int = 0
    fail_on_data_loss: bool = True
    push_filters: bool = False
    tolerance: float | None = None

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> StreamOptions:
        """:param given: the options, their names in lower case
        :raises PipelineError: for one that is unknown, missing or cannot be meant"""
        known = {name.lower(): name for name in OPTIONS}
        if unknown := sorted(given.keys() - known.keys()):
            names = ", ".join(OPTIONS)
            raise PipelineError(f"format 'amqp' has no option {unknown[0]!r} for streams; there are: {names}")
        if not given.get("url"):
            raise PipelineError("format 'amqp' needs the option 'url'")
        streams = parse_stream_names(given)
        return cls(
            Address(given["url"], parse_seconds("timeout", given.get("timeout", "30"))),
            parse_bounds(given, streams, "startingOffset", "startingTimestamp", ("first", "next")),
            parse_bounds(given, streams, "endingOffset", "endingTimestamp", ("last",)),
            parse_count(given, "messagesPerTask", MESSAGES_PER_TASK),
            parse_count(given, "maxMessagesPerTrigger", 0),
            parse_bool(given, "failOnDataLoss", True),
            parse_bool(given, "pushFilters", False),
            parse_tolerance(given.get("timestamptolerance")),
        )

    @property
    def streams(self) -> list[str]:
        return list(self.starting)

    def client(self, stream: str) -> StreamClient:
        return StreamClient(self.address, stream)

    def ends(self) -> Offsets:
        """The offset behind the last message of each stream, 0 where there is none.

        :raises PipelineError: a stream cannot be read
        """
        return self.for_each_stream(lambda stream: self.client(stream).end_offset())

    def starts(self, ends: Offsets) -> Offsets:
        """Where reading begins.

        :raises PipelineError: a stream cannot be read
        """
        return self.for_each_stream(lambda stream: self._offset(stream, self.starting[stream], ends[stream]))

    def stops(self, ends: Offsets) -> Offsets:
        """Where reading ends: before these offsets.

        :raises PipelineError: a stream cannot be read
        """
        return self.for_each_stream(lambda stream: self._offset(stream, self.ending[stream], ends[stream]))

    def _offset(self, stream: str, bound: Bound, end: int) -> int:
        match bound:
            case int(offset):
                return offset
            case "next" | "last":
                return end
            case start:
                found = self.client(stream).find_offset(start)
                return end if found is None else found

    def for_each_stream(self, lookup: Callable[[str], int]) -> Offsets:
        """What is asked of each stream, of several at once."""
        if len(self.streams) == 1:
            return {stream: lookup(stream) for stream in self.streams}
        with ThreadPoolExecutor(min(MAX_PARALLEL_LOOKUPS, len(self.streams))) as pool:
            return dict(zip(self.streams, pool.map(lookup, self.streams), strict=True))

    def tasks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """A range in pieces of about equal length."""
        length = max(stop - start, 0)
        count_of_tasks = -(-length // self.per_task)
        return [
            (start + length * number // count_of_tasks, start + length * (number + 1) // count_of_tasks)
            for number in range(count_of_tasks)
        ]


def split_limit(limit: int, waiting: Mapping[str, int]) -> dict[str, int]:
    """How much of what waits in each stream may be read, so that together it is at most `limit`: in proportion.

    What rounding leaves goes to the longest, so that something is read as long as something waits.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {stream: limit * length // total for stream, length in waiting.items()}
    left = limit - sum(shares.values())
    for stream in sorted(waiting, key=lambda stream: shares[stream] - waiting[stream])[:left]:
        shares[stream] += 1
    return shares


def parse_stream_names(given: Mapping[str, str]) -> list[str]:
    """The streams: some between commas, or an array in JSON for names that have commas themselves."""
    if "stream" in given and "streams" in given:
        raise PipelineError("stream and streams are both given: one of them names what is read")
    text = given.get("stream") or given.get("streams") or ""
    names = (
        parse_json_names(text)
        if text.lstrip().startswith("[")
        else [name.strip() for name in text.split(",")]
    )
    if not all(names):
        raise PipelineError("no stream is named" if not any(names) else f"a name is missing in {text!r}")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise PipelineError(f"the stream {repeated[0]!r} is named twice")
    return [queue_name("stream", name) for name in names]


def parse_json_names(text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise PipelineError(
            f"streams is {quoted(text)}: it must be names between commas, or an array of them in JSON"
        )
    return names


def parse_bounds(
    given: Mapping[str, str], streams: list[str], offset: str, timestamp: str, names: tuple[str, ...]
) -> Bounds:
    """An end of the range of each stream: an offset or a time, but not both; the first name if neither is given."""
    number, time = given.get(offset.lower()), given.get(timestamp.lower())
    if number is not None and time is not None:
        raise PipelineError(f"{offset} and {timestamp} are both given: one of them says where")
    if time is not None:
        return dict.fromkeys(streams, parse_time(timestamp, time))
    if number is None or not number.lstrip().startswith("{"):
        return dict.fromkeys(streams, parse_bound(offset, number, names))
    try:
        each = json.loads(number)
    except (ValueError, RecursionError):
        raise PipelineError(
            f'{offset} is {quoted(number)}: it must be an object in JSON, {{"name": 17}}'
        ) from None
    if strange := sorted(each.keys() - set(streams)):
        raise PipelineError(f"{offset} names {strange[0]!r}, which is none of the streams that are read")
    return {stream: parse_bound(offset, str(each.get(stream, names[0])), names) for stream in streams}


def parse_bound(option: str, text: str | None, names: tuple[str, ...]) -> Bound:
    if text is None or text in names:
        return text or names[0]
    number = parse_natural(text)
    if number is None:
        raise PipelineError(f"{option} is {quoted(text)}: it must be an offset or {' or '.join(names)}")
    return number


def parse_tolerance(text: str | None) -> float | None:
    """Seconds; None is not known. One below 0 would leave out messages that are wanted."""
    if text is None:
        return None
    tolerance = parse_seconds("timestampTolerance", text)
    if not 0 <= tolerance <= MAX_TOLERANCE:
        raise PipelineError(
            f"timestampTolerance is {quoted(text)}: it must be from 0 to {MAX_TOLERANCE:,} seconds"
        )
    return tolerance
