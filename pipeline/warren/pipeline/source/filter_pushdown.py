"""Filter push-down: limits on the streams, offsets and times to read, derived from the filters of a query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from warren.pipeline.options import EPOCH
from warren.pipeline.source.stream_options import Offsets, StreamOptions

LATEST_TIME = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""Latest time to which computed times are limited: the end of the year 9999, Python's last."""


@dataclass(frozen=True)
class PushedBounds:
    """Limits that a query's filters set to what is read, in addition to the options; None where there is no limit.

    :param first: lowest offset
    :param before: exclusive upper offset
    :param since: time at or after which the messages were written to the stream
    :param until: time before which the messages were written to the stream
    :param streams: the only streams to read
    """

    first: int | None = None
    before: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    streams: frozenset[str] | None = None

    def with_filter(self, filter: Filter, tolerance: float | None) -> PushedBounds:
        """Return the limits narrowed by one more filter. Only comparisons of the columns `queue`, `offset` and
        `timestamp` with a constant narrow them; for other filters they are returned unchanged.

        :param tolerance: seconds by which a message's timestamp and the time of its writing may differ; None ignores
            filters on times
        """
        match filter:
            case EqualTo(attribute=("queue",), value=str(name)) | EqualNullSafe(("queue",), str(name)):
                return self._with_streams({name})
            case In(attribute=("queue",), value=names):
                return self._with_streams(set(names))
            case EqualTo(attribute=("offset",), value=int(offset)) | EqualNullSafe(("offset",), int(offset)):
                return self._with_first(offset)._with_before(offset + 1)
            case GreaterThanOrEqual(attribute=("offset",), value=int(offset)):
                return self._with_first(offset)
            case GreaterThan(attribute=("offset",), value=int(offset)):
                return self._with_first(offset + 1)
            case LessThan(attribute=("offset",), value=int(offset)):
                return self._with_before(offset)
            case LessThanOrEqual(attribute=("offset",), value=int(offset)):
                return self._with_before(offset + 1)
        if tolerance is not None and getattr(filter, "attribute", None) == ("timestamp",):
            return self._with_time_filter(filter, timedelta(seconds=tolerance))
        return self

    def _with_time_filter(self, filter: Filter, tolerance: timedelta) -> PushedBounds:
        match filter:
            case EqualTo(_, datetime() as time) | EqualNullSafe(_, datetime() as time):
                return self._with_since(shifted(time, -tolerance))._with_until(shifted(time, tolerance))
            case GreaterThan(_, datetime() as time) | GreaterThanOrEqual(_, datetime() as time):
                return self._with_since(shifted(time, -tolerance))
            case LessThan(_, datetime() as time) | LessThanOrEqual(_, datetime() as time):
                return self._with_until(shifted(time, tolerance))
            case _:
                return self

    def _with_streams(self, names: set[Any]) -> PushedBounds:
        return replace(self, streams=frozenset(names & self.streams if self.streams is not None else names))

    def _with_first(self, offset: int) -> PushedBounds:
        return replace(self, first=offset if self.first is None else max(self.first, offset))

    def _with_before(self, offset: int) -> PushedBounds:
        return replace(self, before=offset if self.before is None else min(self.before, offset))

    def _with_since(self, time: datetime) -> PushedBounds:
        return replace(self, since=time if self.since is None else max(self.since, time))

    def _with_until(self, time: datetime) -> PushedBounds:
        return replace(self, until=time if self.until is None else min(self.until, time))

    def within(self, options: StreamOptions, stream: str, start: int, stop: int) -> tuple[int, int]:
        """Return the part of a stream's range of offsets that lies within the limits: its first offset, and the offset
        after its last one.

        :param start: first offset of the range
        :param stop: offset after the range
        :raises PipelineError: if the stream cannot be read
        """
        if self.streams is not None and stream not in self.streams:
            return start, start
        if self.first is not None:
            start = max(start, self.first)
        if self.before is not None:
            stop = min(stop, self.before)
        if self.since is not None and start < stop:
            offset = options.client(stream).find_offset(self.since)
            start = stop if offset is None else max(start, offset)
        if self.until is not None and start < stop:
            # Brokers look up whole seconds, and begin with a chunk that may be older.
            offset = options.client(stream).find_offset(shifted(self.until, timedelta(seconds=1)))
            stop = stop if offset is None else min(stop, offset)
        return start, stop


def with_filter(bounds: PushedBounds, filters: Iterable[Filter], tolerance: float | None) -> PushedBounds:
    """Return the limits narrowed by several filters.

    :param tolerance: seconds by which a message's timestamp and the time of its writing may differ; None ignores
        filters on times
    """
    for filter in filters:
        bounds = bounds.with_filter(filter, tolerance)
    return bounds


def apply_bounds(
    bounds: PushedBounds, options: StreamOptions, starts: Offsets, stops: Offsets
) -> tuple[Offsets, Offsets]:
    """Narrow each stream's range of offsets to the limits; return the new `starts` and `stops`. The range of a stream
    that the limits exclude becomes empty.

    :param starts: first offset of each stream according to the options
    :param stops: exclusive last offset of each stream according to the options
    """
    pairs = {
        stream: bounds.within(options, stream, starts[stream], stops[stream]) for stream in options.streams
    }
    return {s: pair[0] for s, pair in pairs.items()}, {s: pair[1] for s, pair in pairs.items()}


def shifted(time: datetime, by: timedelta) -> datetime:
    """Return `time` plus `by`, limited to the range from 1970 to 9999; a time without a zone is in UTC."""
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    since = min(max(time - EPOCH, timedelta()), LATEST_TIME - EPOCH)
    return EPOCH + min(max(since + by, timedelta()), LATEST_TIME - EPOCH)
