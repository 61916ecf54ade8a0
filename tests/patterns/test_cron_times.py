"""Times of cron expressions over changes of the clock by an hour, by half an hour, by a day, and by odd seconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from warren.patterns.timers.cron_times import next_cron_time

MINUTE = timedelta(minutes=1)
WALKED = timedelta(days=3)
"""Time after the start of a walk in which times of an expression are compared."""

CHANGES = [
    ("Australia/Lord_Howe", "2026-04-04T15:00", "+11 to +10:30"),
    ("Australia/Lord_Howe", "2026-10-03T15:30", "+10:30 to +11"),
    ("Europe/Berlin", "2026-03-29T01:00", "+1 to +2"),
    ("Europe/Berlin", "2026-10-25T01:00", "+2 to +1"),
    ("America/New_York", "2026-11-01T06:00", "-4 to -5"),
    ("America/St_Johns", "2010-03-14T03:31", "-3:30 to -2:30, at one minute past midnight"),
    ("America/St_Johns", "2010-11-07T02:31", "-2:30 to -3:30, back to the day before"),
    ("America/Sao_Paulo", "2018-11-04T03:00", "-3 to -2, at midnight"),
    ("America/Sao_Paulo", "2019-02-17T02:00", "-2 to -3, at midnight"),
    ("Asia/Tehran", "2022-03-21T20:30", "+3:30 to +4:30"),
    ("Asia/Kathmandu", "1985-12-31T18:30", "+5:30 to +5:45"),
    ("Asia/Kolkata", "2026-03-29T01:00", "+5:30, no change"),
    ("Australia/Eucla", "2009-03-28T17:15", "+9:45 to +8:45"),
    ("Pacific/Chatham", "2026-09-26T14:00", "+12:45 to +13:45"),
    ("America/Caracas", "2007-12-09T07:00", "-4 to -4:30"),
    ("America/Caracas", "2016-05-01T07:00", "-4:30 to -4"),
    ("Asia/Pyongyang", "2015-08-14T15:00", "+9 to +8:30"),
    ("Asia/Singapore", "1981-12-31T16:00", "+7:30 to +8"),
    ("Antarctica/Troll", "2026-03-29T01:00", "+0 to +2"),
    ("Antarctica/Troll", "2026-10-25T01:00", "+2 to +0"),
    ("Pacific/Apia", "2011-12-30T10:00", "-10 to +14: a day is skipped"),
    ("Pacific/Kwajalein", "1993-08-21T12:00", "-12 to +12: a day is skipped"),
    ("UTC", "2026-03-29T01:00", "no change"),
]
"""Zones, with the time of a change in UTC."""


@dataclass(frozen=True)
class Field:
    """A field of a cron expression, with the numbers that it stands for."""

    text: str
    values: frozenset[int]


def fields(lowest: int, highest: int) -> st.SearchStrategy[Field]:
    whole = range(lowest, highest + 1)
    listed = st.frozensets(st.sampled_from(whole), min_size=1, max_size=4)
    return st.one_of(
        st.just(Field("*", frozenset(whole))),
        st.integers(2, 12).map(lambda step: Field(f"*/{step}", frozenset(whole[::step]))),
        listed.map(lambda values: Field(",".join(map(str, sorted(values))), values)),
        st.tuples(st.sampled_from(whole), st.sampled_from(whole)).map(
            lambda ends: Field(f"{min(ends)}-{max(ends)}", frozenset(range(min(ends), max(ends) + 1)))
        ),
    )


def walk(minute: Field, hour: Field, weekday: Field, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first time after `after`, found minute by minute; None if there is none in the time that is walked."""
    evenly = minute.text.startswith("*") or hour.text.startswith("*")

    def fits(wall: datetime) -> bool:
        return (
            wall.minute in minute.values
            and wall.hour in hour.values
            and wall.isoweekday() % 7 in weekday.values
        )

    time = after
    before = time.astimezone(zone).replace(tzinfo=None)
    while time < after + WALKED:
        time += MINUTE
        local = time.astimezone(zone)
        wall = local.replace(tzinfo=None)
        if evenly:
            if fits(wall):
                return time
        else:
            if not local.fold and fits(wall):
                return time
            skipped = int((wall - before) / MINUTE) - 1
            if any(fits(before + number * MINUTE) for number in range(1, skipped + 1)):
                return time
        before = wall
    return None


