"""Conversion of numbers and texts in messages to times. One that is out of range is null, as one that is missing.

Messages are written by anybody: `timestamp_millis` of Spark ends the job for a number that overflows, and Python cannot
read a time after the year 9999, which Spark can represent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

EARLIEST_MICROS: Final = -30_610_224_000_000_000
"""Begin of the year 1000 in UTC, in Unix microseconds. Python's times begin in the year 1: a step of a chart may begin
before the earliest time in it."""
LATEST_MICROS: Final = 221_845_392_000_000_000
"""Begin of the year 9000. Python's times end with the year 9999."""


def time_of_micros(micros: Column) -> Column:
    """Return the column with the time of Unix microseconds; null for a number out of range.

    :param micros: column of long numbers
    """
    from pyspark.sql import functions as F

    return F.timestamp_micros(F.when(micros.between(EARLIEST_MICROS, LATEST_MICROS), micros))


def time_of_millis(millis: Column) -> Column:
    """Return the column with the time of Unix milliseconds; null for a number out of range.

    :param millis: column of long numbers
    """
    from pyspark.sql import functions as F

    # The condition is around the number, not around the time: Spark may compute a time that it does not use.
    in_range = millis.between(EARLIEST_MICROS // 1000, LATEST_MICROS // 1000)
    return F.timestamp_millis(F.when(in_range, millis))


def time_of_text(text: Column) -> Column:
    """Return the column with the time that a text in ISO 8601 states; null for one that is malformed or out of range.

    :param text: column of texts
    """
    return bounded_time(text.try_cast("timestamp"))


def bounded_time(time: Column) -> Column:
    """Return the column with a time, or null if it is out of range.

    :param time: column of timestamps
    """
    from pyspark.sql import functions as F

    return F.when(F.unix_micros(time).between(EARLIEST_MICROS, LATEST_MICROS), time)
