"""Written scripts for behaviour that needs several actions in the right order, which random scripts do not find."""

from __future__ import annotations

from collections.abc import Mapping

from pamqp import commands
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx

from tests.conformance.steps import CallMethod, CloseConnection, Publish, Script, Settle, WaitSeconds
from tests.support.raw_client import made


def queue(
    name: str,
    client: int = 0,
    *,
    durable: bool = False,
    exclusive: bool = False,
    **arguments: object,
) -> CallMethod:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    command = made(Queue.Declare, queue=name, durable=durable, exclusive=exclusive, arguments=table)
    return CallMethod(client, 1, command)


def exchange(name: str, kind: str = "fanout", **fields: object) -> CallMethod:
    return CallMethod(0, 1, made(Exchange.Declare, exchange=name, exchange_type=kind, **fields))


def bind(name: str, source: str, key: str = "", **arguments: object) -> CallMethod:
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    return CallMethod(0, 1, made(Queue.Bind, queue=name, exchange=source, routing_key=key, arguments=table))


def bind_exchanges(destination: str, source: str, key: str = "") -> CallMethod:
    return CallMethod(0, 1, made(Exchange.Bind, destination=destination, source=source, routing_key=key))


def publish_to_queue(
    name: str, body: bytes, client: int = 0, channel: int = 1, **properties: object
) -> Publish:
    return publish("", name, body, client, channel, **properties)


def publish(
    source: str, key: str, body: bytes, client: int = 0, channel: int = 1, **properties: object
) -> Publish:
    fields = commands.Basic.Properties()
    for name, value in properties.items():
        setattr(fields, name, value)
    return Publish(client, channel, source, key, body, fields, mandatory=True)


def consume(
    name: str,
    tag: str,
    client: int = 1,
    channel: int = 1,
    *,
    no_ack: bool = False,
    exclusive: bool = False,
    **arguments: object,
) -> CallMethod:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    fields = {"no_ack": no_ack, "exclusive": exclusive, "arguments": table}
    return CallMethod(client, channel, made(Basic.Consume, queue=name, consumer_tag=tag, **fields))


def get(name: str, client: int = 0, channel: int = 2, *, no_ack: bool = False) -> CallMethod:
    return CallMethod(client, channel, made(Basic.Get, queue=name, no_ack=no_ack))


def qos(count: int, client: int = 1, channel: int = 1, *, shared: bool = False) -> CallMethod:
    return CallMethod(client, channel, Basic.Qos(prefetch_count=count, global_=shared))


CONFIRMS = CallMethod(0, 1, Confirm.Select())
SELECT, COMMIT, ROLLBACK = (
    CallMethod(0, 2, Tx.Select()),
    CallMethod(0, 2, Tx.Commit()),
    CallMethod(0, 2, Tx.Rollback()),
)
RECOVER = CallMethod(1, 1, Basic.Recover(requeue=True))

QUEUES = ["q1", "q2", "q3", "q4"]
EXCHANGES = ["x1", "x2", "x3"]

TTL_MS = 2000
"""Milliseconds of a message's lifetime, in which RabbitMQ must show that it is still there."""