@settings(max_examples=examples(600))
@given(
    st.sampled_from(CHANGES),
    st.integers(-30 * 60, 30 * 60),
    fields(0, 59),
    fields(0, 23),
    st.one_of(st.just(Field("*", frozenset(range(7)))), fields(0, 6)),
)
@example(
    CHANGES[0],
    -900,
    Field("0", frozenset({0})),
    Field("*/6", frozenset(range(0, 24, 6))),
    Field("*", frozenset(range(7))),
)
@example(
    CHANGES[3], 15, Field("30", frozenset({30})), Field("2", frozenset({2})), Field("*", frozenset(range(7)))
)
def test_times_are_those_of_a_walk_over_all_minutes(
    change: tuple[str, str, str], minutes: int, minute: Field, hour: Field, weekday: Field
) -> None:
    zone = ZoneInfo(change[0])
    after = datetime.fromisoformat(change[1]).replace(tzinfo=UTC) + minutes * MINUTE
    found = next_cron_time(f"{minute.text} {hour.text} * * {weekday.text}", zone, after)
    walked = walk(minute, hour, weekday, zone, after)
    if walked is None:
        assert found is None or found > after + WALKED
    else:
        assert found == walked


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next times of an expression after a time in UTC, as a clock in the zone shows them."""
    time, found = datetime.fromisoformat(after).replace(tzinfo=UTC), []
    for _ in range(count):
        following = next_cron_time(expression, ZoneInfo(zone), time)
        assert following is not None
        assert following > time
        time = following
        found.append(time.astimezone(ZoneInfo(zone)).strftime("%d %H:%M:%S%z"))
    return found


@pytest.mark.parametrize("expression", ["0 */6 * * *", "0 0,6,12,18 * * *", "0 0 */6 * * *"])
def test_a_change_of_half_an_hour_skips_no_time(expression: str) -> None:
    assert times(expression, "Australia/Lord_Howe", "2026-04-04T12:00", 3) == [
        "05 00:00:00+1100",
        "05 06:00:00+1030",
        "05 12:00:00+1030",
    ]
    assert times(expression, "Australia/Lord_Howe", "2026-10-03T12:00", 3) == [
        "04 00:00:00+1030",
        "04 06:00:00+1100",
        "04 12:00:00+1100",
    ]


def test_times_in_the_repeated_and_in_the_skipped_half_hour() -> None:
    zone, back, forth = "Australia/Lord_Howe", "2026-04-04T14:20", "2026-10-03T15:20"
    assert times("*/15 1-2 * * *", zone, back, 6) == [
        "05 01:30:00+1100",
        "05 01:45:00+1100",
        "05 01:30:00+1030",
        "05 01:45:00+1030",
        "05 02:00:00+1030",
        "05 02:15:00+1030",
    ]
    assert times("45 1 * * *", zone, back, 2) == ["05 01:45:00+1100", "06 01:45:00+1030"]
    assert times("*/15 1-2 * * *", zone, forth, 2) == ["04 02:30:00+1100", "04 02:45:00+1100"]
    assert times("10 2 * * *", zone, forth, 2) == ["04 02:30:00+1100", "05 02:10:00+1100"]


def test_a_start_in_the_repeated_hour_gives_no_time_before_it() -> None:
    # 02:15+01:00, the second time: 02:30 has occurred already.
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-25T01:15", 1) == ["26 02:30:00+0100"]


def test_fixed_times_with_seconds_fire_as_those_without() -> None:
    assert times("5 30 2 * * *", "Europe/Berlin", "2026-03-28T02:00", 2) == [
        "29 03:00:00+0200",
        "30 02:30:05+0200",
    ]
    assert times("5 30 2 * * *", "Europe/Berlin", "2026-10-24T02:00", 2) == [
        "25 02:30:05+0200",
        "26 02:30:05+0100",
    ]


def test_a_gap_that_ends_between_two_minutes() -> None:
    # Liberia skipped 44 minutes and 30 seconds.
    assert times("15 0 * * *", "Africa/Monrovia", "1972-01-06T12:00", 2) == [
        "07 00:44:30+0000",
        "08 00:15:00+0000",
    ]
    assert times("*/20 * * * *", "Africa/Monrovia", "1972-01-07T00:30", 2) == [
        "07 01:00:00+0000",
        "07 01:20:00+0000",
    ]


def test_times_years_ahead_are_found_over_many_changes() -> None:
    assert times("0 12 29 2 SUN#5", "Europe/Berlin", "2026-01-01T00:00", 1) == ["29 12:00:00+0100"]
    found = next_cron_time("0 */12 29 2 *", ZoneInfo("Australia/Lord_Howe"), datetime(2026, 1, 1, tzinfo=UTC))
    assert found == datetime(2028, 2, 28, 13, tzinfo=UTC)
