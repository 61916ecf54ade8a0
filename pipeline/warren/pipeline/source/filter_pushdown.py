"""What the filters of a query say about streams, offsets and times, so that the rest is not even read."""

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
from warren.pipeline.source.offset_ranges import Offsets, Ranges

LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True)
class Limits:
    """Bounds within what the options say; None where there is none.

    :param first: the lowest offset
    :param before: an offset that is not wanted any more
    :param since: when the first message was written, at the earliest
    :param until: a time from which on no message was written that is wanted
    :param streams: the only ones
    """

    first: int | None = None
    before: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    streams: frozenset[str] | None = None

    def narrowed(self, filter: Filter, tolerance: float | None) -> Limits:
        """With one more filter."""
        match filter:
            case EqualTo(attribute=("queue",), value=str(name)) | EqualNullSafe(("queue",), str(name)):
                return self._only({name})
            case In(attribute=("queue",), value=names):
                return self._only(set(names))
            case EqualTo(attribute=("offset",), value=int(offset)) | EqualNullSafe(("offset",), int(offset)):
                return self._from(offset)._before(offset + 1)
            case GreaterThanOrEqual(attribute=("offset",), value=int(offset)):
                return self._from(offset)
            case GreaterThan(attribute=("offset",), value=int(offset)):
                return self._from(offset + 1)
            case LessThan(attribute=("offset",), value=int(offset)):
                return self._before(offset)
            case LessThanOrEqual(attribute=("offset",), value=int(offset)):
                return self._before(offset + 1)
        if tolerance is not None and getattr(filter, "attribute", None) == ("timestamp",):
            return self._timed(filter, timedelta(seconds=tolerance))
        return self

    def _timed(self, filter: Filter, tolerance: timedelta) -> Limits:
        match filter:
            case EqualTo(_, datetime() as time) | EqualNullSafe(_, datetime() as time):
                return self._since(moved(time, -tolerance))._until(moved(time, tolerance))
            case GreaterThan(_, datetime() as time) | GreaterThanOrEqual(_, datetime() as time):
                return self._since(moved(time, -tolerance))
            case LessThan(_, datetime() as time) | LessThanOrEqual(_, datetime() as time):
                return self._until(moved(time, tolerance))
            case _:
                return self

    def _only(self, names: set[Any]) -> Limits:
        return replace(self, streams=frozenset(names & self.streams if self.streams is not None else names))

    def _from(self, offset: int) -> Limits:
        return replace(self, first=offset if self.first is None else max(self.first, offset))

    def _before(self, offset: int) -> Limits:
        return replace(self, before=offset if self.before is None else min(self.before, offset))

    def _since(self, time: datetime) -> Limits:
        return replace(self, since=time if self.since is None else max(self.since, time))

    def _until(self, time: datetime) -> Limits:
        return replace(self, until=time if self.until is None else min(self.until, time))

    def within(self, ranges: Ranges, stream: str, start: int, stop: int) -> tuple[int, int]:
        """A range without what is not wanted of it.

        :raises PipelineError: the stream cannot be read
        """
        if self.streams is not None and stream not in self.streams:
            return start, start
        if self.first is not None:
            start = max(start, self.first)
        if self.before is not None:
            stop = min(stop, self.before)
        if self.since is not None and start < stop:
            found = ranges.replay(stream).find(self.since)
            start = stop if found is None else max(start, found)
        if self.until is not None and start < stop:
            # Brokers know whole seconds, and begin with a chunk that may be older.
            found = ranges.replay(stream).find(moved(self.until, timedelta(seconds=1)))
            stop = stop if found is None else min(stop, found)
        return start, stop


def narrowed(limits: Limits, filters: Iterable[Filter], tolerance: float | None) -> Limits:
    """The limits with these filters."""
    for filter in filters:
        limits = limits.narrowed(filter, tolerance)
    return limits


def bounded(limits: Limits, ranges: Ranges, starts: Offsets, stops: Offsets) -> tuple[Offsets, Offsets]:
    pairs = {
        stream: limits.within(ranges, stream, starts[stream], stops[stream]) for stream in ranges.streams
    }
    return {s: pair[0] for s, pair in pairs.items()}, {s: pair[1] for s, pair in pairs.items()}


def moved(time: datetime, by: timedelta) -> datetime:
    """A time earlier or later, within what brokers know: nothing was written before 1970, or will be after 9999."""
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    since = min(max(time - EPOCH, timedelta()), LATEST - EPOCH)
    return EPOCH + min(max(since + by, timedelta()), LATEST - EPOCH)
