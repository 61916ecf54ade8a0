"""Formatting of numbers, shares, times and ranges for reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from warren.pipeline.durations import format_duration


class Bucket(Protocol):
    """Bucket of a histogram: `count` values are above `above` and at most `up_to`; None is no bound."""

    @property
    def above(self) -> float | None: ...
    @property
    def up_to(self) -> float | None: ...
    @property
    def count(self) -> int: ...


AnyBucket = TypeVar("AnyBucket", bound=Bucket)


def percent(count: int, total: int) -> str:
    """Format the share of `count` in `total` with one decimal. Only zero is shown as 0 %, and only the whole total as
    100 %."""
    if not total or count in (0, total):
        return "100 %" if count else "0 %"
    return f"{min(max(100 * count / total, 0.1), 99.9):.1f} %"


def trimmed(histogram: Sequence[AnyBucket]) -> list[AnyBucket]:
    """Return a histogram without the empty buckets at both of its ends."""
    filled = [at for at, bucket in enumerate(histogram) if bucket.count]
    return list(histogram[filled[0] : filled[-1] + 1]) if filled else []


def span(bucket: Bucket, format_value: Callable[[float], str] = format_duration) -> str:
    """Format the range of a histogram's bucket by its upper bound, or by the lower one if there is no upper: `to 5
    min`, `over 2 h`.

    :param format_value: converts a bound to text; by default as a duration in seconds
    """
    if bucket.up_to is None:
        return f"over {format_value(bucket.above or 0)}"
    return f"to {format_value(bucket.up_to)}"


def brief(seconds: float) -> str:
    """Format a duration that may be below a second: `12 ms`, `3.4 s`, `21 min`."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    return f"{round(seconds, 1):g} s" if abs(seconds) < 10 else format_duration(seconds)


def clock(instant: str) -> str:
    """Convert a time in ISO 8601 to text in UTC: `21 Nov 2026 11:04:05`."""
    return datetime.fromisoformat(instant).astimezone(UTC).strftime("%-d %b %Y %H:%M:%S")


def label(seconds: float, step: float) -> str:
    """Format a Unix time for the time axis of a chart, in UTC: as `11:04:05`, `11:04`, `21 Nov 11:04` or `21 Nov`,
    depending on the seconds between two labels, `step`.
    """
    form = (
        "%H:%M:%S" if step < 60 else "%H:%M" if step < 3600 else "%-d %b %H:%M" if step < 86_400 else "%-d %b"
    )
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
