"""Numbers, shares, times and ranges as a page says them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from warren.pipeline.durations import format_duration


class Bucket(Protocol):
    """A bar of a histogram: what is over `above` and at most `up_to`; None is no end."""

    @property
    def above(self) -> float | None: ...
    @property
    def up_to(self) -> float | None: ...
    @property
    def count(self) -> int: ...


AnyBucket = TypeVar("AnyBucket", bound=Bucket)


def percent(count: int, total: int) -> str:
    """One decimal; what is there is never 0 %, and what is not all is never 100 %."""
    if not total or count in (0, total):
        return "100 %" if count else "0 %"
    return f"{min(max(100 * count / total, 0.1), 99.9):.1f} %"


def trimmed(histogram: Sequence[AnyBucket]) -> list[AnyBucket]:
    """Without the empty buckets at either end."""
    filled = [at for at, bucket in enumerate(histogram) if bucket.count]
    return list(histogram[filled[0] : filled[-1] + 1]) if filled else []


def span(bucket: Bucket, said: Callable[[float], str] = format_duration) -> str:
    """`to 5 min`, `over 2 h`."""
    if bucket.up_to is None:
        return f"over {said(bucket.above or 0)}"
    return f"to {said(bucket.up_to)}"


def brief(seconds: float) -> str:
    """A duration that may be short: `12 ms`, `3.4 s`, `21 min`."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    return f"{round(seconds, 1):g} s" if abs(seconds) < 10 else format_duration(seconds)


def clock(instant: str) -> str:
    """`21 Nov 2026 11:04:05`, of ISO 8601."""
    return datetime.fromisoformat(instant).astimezone(UTC).strftime("%-d %b %Y %H:%M:%S")


def label(seconds: float, step: float) -> str:
    """A Unix time under a drawing whose steps are so wide."""
    form = (
        "%H:%M:%S" if step < 60 else "%H:%M" if step < 3600 else "%-d %b %H:%M" if step < 86_400 else "%-d %b"
    )
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
