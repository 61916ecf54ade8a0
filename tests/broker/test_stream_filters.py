"""Filters of stream consumers: x-stream-filter, x-stream-match-unfiltered (https://www.rabbitmq.com/docs/stream-filtering).

The messages of most tests are chunks of their own, so that RabbitMQ's Bloom filters let no others of their chunk through.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.blocking_client import Channel, Closed
from tests.support.broker_behaviour import Behaviour
from tests.support.streams import (
    consume,
    declare_stream,
    offset_of,
    publish,
    publish_at_once,
    receive_offsets,
)

VALUES = ("eu", "us", "eu", None, "asia", "", "\xe9", {"x-stream-filter-value": "eu"}, "eu2")
"""Values of the messages 0 to 8; the one with a table has the header within another one, where it does not count."""


@pytest.fixture(autouse=True)
def filtering_server(server: Behaviour) -> None:
    if not server.is_warren and server.version < (3, 13):
        pytest.skip("RabbitMQ filters streams from 3.13 on")


@pytest.fixture
def regions(channel: Channel, name: str) -> str:
    """Return a stream with messages that have VALUES, and another one whose body looks like a value."""
    stream = declare_stream(channel, name)
    for number, value in enumerate(VALUES):
        headers: dict[str, Any] = {"before": 1, "x-stream-filter-value": value, "behind": "us"}
        if value is None or isinstance(value, dict):
            headers = {"other": "eu" if value is None else value}
        publish(channel, stream, b"%d" % number, headers=headers)
    publish(channel, stream, b"\x15x-stream-filter-valueS\x00\x00\x00\x02eu")
    return stream


@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        pytest.param({"x_stream_filter": "eu"}, [0, 2], id="one"),
        pytest.param({"x_stream_filter": ["us", "asia"]}, [1, 4], id="several"),
        pytest.param({"x_stream_filter": ["us", 7]}, [1], id="no-text"),
        pytest.param({"x_stream_filter": "\xe9"}, [6], id="utf-8"),
        pytest.param({"x_stream_filter": [f"v{n}" for n in range(100)] + ["asia"]}, [4], id="many"),
        pytest.param(
            {"x_stream_filter": "eu", "x_stream_match_unfiltered": True}, [0, 2, 3, 5, 7, 9], id="unfiltered"
        ),
        pytest.param({"x_stream_filter": "eu", "x_stream_match_unfiltered": 1}, [0, 2], id="no-boolean"),
        pytest.param({"x_stream_filter": ""}, [3, 5, 7, 9], id="empty"),
        pytest.param({"x_stream_filter": 7}, [*range(10)], id="ignored"),
        pytest.param({"x_stream_match_unfiltered": True}, [*range(10)], id="unfiltered-alone"),
    ],
)
def test_a_filter_selects_messages(
    channel: Channel, regions: str, arguments: dict[str, Any], offsets: list[int]
) -> None:
    """The last message is one that each of these filters selects: nothing is delivered beside those before it."""
    wanted = arguments.get("x_stream_filter", "")
    last = wanted[-1] if isinstance(wanted, list) else wanted
    last = last if isinstance(last, str) else "us"
    publish(channel, regions, b"end", headers={"x-stream-filter-value": last})
    consume(channel, regions, "first", prefetch=1, **arguments)
    assert receive_offsets(channel, len(offsets) + 1) == [*offsets, 10]
    publish(channel, regions, b"end", headers={"x-stream-filter-value": "another"})
    publish(channel, regions, b"end", headers={"x-stream-filter-value": last})
    everything = len(offsets) == 10
    assert receive_offsets(channel, 2 if everything else 1) == ([11, 12] if everything else [12])


def test_a_filter_begins_at_an_offset(channel: Channel, regions: str) -> None:
    consume(channel, regions, 1, x_stream_filter=["eu", "asia"])
    assert receive_offsets(channel, 2) == [2, 4]


def test_every_matching_message_of_one_chunk_is_delivered(channel: Channel, name: str) -> None:
    """RabbitMQ delivers the others of the chunk as well: its clients filter again."""
    stream = declare_stream(channel, name)
    confirming = channel.connection.channel()
    confirming.confirm()
    for number in range(50):
        value = "eu" if number % 7 == 0 else "us"
        confirming.publish(stream, b"%d" % number, headers={"x-stream-filter-value": value})
    confirming.settled(50)
    publish(channel, stream, b"end", headers={"x-stream-filter-value": "eu"})
    consume(channel, stream, "first", prefetch=1, x_stream_filter="eu")
    matching = []
    while 50 not in matching:
        (message,) = channel.deliveries(1)
        if message.headers["x-stream-filter-value"] == "eu":
            matching.append(offset_of(message))
        channel.ack(message.tag)
    assert matching == [*range(0, 50, 7), 50]


@pytest.mark.parametrize("values", [[], [7, True]])
def test_an_array_without_a_text_is_refused(
    channel: Channel, server: Behaviour, regions: str, values: list[Any]
) -> None:
    with pytest.raises(Closed) as refused:
        consume(channel, regions, "first", x_stream_filter=values)
    assert refused.value.code == (406 if server.explains_crashes else 541)


@pytest.mark.parametrize("value", [7, True, bytearray(b"eu"), ["eu"]])
def test_a_value_that_is_no_text_is_none(
    channel: Channel, server: Behaviour, name: str, value: object
) -> None:
    if not server.is_warren:
        pytest.skip("RabbitMQ closes the connection of the publisher with 541")
    stream = declare_stream(channel, name)
    publish(channel, stream, b"0", headers={"x-stream-filter-value": value})
    publish(channel, stream, b"1", headers={"x-stream-filter-value": "eu"})
    consume(channel, stream, "first", x_stream_filter="eu")
    assert receive_offsets(channel, 1) == [1]
    consume(channel, stream, "first", x_stream_filter="us", x_stream_match_unfiltered=True)
    assert receive_offsets(channel, 1) == [0]


def test_a_filter_passes_over_many_chunks_on_disk(channel: Channel, name: str) -> None:
    stream = declare_stream(channel, name)
    for _ in range(20):
        publish_at_once(channel, stream, *[b"x" * 1000] * 100)
    publish(channel, stream, b"found", headers={"x-stream-filter-value": "eu"})
    publish_at_once(channel, stream, *[b"x" * 1000] * 100)
    publish(channel, stream, b"found", headers={"x-stream-filter-value": "eu"})
    consume(channel, stream, "first", prefetch=1, x_stream_filter="eu")
    assert receive_offsets(channel, 2) == [2000, 2101]
