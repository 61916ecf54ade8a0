"""Clients that know nothing of Warren: pika, and AMQP frames written by hand over a socket.

Both declare, publish with confirms, consume, and get a mandatory return.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.support.frames import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_GET,
    BASIC_GET_EMPTY,
    BASIC_RETURN,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    confirm,
    delivery,
    long,
    method,
    read_short,
    short,
)
from tests.support.raw_client import RawClient, raw_connection

PATIENCE = 60.0
"""Seconds: the machine may be busy with other tests."""


@pytest.fixture
def name() -> str:
    """Of a queue or exchange that nothing else uses."""
    return f"foreign-{uuid.uuid4().hex}"


@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    parameters = pika.URLParameters(amqp_url)
    parameters.socket_timeout = parameters.stack_timeout = PATIENCE
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        connection.close()


@pytest.fixture
def client(amqp_url: str) -> Iterator[RawClient]:
    with raw_connection(amqp_url) as connected:
        connected.open()
        yield connected


def test_pika_publishes_with_confirms_and_consumes(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "topic", auto_delete=True)
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, name, "order.#")
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        content_type="text/plain", delivery_mode=2, headers={"n": 1, "nested": {"list": [1, "two", None]}}
    )
    for number in range(100):
        channel.basic_publish(name, "order.placed", b"%d" % number, properties, mandatory=True)

    found = []
    for frame, header, body in channel.consume(name, inactivity_timeout=PATIENCE):
        assert frame is not None, f"no delivery within {PATIENCE:g} s"
        assert (frame.exchange, frame.routing_key, frame.redelivered) == (name, "order.placed", False)
        assert (header.content_type, header.delivery_mode) == ("text/plain", 2)
        assert header.headers == {"n": 1, "nested": {"list": [1, "two", None]}}
        found.append(body)
        channel.basic_ack(frame.delivery_tag)
        if len(found) == 100:
            break
    channel.cancel()
    assert found == [b"%d" % number for number in range(100)]


def test_pika_gets_a_mandatory_return(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", name, b"nobody wants it", mandatory=True)
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.routing_key, returned.body) == (name, b"nobody wants it")


def test_frames_publish_with_confirms_and_consume(client: RawClient, name: str) -> None:
    bits = bytes([0b00100])
    client.send_bytes(method(1, EXCHANGE_DECLARE, b"\0\0" + short(name) + short("direct") + bits + long(b"")))
    client.expect_frame(EXCHANGE_DECLARE_OK)
    assert client.declare_queue(name, exclusive=True) == (name, 0, 0)
    client.send_bytes(
        method(1, QUEUE_BIND, b"\0\0" + short(name) + short(name) + short("key") + b"\0" + long(b""))
    )
    client.expect_frame(QUEUE_BIND_OK)
    client.select_confirms()
    # The second body needs three frames, the third none.
    bodies = [b"small", bytes(range(256)) * 1100, b""]
    for body in bodies:
        client.publish(name, "key", body)
    settled = 0
    while settled < len(bodies):
        tag, multiple = confirm(client.expect_frame(BASIC_ACK))
        assert tag > settled
        assert multiple or tag == settled + 1
        settled = tag

    assert client.declare_queue(name, exclusive=True) == (name, 3, 0)
    client.limit_prefetch(10)
    client.consume(name)
    for number, body in enumerate(bodies, start=1):
        message = client.expect_content(BASIC_DELIVER)
        assert delivery(message.frame) == (number, False)
        assert message.body == body
    client.ack(3, multiple=True)
    client.send_bytes(method(1, BASIC_GET, b"\0\0" + short(name) + b"\0"))
    client.expect_frame(BASIC_GET_EMPTY)


def test_frames_get_a_mandatory_return_before_its_confirm(client: RawClient, name: str) -> None:
    client.select_confirms()
    client.publish("", name, b"nobody wants it", mandatory=True)
    returned = client.expect_content(BASIC_RETURN)
    (code,) = struct.unpack_from(">H", returned.frame.arguments)
    text, at = read_short(returned.frame.arguments, 2)
    exchange, at = read_short(returned.frame.arguments, at)
    key, _ = read_short(returned.frame.arguments, at)
    assert (code, text, exchange, key) == (312, "NO_ROUTE", "", name)
    assert returned.body == b"nobody wants it"
    assert confirm(client.expect_frame(BASIC_ACK)) == (1, False)


def test_what_is_not_acknowledged_comes_back_in_its_place(
    amqp_url: str, client: RawClient, name: str
) -> None:
    client.declare_queue(name, auto_delete=False)
    for body in (b"one", b"two", b"three"):
        client.publish("", name, body)
    with raw_connection(amqp_url) as other:
        other.open()
        other.consume(name)
        assert [other.expect_content(BASIC_DELIVER).body for _ in range(3)] == [b"one", b"two", b"three"]
        other.ack(2)
    client.consume(name)
    again = [client.expect_content(BASIC_DELIVER) for _ in range(2)]
    assert [message.body for message in again] == [b"one", b"three"]
    assert [delivery(message.frame) for message in again] == [(1, True), (2, True)]
    client.ack(2, multiple=True)
    client.delete_queue(name)
