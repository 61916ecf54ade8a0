"""Wrong options: one clear line when they are parsed, whatever they contain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, LessThan

from warren.pipeline.errors import PipelineError
from warren.pipeline.source.filter_pushdown import PushedBounds
from warren.pipeline.source.stream_options import StreamOptions
from warren.pipeline.spool.spool_options import SpoolOptions

URL = "amqp://u:s3cret@localhost"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": "inf"}, "timeout is 'inf': it must be a number of seconds"),
        ({"timeout": "nan"}, "timeout is 'nan': it must be a number of seconds"),
        ({"timeout": "1e12"}, r"timeout is 1e\+12: it must be more than 0 seconds, and at most 1,000,000"),
        ({"timestamptolerance": "-10"}, "timestampTolerance is '-10': it must be from 0 to"),
        ({"timestamptolerance": "inf"}, "timestampTolerance is 'inf': it must be a number of seconds"),
        ({"timestamptolerance": "1e300"}, "timestampTolerance is '1e300': it must be from 0 to"),
        ({"startingtimestamp": "1960-01-01"}, "it must be a time of 1970 or later"),
        ({"endingtimestamp": "0001-01-01T00:00+14:00"}, "it must be a time of 1970 or later"),
        ({"startingoffset": "9" * 5000}, "startingOffset is '9+'…: it must be an offset or first or next"),
        ({"startingoffset": f'{{"s": {"9" * 5000}}}'}, "startingOffset is .*: it must be an object in JSON"),
        ({"startingoffset": '{"s":' * 100_000}, "startingOffset is .*: it must be an object in JSON"),
        ({"stream": "[" * 100_000}, "streams is .*: it must be names between commas"),
        ({"messagespertask": "9" * 5000}, "messagesPerTask is '9+'…: it must be a number of messages"),
        ({"stream": "é" * 128}, "the name of the stream .* has 256 bytes: AMQP allows 255"),
        ({"url": f"{URL}?heartbeat={'9' * 5000}"}, "heartbeat is .*: it must be a number of seconds"),
    ],
)
def test_invalid_stream_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message) as failed:
        StreamOptions.from_options({"url": URL, "stream": "s", **options})
    assert "\n" not in str(failed.value)
    assert "s3cret" not in str(failed.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spooldir": "/srv/a\0b"}, r"spoolDir is '/srv/a\\x00b': it must be the absolute path"),
        ({"spooldir": "file:///srv/a%00b"}, "spoolDir is 'file:///srv/a%00b': it must be the absolute path"),
        ({"spooldir": "file://[/srv"}, "it must be the absolute path"),
        ({"queue": "q" * 256}, r"the name of the queue 'q+'… has 256 bytes: AMQP allows 255"),
        ({"spoolmaxbytes": "9" * 30}, "spoolMaxBytes is '9+': it must be a number of bytes"),
    ],
)
def test_invalid_spool_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        SpoolOptions.from_options({"url": URL, "queue": "q", "spooldir": "/srv/spool", **options})


def test_the_folder_of_a_spool_may_be_a_url() -> None:
    for text in ("file:/srv/a%20b", "file:///srv/a%20b", "file://localhost/srv/a%20b", "/srv/a b"):
        assert (
            str(SpoolOptions.from_options({"url": URL, "queue": "q", "spooldir": text}).folder) == "/srv/a b"
        )


def test_times_in_filters_are_clamped_to_amqp_s_range() -> None:
    def limits(filter: EqualTo | GreaterThan | LessThan, tolerance: float = 60.0) -> PushedBounds:
        return PushedBounds().with_filter(filter, tolerance)

    epoch, latest = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    where = ("timestamp",)
    assert limits(LessThan(where, latest)).until == latest
    assert limits(LessThan(where, datetime.max)).until == latest
    assert limits(GreaterThan(where, epoch)).since == epoch
    assert limits(GreaterThan(where, datetime.min)).since == epoch
    assert limits(LessThan(where, datetime(1960, 1, 1, tzinfo=UTC))).until == epoch + timedelta(minutes=1)
    both = limits(EqualTo(where, datetime(2026, 1, 1, tzinfo=UTC)), 10_000_000_000)
    assert (both.since, both.until) == (epoch, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=10**10))
