"""Firehose: copies of published and delivered messages in `amq.rabbitmq.trace`, field by field as RabbitMQ sends them."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic, Tx

from tests.support.blocking_client import Channel, Message
from tests.support.frames import BODY, HEADER, frame
from tests.support.operator_cli import Operator
from tests.support.raw_client import RawClient, encoded, made
from warren.wire.properties import decode

SENT_AT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def traced(operator: Operator, channel: Channel) -> Iterator[str]:
    """Turn tracing on; yield a queue that gets all trace messages."""
    queue = channel.declare(exclusive=True)
    channel.bind(queue, "amq.rabbitmq.trace", "#")
    operator("trace_on")
    yield queue
    operator("trace_off")


def trace_messages(channel: Channel, queue: str, count: int) -> list[Message]:
    """Return the next trace messages, in the order of their routing keys."""
    channel.call(Basic.Consume(queue=queue, consumer_tag="trace", no_ack=True), Basic.ConsumeOk)
    found: list[Message] = []
    while len(found) < count:
        event = channel.next()
        if (
            isinstance(event, Message)
            and isinstance(event.carrier, Basic.Deliver)
            and event.consumer == "trace"
        ):
            found.append(event)
    channel.cancel("trace")
    return sorted(found, key=lambda message: str(message.carrier.routing_key))


def fields(message: Message) -> dict[str, tuple[str, object]]:
    """Return the headers of a trace message with their types, without what differs from run to run."""
    found = decode(message.header).headers
    assert found.keys() >= {"node", "connection"}
    return {
        name: (each.kind, each.value) for name, each in found.items() if name not in ("node", "connection")
    }


def test_a_publish_and_its_delivery_are_traced(channel: Channel, traced: str) -> None:
    work = channel.declare(exclusive=True)
    channel.publish(
        work,
        b"hello",
        headers={"CC": ["nowhere"], "n": 3},
        content_type="text/plain",
        delivery_mode=1,
        priority=4,
        message_id="m1",
        timestamp=SENT_AT,
    )
    channel.get(work)

    delivered, published = trace_messages(channel, traced, 2)

    # RabbitMQ's default exchange routes to any name, whether or not there is a queue.
    keys = ("A", [work, "nowhere"])
    common = {
        "exchange_name": ("S", ""),
        "routing_keys": keys,
        "properties": (
            "F",
            {
                "headers": {"CC": ["nowhere"], "n": 3},
                "content_type": "text/plain",
                "delivery_mode": 1,
                "priority": 4,
                "message_id": "m1",
                "timestamp": int(SENT_AT.timestamp()),
            },
        ),
        "vhost": ("S", "/"),
        "channel": ("I", channel.number),
        "user": ("S", "guest"),
    }
    assert published.carrier.routing_key == "publish."
    assert delivered.carrier.routing_key == f"deliver.{work}"
    assert fields(published) == {**common, "routed_queues": keys}
    assert fields(delivered) == {**common, "redelivered": ("I", 0)}
    assert published.body == delivered.body == b"hello"
    assert set(decode(published.header)) == {"headers"}


def test_the_trace_names_the_connection(channel: Channel, traced: str, operator: Operator) -> None:
    channel.publish("no-such-queue", b"")

    (published,) = trace_messages(channel, traced, 1)

    names = {row["name"] for row in operator.table("list_connections", "name")}
    assert published.headers["connection"] in names
    assert published.headers["routed_queues"] == ["no-such-queue"]


def test_the_trace_of_a_publish_names_its_queues(channel: Channel, traced: str, name: str) -> None:
    work = channel.declare(exclusive=True)
    channel.declare_exchange(name, "fanout", auto_delete=True)
    channel.publish("key", b"", exchange=name)
    channel.bind(work, name)
    channel.publish("key", b"", exchange=name)

    first, second = trace_messages(channel, traced, 2)

    assert first.carrier.routing_key == second.carrier.routing_key == f"publish.{name}"
    assert [first.headers["routed_queues"], second.headers["routed_queues"]] == [[], [work]]


def test_every_delivery_to_a_consumer_is_traced_and_redeliveries_say_so(
    channel: Channel, traced: str
) -> None:
    work = channel.declare(exclusive=True)
    other = channel.connection.channel()
    other.call(Basic.Consume(queue=work, consumer_tag="c"), Basic.ConsumeOk)
    for body in (b"1", b"2"):
        channel.publish(work, body)
    first, _ = other.deliveries(2)
    other.send(Basic.Reject(delivery_tag=first.tag, requeue=True))
    other.deliveries(1)

    found = trace_messages(channel, traced, 5)

    assert [(each.headers["redelivered"], each.body) for each in found[:3]] == [
        (0, b"1"),
        (0, b"2"),
        (1, b"1"),
    ]
    assert [each.body for each in found[3:]] == [b"1", b"2"]


def test_a_transaction_is_traced_at_its_publishes(channel: Channel, traced: str) -> None:
    work = channel.declare(exclusive=True)
    other = channel.connection.channel()
    other.call(Tx.Select(), Tx.SelectOk)
    other.publish(work, b"pending")

    (published,) = trace_messages(channel, traced, 1)

    assert published.body == b"pending"
    assert published.headers["routed_queues"] == [work]


def test_nothing_is_traced_while_tracing_is_off(channel: Channel, traced: str, operator: Operator) -> None:
    work = channel.declare(exclusive=True)
    operator("trace_off")
    channel.publish(work, b"untraced")
    channel.get(work)
    operator("trace_on")
    channel.publish(work, b"traced")
    (published,) = trace_messages(channel, traced, 1)
    assert published.body == b"traced"


def test_the_virtual_host_shows_whether_it_is_traced(traced: str, operator: Operator) -> None:
    assert {row["name"]: row["tracing"] for row in operator.table("list_vhosts", "name", "tracing")}[
        "/"
    ] is True
    operator("trace_off")
    assert {row["name"]: row["tracing"] for row in operator.table("list_vhosts", "name", "tracing")}[
        "/"
    ] is False


def test_a_timestamp_that_has_no_signed_type_is_traced(
    operator: Operator, channel: Channel, traced: str
) -> None:
    with RawClient(operator.url) as peer:
        peer.connect().open()
        work = peer.declare(exclusive=True)
        head = struct.pack(">HHQH", 60, 0, 1, 0x0040) + b"\xff" * 8
        publish = encoded(made(Basic.Publish, exchange="", routing_key=work))
        peer.send_bytes(publish + frame(HEADER, 1, head) + frame(BODY, 1, b"x"))
        peer.send(made(Basic.Get, queue=work, no_ack=True))
        peer.expect_content((60, 71))

    for message in trace_messages(channel, traced, 2):
        kind, properties = fields(message)["properties"]
        assert (kind, properties) == ("F", {"timestamp": -1})


def test_clients_cannot_publish_to_the_trace_exchange(channel: Channel) -> None:
    channel.publish("x", b"", exchange="amq.rabbitmq.trace")
    assert channel.closed().code == 403
