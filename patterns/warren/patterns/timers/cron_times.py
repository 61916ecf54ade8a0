"""Times of a cron expression in a time zone, over changes of the zone's UTC offset by any amount.

cronsim parses the expression and steps through wall-clock times without a zone. In a zone it would step by whole hours of
real time, and miss times after a change of 30 minutes (Australia/Lord_Howe).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from warren.core.errors import missing_extra_error

STEP: Final = timedelta(days=3)
"""Interval in which a zone changes its offset at most once: the nearest changes in the IANA database are 4 days apart."""
SECOND: Final = timedelta(seconds=1)


def next_cron_time(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first time of a cron expression after a time, in UTC; None if there is none within 50 years.

    With `*` at the beginning of the minute or the hour, the times are all those at which a clock in the zone shows a time of
    the expression. Otherwise they are fixed times: one that the clock skips is moved to the end of the gap, and of one
    that occurs twice only the first occurrence counts.

    :param after: time in UTC.
    :raises ValueError: the expression is wrong; the error's text has one line.
    """
    # Times of the expression are whole seconds, and the first one after `after` is later than its whole second.
    after = after.replace(microsecond=0)
    # With six fields, the first one is the second.
    if any(field.startswith("*") for field in expression.split()[-5:-3]):
        return _next_shown_time(expression, zone, after)
    return _next_fixed_time(expression, zone, after)


def _next_shown_time(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first time after `after` at which a clock in the zone shows a time of the expression."""
    offset = _offset(zone, after)
    wall = _wall(after, offset)
    while True:
        shown = next(_wall_times(expression, wall), None)
        if shown is None:
            return None
        found = (shown - offset).replace(tzinfo=UTC)
        change = _change(zone, after, found)
        if change is None:
            return found
        # The offset changes before: continue with the time that the clock shows at the change, which counts as well.
        after, offset = change, _offset(zone, change)
        wall = _wall(change, offset) - SECOND


def _next_fixed_time(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first time after `after` among the times of the expression, each of which counts once."""
    for wall in _wall_times(expression, _wall(after, _offset(zone, after))):
        found = _first_occurrence(wall, zone)
        if found > after:
            return found
    return None


def _first_occurrence(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first time at which a clock in the zone shows a time, or the end of the gap in which it is skipped."""
    found, earlier = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if _wall(found, _offset(zone, found)) == wall:
        return found
    # In a gap, fold=0 is read with the offset before it and fold=1 with the offset after it (PEP 495).
    change = _change(zone, earlier, found)
    assert change is not None
    return change


def _change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """Return the first time after `start`, and not after `end`, with another offset than `start`; None if there is none."""
    offset = _offset(zone, start)
    while start < end:
        step = min(start + STEP, end)
        if _offset(zone, step) != offset:
            break
        start = step
    else:
        return None
    while step - start > SECOND:
        middle = start + (step - start) // SECOND // 2 * SECOND
        if _offset(zone, middle) == offset:
            start = middle
        else:
            step = middle
    return step


def _offset(zone: tzinfo, time: datetime) -> timedelta:
    """Return the UTC offset of a zone at a time."""
    offset = time.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _wall(time: datetime, offset: timedelta) -> datetime:
    """Return a time as a clock with a UTC offset shows it, without a zone."""
    return time.replace(tzinfo=None) + offset


def _wall_times(expression: str, after: datetime) -> Iterator[datetime]:
    """Return an iterator over the times of an expression after a time, all without a zone.

    :raises ValueError: the expression is wrong; the error's text has one line.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise missing_extra_error("cron", "Cron") from None
    try:
        return CronSim(expression, after)
    except CronSimError as error:
        raise ValueError(
            f"{expression!r} is no cron expression ({error}): give minute, hour, day, month and weekday, as in"
            " '0 6 * * MON-FRI'"
        ) from None


__all__ = ["next_cron_time"]