SCRIPTS: Mapping[str, Script] = {
    "a rejected message goes round, and its history counts": [
        queue("q1", dead_letter_exchange="", dead_letter_routing_key="q2"),
        queue("q2", message_ttl=TTL_MS, dead_letter_exchange="", dead_letter_routing_key="q1"),
        CONFIRMS,
        publish_to_queue("q1", b"again", headers={"mine": 1}, message_id="m", delivery_mode=2),
        get("q1"),
        Settle(0, 2, "reject", 0),
        WaitSeconds(TTL_MS / 1000 + 0.5),
        get("q1"),
        Settle(0, 2, "nack", 1),
        WaitSeconds(TTL_MS / 1000 + 0.5),
        get("q1"),
        Settle(0, 2, "ack", 2),
    ],
    "what expires in a circle ends": [
        queue("q1", message_ttl=TTL_MS, dead_letter_exchange="", dead_letter_routing_key="q2"),
        queue("q2", message_ttl=TTL_MS, dead_letter_exchange="", dead_letter_routing_key="q3"),
        queue("q3", message_ttl=TTL_MS, dead_letter_exchange="", dead_letter_routing_key="q1"),
        CONFIRMS,
        publish_to_queue("q1", b"circle"),
        WaitSeconds(3 * TTL_MS / 1000 + 1),
    ],
    "a dead letter keeps its keys, and loses BCC": [
        exchange("x1"),
        queue("q1", max_length=1, dead_letter_exchange="x2"),
        exchange("x2", "topic"),
        queue("q2"),
        queue("q3"),
        bind("q2", "x2", "*.copy"),
        bind("q3", "x2", "*.blind"),
        bind("q1", "x1"),
        publish("x1", "a.b", b"1", headers={"CC": ["a.copy"], "BCC": ["a.blind"]}, expiration="60000"),
        publish("x1", "a.b", b"2"),
        get("q2"),
        get("q3"),
    ],
    "an alternate exchange of an alternate exchange": [
        exchange("x3"),
        exchange("x2", "direct", arguments={"alternate-exchange": "x3"}),
        exchange("x1", "direct", arguments={"alternate-exchange": "x2"}),
        queue("q1"),
        queue("q2"),
        CONFIRMS,
        publish("x1", "k", b"nowhere"),
        bind("q1", "x2", "k"),
        bind("q2", "x3", ""),
        publish("x1", "k", b"second"),
        publish("x1", "other", b"third"),
        CallMethod(0, 1, made(Exchange.Delete, exchange="x3")),
        publish("x1", "other", b"gone"),
        get("q1"),
        get("q2"),
    ],
    "exchanges that lead to one another": [
        exchange("x1", "topic"),
        exchange("x2", "fanout"),
        exchange("x3", "direct"),
        bind_exchanges("x2", "x1", "a.#"),
        bind_exchanges("x3", "x2"),
        bind_exchanges("x1", "x3", "a.b"),
        queue("q1"),
        bind("q1", "x3", "a.b"),
        bind("q1", "x1", "#.b"),
        CONFIRMS,
        publish("x1", "a.b", b"round"),
        publish("x3", "a.b", b"from the middle"),
        publish("x2", "z", b"nowhere"),
        get("q1"),
        get("q1"),
        get("q1"),
    ],
    "prefetch of each consumer, and of the channel": [
        queue("q1"),
        qos(3),
        consume("q1", "a"),
        consume("q1", "b"),
        qos(5, shared=True),
        *(publish_to_queue("q1", b"%d" % number) for number in range(10)),
        Settle(1, 1, "ack", 0),
        Settle(1, 1, "ack", 2, multiple=True),
        qos(0, shared=True),
        RECOVER,
    ],
    "a consumer's priority, and its end": [
        queue("q1"),
        qos(1),
        consume("q1", "low", priority=-5),
        consume("q1", "high", priority=5),
        publish_to_queue("q1", b"1"),
        publish_to_queue("q1", b"2"),
        publish_to_queue("q1", b"3"),
        CallMethod(1, 1, Basic.Cancel("high")),
        Settle(1, 1, "ack", 0),
        Settle(1, 1, "nack", 1, requeue=True),
        CloseConnection(1),
        get("q1"),
    ],
    "a single active consumer hands over": [
        queue("q1", single_active_consumer=True),
        consume("q1", "first", 0),
        consume("q1", "second", 1),
        publish_to_queue("q1", b"1"),
        publish_to_queue("q1", b"2"),
        CallMethod(0, 1, Basic.Cancel("first")),
        publish_to_queue("q1", b"3"),
        Settle(0, 1, "nack", 0, requeue=True),
        CloseConnection(0),
    ],
    "priorities, each first in, first out": [
        queue("q1", max_priority=5, max_length=4, dead_letter_exchange="", dead_letter_routing_key="q2"),
        queue("q2"),
        *(
            publish_to_queue("q1", b"%d" % number, priority=priority)
            for number, priority in enumerate((1, 9, 0, 5, 3, 1))
        ),
        get("q1"),
        Settle(0, 2, "reject", 0, requeue=True),
        get("q1"),
        get("q1"),
        get("q1"),
        get("q2"),
        get("q2"),
    ],
    "a transaction of publishes and acknowledgements": [
        queue("q1"),
        queue("q2"),
        publish_to_queue("q1", b"1"),
        publish_to_queue("q1", b"2"),
        SELECT,
        get("q1"),
        Settle(0, 2, "ack", 0),
        publish_to_queue("q2", b"kept", channel=2),
        publish("", "nobody", b"returned", channel=2),
        COMMIT,
        get("q1"),
        Settle(0, 2, "nack", 1, requeue=True),
        publish_to_queue("q2", b"not kept", channel=2),
        ROLLBACK,
        Settle(0, 2, "reject", 1, requeue=True),
        COMMIT,
        get("q1"),
        ROLLBACK,
        CallMethod(0, 2, commands.Channel.Close(200, "bye", 0, 0)),
    ],
    "an exclusive queue and its owner": [
        queue("q1", exclusive=True),
        get("q1", client=1),
        consume("q1", "c", client=1),
        queue("q1", client=1),
        CallMethod(1, 1, made(Queue.Delete, queue="q1")),
        CallMethod(1, 1, made(Queue.Purge, queue="q1")),
        queue("q1"),
        publish_to_queue("q1", b"from outside", client=1),
        CloseConnection(0, gracefully=False),
        queue("q1", client=1),
    ],
    "queues and exchanges that go when nobody needs them": [
        exchange("x1", "direct", auto_delete=True),
        CallMethod(0, 1, made(Queue.Declare, queue="q1", auto_delete=True)),
        bind("q1", "x1", "k"),
        get("q1"),
        consume("q1", "c"),
        publish_to_queue("q1", b"1"),
        CallMethod(1, 1, Basic.Cancel("c")),
        Settle(1, 1, "ack", 0),
        publish("x1", "k", b"nowhere"),
    ],
    "an unused queue expires, with its messages": [
        queue("q1", expires=60_000, dead_letter_exchange="", dead_letter_routing_key="q2"),
        queue("q2"),
        publish_to_queue("q1", b"1"),
        queue("q1", expires=60_000),
        queue("q1", expires=50_000),
        queue("q1"),
    ],
    "limits of both kinds": [
        queue("q1", max_length_bytes=10, overflow="reject-publish"),
        queue("q2", max_length=2, overflow="drop-head"),
        CONFIRMS,
        publish_to_queue("q1", b"12345678"),
        publish_to_queue("q1", b"123"),
        publish_to_queue("q1", b"12"),
        get("q1"),
        publish_to_queue("q1", b"1234567890"),
        publish_to_queue("q2", b"1"),
        publish_to_queue("q2", b"2"),
        publish_to_queue("q2", b"3"),
        consume("q2", "c"),
        publish_to_queue("q2", b"4"),
        RECOVER,
        publish_to_queue("q2", b"5"),
    ],
    "headers of every kind of match": [
        exchange("x1", "headers"),
        queue("q1"),
        queue("q2"),
        queue("q3"),
        queue("q4"),
        bind("q1", "x1", x_match="all", a=1, b="two"),
        bind("q2", "x1", x_match="any", a=1, b="two"),
        bind("q3", "x1", x_match="any-with-x", x_a=1),
        bind("q4", "x1", x_match="all-with-x", x_a=1, a=1),
        bind("q4", "x1", x_match="some", a=1),
        publish("x1", "", b"1", headers={"a": 1, "b": "two"}),
        publish("x1", "", b"2", headers={"a": 1, "x-a": 1}),
        publish("x1", "", b"3", headers={"b": "two"}),
        publish("x1", "", b"4", headers={}),
        publish("x1", "", b"5", headers={"a": True}),
    ],
    "messages come back to where they were": [
        queue("q1"),
        *(publish_to_queue("q1", b"%d" % number) for number in range(6)),
        get("q1"),
        get("q1"),
        get("q1"),
        get("q1"),
        Settle(0, 2, "nack", 2, requeue=True),
        Settle(0, 2, "nack", 0, requeue=True),
        get("q1"),
        get("q1"),
        get("q1"),
        CallMethod(0, 2, commands.Channel.Close(200, "bye", 0, 0)),
        get("q1", no_ack=True),
        get("q1", no_ack=True),
        consume("q1", "all", no_ack=True),
    ],
    "names that the server makes": [
        CallMethod(0, 1, made(Queue.Declare, queue="", exclusive=True)),
        CallMethod(0, 1, made(Queue.Bind, queue="", exchange="amq.topic", routing_key="a.*")),
        publish("amq.topic", "a.b", b"1"),
        CallMethod(0, 1, made(Basic.Get, queue="")),
        CallMethod(0, 1, made(Basic.Consume, queue="", consumer_tag="")),
        publish("amq.topic", "a.b", b"2"),
        CallMethod(0, 2, made(Basic.Get, queue="")),
        CallMethod(0, 1, made(Queue.Declare, queue="amq.mine")),
        CallMethod(0, 1, made(Exchange.Declare, exchange="amq.mine", exchange_type="direct")),
        CallMethod(0, 1, made(Exchange.Declare, exchange="x1", exchange_type="x-nonsense")),
    ],
    "a confirm channel and a transactional one": [
        CONFIRMS,
        CONFIRMS,
        CallMethod(0, 1, Tx.Select()),
        SELECT,
        CallMethod(0, 2, Confirm.Select()),
        COMMIT,
        queue("q1"),
        CONFIRMS,
        CallMethod(0, 1, made(Queue.Delete, queue="q1", nowait=True)),
        publish_to_queue("q1", b"1"),
        publish("x3", "k", b"2"),
        publish_to_queue("q1", b"3"),
    ],
    "the first of several arguments that differ": [
        queue("q1", single_active_consumer=True, expires=60_000),
        queue("q1", max_priority=3, expires=60_000),
        queue("q1", single_active_consumer=True, max_length=3),
        queue("q1", expires=60_000, max_priority=300, overflow="drop-head"),
        queue("q1", expires=60_000, overflow="drop-head", queue_mode="lazy"),
        queue("q1", expires=60_000, queue_mode="lazy", queue_version=2),
        queue("q2", max_priority=3, overflow="drop-head", max_length_bytes=3),
        queue("q2"),
    ],
    "a full queue's dead letter comes behind the message itself": [
        exchange("x1"),
        queue("q1"),
        queue("q2", max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="x1"),
        bind("q2", "x1"),
        bind("q1", "x1"),
        CONFIRMS,
        publish("x1", "k", b"1"),
        publish("x1", "k", b"2"),
        consume("q1", "c", no_ack=True),
    ],
    "what a quorum queue cannot be": [
        queue("q3", queue_type="quorum"),
        queue("q3", durable=True, exclusive=True, queue_type="quorum"),
        queue("q3", durable=True, queue_type="quorum", max_priority=3),
        CallMethod(0, 1, made(Queue.Declare, queue="", durable=True, arguments={"x-queue-type": "quorum"})),
    ],
}
"""By what they are about."""
