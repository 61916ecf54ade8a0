"""Filters of stream consumers: x-stream-filter, x-stream-match-unfiltered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.blocking_client import Channel
from tests.support.broker_behaviour import Behaviour
from tests.support.streams import consume, declare_stream, offset_of, publish, publish_at_once


@pytest.fixture(autouse=True)
def filtering_server(server: Behaviour) -> None:
    if not server.is_warren:
        pytest.skip("RabbitMQ filters streams from 3.13 on, by chunks")


@pytest.fixture
def regions(channel: Channel, name: str) -> str:
    """Return a stream with the messages 0 eu, 1 us, 2 eu, 3 without a value, 4 asia, 5 whose body looks like a value."""
    stream = declare_stream(channel, name)
    for body, region in ((b"0", "eu"), (b"1", "us"), (b"2", "eu"), (b"3", None), (b"4", "asia")):
        headers = {"other": "eu"} if region is None else {"x-stream-filter-value": region}
        publish(channel, stream, body, headers=headers)
    publish(channel, stream, b"\x15x-stream-filter-valueS\x00\x00\x00\x02eu")
    return stream


def received(channel: Channel, count: int) -> list[int]:
    found = []
    for _ in range(count):
        (message,) = channel.deliveries(1)
        found.append(offset_of(message))
        channel.ack(message.tag)
    return found


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        pytest.param({"x_stream_filter": "eu"}, [0, 2], id="one"),
        pytest.param({"x_stream_filter": ["us", "asia"]}, [1, 4], id="several"),
        pytest.param(
            {"x_stream_filter": "eu", "x_stream_match_unfiltered": True}, [0, 2, 3, 5], id="unfiltered"
        ),
        pytest.param({"x_stream_filter": 7}, [0, 1, 2, 3, 4, 5], id="ignored"),
    ],
)
def test_a_filter_selects_messages(
    channel: Channel, regions: str, arguments: dict[str, Any], offsets: list[int]
) -> None:
    consume(channel, regions, "first", prefetch=1, **arguments)
    assert received(channel, len(offsets)) == offsets
    publish(channel, regions, b"us", headers={"x-stream-filter-value": "us"})
    publish(channel, regions, b"eu", headers={"x-stream-filter-value": "eu"})
    publish(channel, regions, b"us", headers={"x-stream-filter-value": "us"})
    following = {"eu": 7, "[": 6, "7": 6}
    assert received(channel, 1) == [following[str(arguments["x_stream_filter"])[:1].replace("e", "eu")]]


def test_a_filter_passes_over_many_chunks_on_disk(channel: Channel, name: str) -> None:
    stream = declare_stream(channel, name)
    for _ in range(20):
        publish_at_once(channel, stream, *[b"x" * 1000] * 100)
    publish(channel, stream, b"found", headers={"x-stream-filter-value": "eu"})
    publish_at_once(channel, stream, *[b"x" * 1000] * 100)
    publish(channel, stream, b"found", headers={"x-stream-filter-value": "eu"})
    consume(channel, stream, "first", prefetch=1, x_stream_filter="eu")
    assert received(channel, 2) == [2000, 2101]
