"""Options for reading streams: the range of offsets of each stream, and the division of the ranges into tasks."""

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
    missing_option,
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
"""Default of the option `messagesPerTask`: number of messages above which the range of a stream is divided
among several tasks."""
MAX_TOLERANCE = 10_000_000_000
"""Largest value of the option `timestampTolerance` in seconds, some 300 years."""
MAX_PARALLEL_LOOKUPS = 8
"""Maximum number of streams whose offsets are looked up at the same time."""
Bound: TypeAlias = int | str | datetime
Bounds: TypeAlias = dict[str, Bound]
"""Start (or end) of the range to read, by stream: an offset, a name such as `first`, or a time."""
Offsets: TypeAlias = dict[str, int]
"""Offset of each stream, by the stream's name."""


@dataclass(frozen=True)
class StreamOptions:
    """Streams to read, the range of each, and options for reading them.

    :param starting: start of each stream's range: `first`, `next`, an offset, or a time
    :param ending: end of each stream's range: `last`, an exclusive offset, or a time
    :param per_task: maximum number of messages of a task; a longer range is divided among several tasks
    :param per_trigger: maximum number of messages of a micro-batch over all streams (admission control); 0 is no limit
    :param fail_on_data_loss: fail if retention has removed messages of the range
    :param push_filters: let the filters of a query narrow the ranges
    :param tolerance: seconds by which a message's timestamp and the time of its writing may differ; None if unknown
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
        """Parse the options of the data source for reading streams.

        :param given: options with lower-case names
        :raises PipelineError: if an option is unknown, missing or not valid
        """
        known = {name.lower(): name for name in OPTIONS}
        if unknown := sorted(given.keys() - known.keys()):
            names = ", ".join(OPTIONS)
            raise PipelineError(f"format 'amqp' has no option {unknown[0]!r} for streams; there are: {names}")
        if not given.get("url"):
            raise PipelineError(missing_option("url", given))
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
        """Return a client for one of the streams."""
        return StreamClient(self.address, stream)

    def ends(self) -> Offsets:
        """Return the end offset of each stream: the offset after its last message, 0 for an empty stream.

        :raises PipelineError: if a stream cannot be read
        """
        return self.for_each_stream(lambda stream: self.client(stream).end_offset())

    def starts(self, ends: Offsets) -> Offsets:
        """Return the offset at which reading of each stream begins.

        :param ends: end offset of each stream (the offset after its last message), as the method `ends` returns it
        :raises PipelineError: if a stream cannot be read
        """
        return self.for_each_stream(lambda stream: self._offset(stream, self.starting[stream], ends[stream]))

    def stops(self, ends: Offsets) -> Offsets:
        """Return the offset before which reading of each stream ends.

        :param ends: end offset of each stream (the offset after its last message), as the method `ends` returns it
        :raises PipelineError: if a stream cannot be read
        """
        return self.for_each_stream(lambda stream: self._offset(stream, self.ending[stream], ends[stream]))

    def _offset(self, stream: str, bound: Bound, end: int) -> int:
        match bound:
            case int(offset):
                return offset
            case "next" | "last":
                return end
            case _ if end == 0:
                # The stream is empty, and to find that again takes a while on RabbitMQ.
                return 0
            case start:
                found = self.client(stream).find_offset(start)
                return end if found is None else found

    def for_each_stream(self, lookup: Callable[[str], int]) -> Offsets:
        """Look up one offset of each stream, for several streams at the same time; return the offsets by stream.

        :param lookup: takes a stream's name and returns the offset
        """
        if len(self.streams) == 1:
            return {stream: lookup(stream) for stream in self.streams}
        with ThreadPoolExecutor(min(MAX_PARALLEL_LOOKUPS, len(self.streams))) as pool:
            return dict(zip(self.streams, pool.map(lookup, self.streams), strict=True))

    def tasks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Divide the offsets from `start` to before `stop` into ranges of about equal length, one for each task. Return
        the first and the exclusive last offset of each.
        """
        length = max(stop - start, 0)
        count_of_tasks = -(-length // self.per_task)
        return [
            (start + length * number // count_of_tasks, start + length * (number + 1) // count_of_tasks)
            for number in range(count_of_tasks)
        ]


def split_limit(limit: int, waiting: Mapping[str, int]) -> dict[str, int]:
    """Divide the message limit of a micro-batch among streams in proportion to their numbers of unread messages; return
    the number of messages to read from each stream.

    The remainder of the rounding goes to the streams with the most unread messages, so that every micro-batch reads
    something if any stream has messages. All unread messages are read if they are not more than the limit.

    :param waiting: number of unread messages of each stream
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
    """Return the names in the option `stream` or `streams`: separated by commas, or a JSON array.

    The JSON form is for names that contain commas.

    :param given: options with lower-case names, as Spark passes them
    :raises PipelineError: if no stream is named, a name is empty or repeated, or both options are set
    """
    if "stream" in given and "streams" in given:
        raise PipelineError("stream and streams are both given: set only one of them")
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
    """Return the stream names in a JSON array.

    :param text: value of the option `stream` or `streams`
    :raises PipelineError: if it is not a JSON array of at least one name
    """
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
    """Return the start (or end) of each stream's range from an offset option and a timestamp option.

    At most one of the two may be set; without both, it is the first of `names`.

    :param given: options with lower-case names
    :param offset: name of the offset option: `startingOffset` or `endingOffset`
    :param timestamp: name of the timestamp option
    :param names: words that the offset option accepts instead of an offset
    """
    number, time = given.get(offset.lower()), given.get(timestamp.lower())
    if number is not None and time is not None:
        raise PipelineError(f"{offset} and {timestamp} are both given: set only one of them")
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
    """Parse the value of an offset option for one stream: an offset, or one of `names`, of which the first is the
    default.

    :param option: name of the option, for the error
    :param text: value of the option; None if it is not set
    :return: one of `names`, or the offset
    :raises PipelineError: if it is neither
    """
    if text is None or text in names:
        return text or names[0]
    number = parse_natural(text)
    if number is None:
        raise PipelineError(f"{option} is {quoted(text)}: it must be an offset or {' or '.join(names)}")
    return number


def parse_tolerance(text: str | None) -> float | None:
    """Parse the option `timestampTolerance`: seconds, or None if it is not set.

    A negative tolerance is refused, because it would drop messages that match a filter.

    :param text: value of the option
    :raises PipelineError: if it is not a number from 0 to `MAX_TOLERANCE`
    """
    if text is None:
        return None
    tolerance = parse_seconds("timestampTolerance", text)
    if not 0 <= tolerance <= MAX_TOLERANCE:
        raise PipelineError(
            f"timestampTolerance is {quoted(text)}: it must be from 0 to {MAX_TOLERANCE:,} seconds"
        )
    return tolerance
