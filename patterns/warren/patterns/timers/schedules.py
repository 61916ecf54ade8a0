"""Schedules of timers: once at a date, in intervals, or by a cron expression in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from warren.patterns.timers.cron_times import next_cron_time
from warren.sdk import ConfigError, Message
from warren.sdk.extend import Duration, duration

MissedPolicy = Literal["catch_up", "skip", "coalesce"]
"""Handling of times that have passed, because no process was running or the broker or store was down. A time that is
at most `late` behind (a parameter of `Timers`) is published, and one that is further behind is missed:

- `catch_up`: one message is published for all missed times, and one for each later time.
- `skip`: no message is published for missed times, and one for each later time.
- `coalesce`: one message is published for all times that have passed, missed or not.
"""

NAME_BYTES: Final = 150
MILLISECOND: Final = timedelta(milliseconds=1)
EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class DateSchedule:
    """Schedule for a single publish at a date, or at once if the date is past.

    :param name: name by which the timer is listed and cancelled; a schedule with the same name replaces it.
    :param when: date and time with a time zone.
    :param message: message to publish.
    :param missed: handling of a date that is more than `late` behind: with `skip` the message is not published,
        otherwise it is published late.
    """

    name: str
    when: datetime
    message: Message
    missed: MissedPolicy = "catch_up"

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.when.tzinfo is None:
            raise ConfigError(
                f"timer {self.name!r}: {self.when} has no time zone: use datetime(..., tzinfo=UTC)"
            )


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Schedule in constant intervals, which count without drift from the time at which the timer was stored.

    :param interval: a `timedelta`, seconds, or a text such as `15m`; at least a millisecond.
    :param missed: handling of times that are more than `late` behind: with `catch_up` one message is published late for
        all of them, with `skip` none. With `coalesce` one message is published for all times that have passed.
    """

    name: str
    interval: Duration
    message: Message
    missed: MissedPolicy = "catch_up"

    def __post_init__(self) -> None:
        _check_name(self.name)
        if duration(self.interval, f"timer {self.name!r}: interval") < MILLISECOND:
            raise ConfigError(f"timer {self.name!r}: {self.interval} is shorter than a millisecond")


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Schedule by a cron expression in a time zone.

    Five fields (minute, hour, day of month, month, day of week) or six (seconds first), as Debian's cron reads them,
    with `L`, `LW`, `5L` and `1#2`. When the clock is changed, as for daylight saving time, a fixed time that is skipped
    fires right after the gap, and one that occurs twice fires only the first time. If minute or hour begins with `*`, the
    timer fires whenever a clock in the zone shows a time of the expression.

    :param zone: name in the IANA database, such as `Europe/Berlin`; default UTC.
    :param missed: handling of times that are more than `late` behind: with `catch_up` one message is published late for
        all of them, with `skip` none. With `coalesce` one message is published for all times that have passed.
    """

    name: str
    expression: str
    message: Message
    zone: str = "UTC"
    missed: MissedPolicy = "catch_up"

    def __post_init__(self) -> None:
        _check_name(self.name)
        try:
            _cron_time(self.expression, self.zone, 0)
        except ValueError as error:
            raise ConfigError(f"timer {self.name!r}: {error}") from None


Schedule = DateSchedule | IntervalSchedule | CronSchedule
"""Value that `Timers.put` takes."""


def spec_of(schedule: Schedule) -> dict[str, Any]:
    """Return the times of a schedule as a dictionary for the timer's record.

    :return: `{"at_ms": ...}` for a date, `{"every_ms": ...}` for an interval, or `{"cron": ..., "zone": ...}`.
    """
    match schedule:
        case DateSchedule():
            return {"at_ms": int(schedule.when.timestamp() * 1000)}
        case IntervalSchedule():
            return {"every_ms": -(-duration(schedule.interval) // MILLISECOND)}
        case CronSchedule():
            return {"cron": schedule.expression, "zone": schedule.zone}


def next_time_ms(spec: dict[str, Any], anchor_ms: int, after_ms: int) -> int | None:
    """Return the first time of a stored schedule after `after_ms`, in milliseconds since the epoch; None if there is
    none.

    :param spec: `{"at_ms": ...}` for a date, `{"every_ms": ...}` for an interval, or `{"cron": ..., "zone": ...}`.
    :param anchor_ms: time from which the intervals of an `IntervalSchedule` count.
    """
    if "at_ms" in spec:
        return int(spec["at_ms"]) if spec["at_ms"] > after_ms else None
    if "every_ms" in spec:
        every = int(spec["every_ms"])
        return anchor_ms + max(1, (after_ms - anchor_ms) // every + 1) * every
    time = _cron_time(spec["cron"], spec["zone"], after_ms)
    return None if time is None else (time - EPOCH) // MILLISECOND


def description(spec: dict[str, Any]) -> str:
    """Return a description of the stored schedule for people, such as `every 0:05:00`.

    :param spec: `{"at_ms": ...}` for a date, `{"every_ms": ...}` for an interval, or `{"cron": ..., "zone": ...}`.
    """
    if "at_ms" in spec:
        return "once"
    if "every_ms" in spec:
        return f"every {int(spec['every_ms']) * MILLISECOND}"
    return f"{spec['cron']} ({spec['zone']})"


def _cron_time(expression: str, zone: str, after_ms: int) -> datetime | None:
    """Return the first time of a cron expression after `after_ms`; None if there is none within 50 years.

    :raises ValueError: the expression or the time zone is wrong; the error's text has one line.
    """
    return next_cron_time(expression, _zone(zone), EPOCH + after_ms * MILLISECOND)


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {name!r} on this machine: write it as in 'Europe/Berlin'"
        ) from None


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= NAME_BYTES:
        raise ConfigError(f"the name of a timer must have 1 to {NAME_BYTES} bytes, unlike {name[:40]!r}")


__all__ = [
    "CronSchedule",
    "DateSchedule",
    "IntervalSchedule",
    "MissedPolicy",
    "Schedule",
    "description",
    "next_time_ms",
    "spec_of",
]
