"""Declaration of streams, and invalid declarations (https://www.rabbitmq.com/docs/streams#declaring)."""

from __future__ import annotations

import pytest

from tests.support.blocking_client import Channel
from tests.support.queue_arguments import AUTO_DELETE, DURABLE, EXCLUSIVE, declare, failed, long, text
from tests.support.raw_client import RawClient
from tests.support.streams import declare_stream

STREAM = ("x-queue-type", text("stream"))


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


def test_a_redeclaration_needs_the_same_arguments(channel: Channel, peer: RawClient, stream: str) -> None:
    assert declare_stream(channel, stream) == stream
    described = f"queue '{stream}' in vhost '/'"
    answer = declare(peer, stream, STREAM, ("x-max-age", text("1h")), flags=DURABLE)
    both = "received the value '1h' of type 'longstr' but current is none"
    assert answer == failed(406, f"inequivalent arg 'x-max-age' for {described}: {both}")
    answer = declare(peer, stream, flags=DURABLE)
    assert isinstance(answer, tuple)
    assert answer.code == 406
