"""Declaration of streams, and invalid declarations (https://www.rabbitmq.com/docs/streams#declaring)."""

from __future__ import annotations

import pytest

from tests.support.blocking_client import Channel
from tests.support.broker_behaviour import Behaviour
from tests.support.queue_arguments import AUTO_DELETE, DURABLE, EXCLUSIVE, declare, failed, long, text
from tests.support.raw_client import RawClient
from tests.support.streams import declare_stream

STREAM = ("x-queue-type", text("stream"))


def skip_before_filters(server: Behaviour) -> None:
    if not server.is_warren and server.version < (3, 13):
        pytest.skip("RabbitMQ filters streams from 3.13 on")


@pytest.fixture
def stream(channel: Channel, name: str) -> str:
    return declare_stream(channel, name)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (0, "non-durable"),
        (DURABLE | EXCLUSIVE, "exclusive-owner"),
        (DURABLE | AUTO_DELETE, "auto-delete"),
        (EXCLUSIVE | AUTO_DELETE, "auto-delete"),
    ],
)
def test_a_stream_cannot_be_transient_exclusive_or_auto_delete(
    peer: RawClient, name: str, flags: int, what: str
) -> None:
    answer = declare(peer, name, STREAM, flags=flags)
    assert answer == failed(406, f"invalid property '{what}' for queue '{name}' in vhost '/'")


def test_a_stream_cannot_be_server_named(peer: RawClient) -> None:
    answer = declare(peer, "", STREAM, flags=DURABLE)
    assert answer == failed(406, "Cannot declare a server-named queue for type rabbit_stream_queue")


@pytest.mark.parametrize("age", ["1Y", "2M", "3D", "4h", "5m", "6s", "9999999999999999999s"])
def test_x_max_age_is_a_number_and_a_unit(peer: RawClient, name: str, age: str) -> None:
    assert declare(peer, name, STREAM, ("x-max-age", text(age)), flags=DURABLE) == name


@pytest.mark.parametrize(
    ("argument", "value", "reason"),
    [
        ("x-max-age", text("1d"), "invalid_max_age"),
        ("x-max-age", text("0s"), "invalid_max_age"),
        ("x-max-age", text("10"), "invalid_max_age"),
        ("x-max-age", text("1 h"), "invalid_max_age"),
        ("x-max-age", long(5), "{unacceptable_type,long}"),
        ("x-max-length-bytes", long(-1), "{value_negative,-1}"),
        ("x-max-length-bytes", text("a"), '"expected integer, got longstr"'),
        ("x-stream-max-segment-size-bytes", long(-1), "{value_negative,-1}"),
        ("x-initial-cluster-size", long(0), "{value_zero,0}"),
        ("x-queue-leader-locator", text("zz"), "invalid_queue_locator_arg"),
    ],
)
def test_invalid_arguments(peer: RawClient, name: str, argument: str, value: bytes, reason: str) -> None:
    answer = declare(peer, name, STREAM, (argument, value), flags=DURABLE)
    assert answer == failed(406, f"invalid arg '{argument}' for queue '{name}' in vhost '/': {reason}")


def test_the_segment_size_has_an_upper_limit(peer: RawClient, name: str) -> None:
    size = ("x-stream-max-segment-size-bytes", long(3_000_000_001))
    answer = declare(peer, name, STREAM, size, flags=DURABLE)
    assert answer == failed(406, "Exceeded max value for x-stream-max-segment-size-bytes")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (long(-1), "{value_negative,-1}"),
        (text("16"), '"expected integer, got longstr"'),
        (b"t\x01", '"expected integer, got bool"'),
    ],
)
def test_the_size_of_bloom_filters_is_an_integer(
    peer: RawClient, server: Behaviour, name: str, value: bytes, reason: str
) -> None:
    skip_before_filters(server)
    arguments = (("x-stream-filter-size-bytes", value), ("x-initial-cluster-size", long(0)))
    answer = declare(peer, name, STREAM, *arguments, flags=DURABLE)
    described = f"queue '{name}' in vhost '/'"
    assert answer == failed(406, f"invalid arg 'x-stream-filter-size-bytes' for {described}: {reason}")


@pytest.mark.parametrize("size", [0, 15, 256, 2**40])
def test_the_size_of_bloom_filters_has_bounds(
    peer: RawClient, server: Behaviour, name: str, size: int
) -> None:
    skip_before_filters(server)
    answer = declare(peer, name, STREAM, ("x-stream-filter-size-bytes", long(size)), flags=DURABLE)
    assert answer == failed(406, "Invalid value for x-stream-filter-size-bytes")


def test_a_redeclaration_needs_the_same_size_of_bloom_filters(
    channel: Channel, peer: RawClient, server: Behaviour, name: str
) -> None:
    skip_before_filters(server)
    declare_stream(channel, name, x_stream_filter_size_bytes=16)
    assert declare_stream(channel, name, x_stream_filter_size_bytes=16) == name
    answer = declare(peer, name, STREAM, ("x-stream-filter-size-bytes", long(255)), flags=DURABLE)
    both = "received '255' but current is '16'"
    described = f"queue '{name}' in vhost '/'"
    assert answer == failed(406, f"inequivalent arg 'x-stream-filter-size-bytes' for {described}: {both}")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-expires", long(1000)),
        ("x-message-ttl", long(1000)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("a")),
        ("x-max-length", long(5)),
        ("x-max-priority", long(5)),
        ("x-overflow", text("drop-head")),
        ("x-queue-mode", text("lazy")),
        ("x-single-active-consumer", b"t\x01"),
        ("x-delivery-limit", long(5)),
    ],
)
def test_arguments_of_other_queue_types_are_refused(
    peer: RawClient, name: str, argument: str, value: bytes
) -> None:
    answer = declare(peer, name, STREAM, (argument, value), flags=DURABLE)
    described = f"queue '{name}' in vhost '/'"
    assert answer == failed(
        406, f"invalid arg '{argument}' for {described} of queue type rabbit_stream_queue"
    )


def test_x_max_age_is_refused_for_other_queue_types(peer: RawClient, name: str) -> None:
    answer = declare(peer, name, ("x-max-age", text("1h")))
    described = f"queue '{name}' in vhost '/'"
    assert answer == failed(
        406, f"invalid arg 'x-max-age' for {described} of queue type rabbit_classic_queue"
    )


def test_a_redeclaration_needs_the_same_arguments(
    channel: Channel, peer: RawClient, server: Behaviour, stream: str
) -> None:
    assert declare_stream(channel, stream) == stream
    described = f"queue '{stream}' in vhost '/'"
    answer = declare(peer, stream, STREAM, ("x-max-age", text("1h")), flags=DURABLE)
    age = "3600000" if server.shows_max_age_in_milliseconds else "1h"
    both = f"received the value '{age}' of type 'longstr' but current is none"
    assert answer == failed(406, f"inequivalent arg 'x-max-age' for {described}: {both}")
    answer = declare(peer, stream, flags=DURABLE)
    assert isinstance(answer, tuple)
    assert answer.code == 406
