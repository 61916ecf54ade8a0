"""Attacks over AMQP by users of the broker."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from pamqp import base, commands

from tests.faults.attacks.attack import Target, attack
from tests.support.frames import (
    BASIC_PUBLISH,
    BODY,
    HEADER,
    QUEUE_BIND,
    QUEUE_DECLARE,
    frame,
    long,
    method,
    publish_frames,
    short,
)
from tests.support.raw_client import RawClient, encoded, made

QUEUES: Final = 2_000
MESSAGES: Final = 50_000
VALUES: Final = 20_000
FRAME_ROOM: Final = 131_072 - 8


def publish_with_headers(table: bytes, *, exchange: str = "", key: str = "") -> bytes:
    """Return the frames of an empty message with encoded headers."""
    head = struct.pack(">HHQH", 60, 0, 0, 0x2000) + long(table)
    return method(1, BASIC_PUBLISH, b"\0\0" + short(exchange) + short(key) + b"\0") + frame(HEADER, 1, head)


def answers(peer: RawClient, kind: type[base.Frame], count: int) -> None:
    """Read so many answers of a kind."""
    for _ in range(count):
        peer.expect(kind)


def send_all(
    peer: RawClient, methods: Sequence[base.Frame], answer: type[base.Frame], at_once: int = 500
) -> None:
    """Send methods and read their answers, some at once."""
    for start in range(0, len(methods), at_once):
        some = methods[start : start + at_once]
        peer.send_bytes(b"".join(encoded(each) for each in some))
        answers(peer, answer, len(some))


def declare_many(peer: RawClient, count: int, **fields: Any) -> list[str]:
    names = [f"attack.{number}" for number in range(count)]
    declared = [made(commands.Queue.Declare, queue=name, **fields) for name in names]
    send_all(peer, declared, commands.Queue.DeclareOk)
    return names


def fill(peer: RawClient, queue: str, count: int = MESSAGES) -> None:
    """Publish small messages to a queue."""
    message = publish_frames(1, "", queue, b"x")
    for start in range(0, count, 1000):
        peer.send_bytes(message * min(1000, count - start))
    peer.sync()


# -- names and strings


def publish_past_wildcards(target: Target, binding_keys: list[str]) -> None:
    """Bind a queue to a topic exchange with these keys, and publish messages with a long key."""
    with target.connect() as peer:
        peer.declare_exchange("attack", "topic")
        queue = peer.declare(exclusive=True)
        bound = [
            made(commands.Queue.Bind, queue=queue, exchange="attack", routing_key=key) for key in binding_keys
        ]
        send_all(peer, bound, commands.Queue.BindOk)
        for _ in range(20):
            peer.publish("attack", "a." * 126 + "c")
        peer.sync()
        peer.call(made(commands.Exchange.Delete, exchange="attack"), 1, commands.Exchange.DeleteOk)
        peer.close()


@attack("amqp", "name")
def binding_keys_of_many_wildcards(target: Target) -> None:
    publish_past_wildcards(target, ["#." * 126 + "b", "*.#." * 62 + "b", "#." * 126 + "#"])


@attack("amqp", "name")
def many_long_binding_keys_with_wildcards(target: Target) -> None:
    publish_past_wildcards(target, [f"#.{'*.' * (number % 100)}a{number}.#" for number in range(QUEUES)])


@attack("amqp", "header")
def many_long_keys_in_cc_meet_many_wildcards(target: Target) -> None:
    keys = b"".join(b"S" + long(b"a." * 120 + b"%d" % number) for number in range(500))
    with target.connect() as peer:
        peer.declare_exchange("attack", "topic")
        queue = peer.declare(exclusive=True)
        bound = [
            made(
                commands.Queue.Bind,
                queue=queue,
                exchange="attack",
                routing_key=f"#.{'*.' * (number % 100)}a{number}.#",
            )
            for number in range(QUEUES)
        ]
        send_all(peer, bound, commands.Queue.BindOk)
        for _ in range(3):
            peer.send_bytes(publish_with_headers(short("CC") + b"A" + long(keys), exchange="attack"))
        peer.sync()
        peer.call(made(commands.Exchange.Delete, exchange="attack"), 1, commands.Exchange.DeleteOk)
        peer.close()


@attack("amqp", "name")
def many_queues_with_long_names(target: Target) -> None:
    with target.connect() as peer:
        names = [f"{number:0>255}" for number in range(QUEUES)]
        send_all(
            peer,
            [made(commands.Queue.Declare, queue=name, exclusive=True) for name in names],
            commands.Queue.DeclareOk,
        )
        peer.close()


@attack("amqp", "string")
def consumer_tags_of_full_length(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        consumers = [
            made(commands.Basic.Consume, queue=queue, consumer_tag=f"{number:0>255}")
            for number in range(QUEUES)
        ]
        send_all(peer, consumers, commands.Basic.ConsumeOk)
        peer.close()


@attack("amqp", "header")
def one_message_is_copied_to_very_many_keys(target: Target) -> None:
    item = b"S" + long(b"nobody")
    keys = item * (100_000 // len(item))
    with target.connect() as peer:
        for name in ("CC", "BCC"):
            for _ in range(10):
                peer.send_bytes(publish_with_headers(short(name) + b"A" + long(keys)))
        peer.sync()
        peer.close()


@attack("amqp", "header")
def one_message_is_copied_to_one_queue_very_often(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare("a", exclusive=True)
        item = b"S" + long(b"a")
        peer.send_bytes(publish_with_headers(short("CC") + b"A" + long(item * (100_000 // len(item)))))
        peer.sync()
        assert peer.purge(queue) == 1
        peer.close()


@attack("amqp", "header")
def a_headers_exchange_compares_very_many_values(target: Target) -> None:
    fields = b"".join(short(f"h{number}") + b"I" + struct.pack(">i", number) for number in range(4_000))
    with target.connect() as peer:
        peer.declare_exchange("attack", "headers")
        queue = peer.declare(exclusive=True)
        for number in range(100):
            table = short("n") + b"I" + struct.pack(">i", number) + fields
            arguments = b"\0\0" + short(queue) + short("attack") + short("") + b"\0" + long(table)
            peer.send_bytes(method(1, QUEUE_BIND, arguments))
            peer.expect(commands.Queue.BindOk)
        for _ in range(10):
            peer.send_bytes(publish_with_headers(fields, exchange="attack"))
        peer.sync()
        peer.call(made(commands.Exchange.Delete, exchange="attack"), 1, commands.Exchange.DeleteOk)
        peer.close()


@attack("amqp", "header")
def headers_of_very_many_values(target: Target) -> None:
    field = short("k") + b"V"
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        for _ in range(20):
            peer.send_bytes(publish_with_headers(field * (FRAME_ROOM // 2 // len(field)), key=queue))
        peer.sync()
        peer.purge(queue)
        peer.close()


@attack("amqp", "header")
def dead_letters_with_a_forged_history(target: Target) -> None:
    death = b"F" + long(
        short("queue")
        + b"S"
        + long(b"q")
        + short("reason")
        + b"S"
        + long(b"expired")
        + short("count")
        + b"l"
        + bytes(8)
    )
    table = short("x-death") + b"A" + long(death * (120_000 // len(death)))
    with target.connect() as peer:
        end = peer.declare("attack.end", exclusive=True)
        arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": end}
        queue = peer.declare(exclusive=True, arguments=arguments)
        for _ in range(20):
            peer.send_bytes(publish_with_headers(table, key=queue))
        peer.sync()
        peer.close()


# -- tables


@attack("amqp", "table")
def arguments_of_very_many_values(target: Target) -> None:
    field = short("") + b"V"
    arguments = b"\0\0" + short("") + b"\2" + long(field * (100_000 // len(field)))
    with target.connect() as peer:
        peer.send_bytes(method(1, QUEUE_DECLARE, arguments))
        assert peer.refusal().code == 502


@attack("amqp", "table")
def deep_arguments(target: Target) -> None:
    table = b""
    while len(table) < 100_000:
        table = short("") + b"F" + long(table)
    with target.connect() as peer:
        peer.send_bytes(method(1, QUEUE_DECLARE, b"\0\0" + short("") + b"\2" + long(table)))
        assert peer.refusal().code == 502


@attack("amqp", "table")
def deep_headers(target: Target) -> None:
    table = b""
    while len(table) < 100_000:
        table = short("") + b"F" + long(table)
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        peer.send_bytes(publish_with_headers(table, key=queue))
        peer.send(made(commands.Basic.Get, queue=queue))
        peer.close()


# -- bodies


@attack("amqp", "body")
def a_body_in_frames_of_one_byte(target: Target) -> None:
    size = 50_000
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        head = method(1, BASIC_PUBLISH, b"\0\0" + short("") + short(queue) + b"\0")
        head += frame(HEADER, 1, struct.pack(">HHQH", 60, 0, size, 0))
        peer.send_bytes(head + frame(BODY, 1, b"x") * size)
        peer.sync()
        assert peer.purge(queue) == 1
        peer.close()


@attack("amqp", "body")
def empty_body_frames_without_an_end(target: Target) -> None:
    with target.connect() as peer:
        head = method(1, BASIC_PUBLISH, b"\0\0" + short("") + short("none") + b"\0")
        head += frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 10, 0))
        peer.send_bytes(head + frame(BODY, 1, b"") * 100_000)


@attack("amqp", "body")
def bodies_that_begin_and_do_not_end(target: Target) -> None:
    with target.connect() as peer:
        for channel in range(2, 500):
            peer.open(channel)
            head = method(channel, BASIC_PUBLISH, b"\0\0" + short("") + short("none") + b"\0")
            head += frame(HEADER, channel, struct.pack(">HHQH", 60, 0, 16_000_000, 0))
            peer.send_bytes(head + frame(BODY, channel, bytes(10_000)))


# -- counts


@attack("amqp", "count")
def all_channels_are_opened(target: Target) -> None:
    with target.connect() as peer:
        opened = b"".join(encoded(commands.Channel.Open(), channel) for channel in range(2, 2048))
        peer.send_bytes(opened)
        answers(peer, commands.Channel.OpenOk, 2046)
        peer.close()


@attack("amqp", "count")
def a_connection_with_many_exclusive_queues_is_dropped(target: Target) -> None:
    with target.connect() as peer:
        declare_many(peer, QUEUES, exclusive=True)


@attack("amqp", "count")
def an_exchange_with_many_bindings_is_deleted(target: Target) -> None:
    with target.connect() as peer:
        peer.declare_exchange("attack", "topic")
        queue = peer.declare(exclusive=True)
        bound = [
            made(commands.Queue.Bind, queue=queue, exchange="attack", routing_key=f"k.{number}.*")
            for number in range(10_000)
        ]
        send_all(peer, bound, commands.Queue.BindOk)
        peer.call(made(commands.Exchange.Delete, exchange="attack"), 1, commands.Exchange.DeleteOk)
        peer.close()


@attack("amqp", "count")
def a_queue_with_many_bindings_is_deleted(target: Target) -> None:
    with target.connect() as peer:
        peer.declare("attack.bound", durable=True)
        bound = [
            made(commands.Queue.Bind, queue="attack.bound", exchange="amq.direct", routing_key=f"k{number}")
            for number in range(10_000)
        ]
        send_all(peer, bound, commands.Queue.BindOk)
        peer.delete_queue("attack.bound")
        peer.close()


@attack("amqp", "count")
def a_message_reaches_very_many_queues(target: Target) -> None:
    with target.connect() as peer:
        names = declare_many(peer, QUEUES, exclusive=True)
        bound = [made(commands.Queue.Bind, queue=name, exchange="amq.fanout") for name in names]
        send_all(peer, bound, commands.Queue.BindOk)
        for _ in range(5):
            peer.publish("amq.fanout", "", b"x" * 100)
        peer.sync()
        peer.close()


@attack("amqp", "count")
def a_deep_queue_is_purged_and_deleted(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare("attack.deep", durable=True)
        fill(peer, queue)
        assert peer.purge(queue) == MESSAGES
        fill(peer, queue)
        peer.delete_queue(queue)
        peer.close()


@attack("amqp", "count")
def all_messages_of_a_deep_queue_expire_at_once(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare("attack.deep", durable=True)
        end = peer.declare("attack.end", durable=True)
        fill(peer, queue)
        target.api.put(
            "policies/%2f/attack",
            {
                "pattern": r"^attack\.deep$",
                "definition": {"max-length": 1, "dead-letter-exchange": "", "dead-letter-routing-key": end},
            },
        )
        while peer.declare_queue(end, durable=True)[1] < MESSAGES - 1:
            peer.sync()
        target.api.ask("DELETE", "policies/%2f/attack")
        for name in (queue, end):
            peer.delete_queue(name)
        peer.close()


@attack("amqp", "count")
def very_many_deliveries_are_given_back_at_once(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        fill(peer, queue)
        peer.consume(queue)
        for _ in range(MESSAGES):
            peer.receive_message(commands.Basic.Deliver)
        peer.call(made(commands.Basic.Cancel, consumer_tag="tag"), 1, commands.Basic.CancelOk)
        peer.send(made(commands.Basic.Nack, delivery_tag=0, multiple=True, requeue=True))
        peer.sync()
        assert peer.purge(queue) == MESSAGES
        peer.close()


@attack("amqp", "count")
def a_transaction_of_very_many_publishes(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        peer.call(commands.Tx.Select(), 1, commands.Tx.SelectOk)
        fill(peer, queue)
        peer.call(commands.Tx.Commit(), 1, commands.Tx.CommitOk)
        assert peer.purge(queue) == MESSAGES
        fill(peer, queue)
        peer.call(commands.Tx.Rollback(), 1, commands.Tx.RollbackOk)
        peer.close()


@attack("amqp", "count")
def consumers_with_falling_priorities_wait_for_the_role_of_one(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare(auto_delete=True, arguments={"x-single-active-consumer": True})
        consume_with_priorities(peer, queue, range(10_000, 0, -1))
        peer.close()


@attack("amqp", "count")
def consumers_with_rising_priorities_share_a_limit_of_one_message(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        peer.call(commands.Basic.Qos(prefetch_count=1, global_=True), 1, commands.Basic.QosOk)
        consume_with_priorities(peer, queue, range(10_000))
        peer.send_bytes(publish_frames(1, "", queue, b"x") * 50)
        for number in range(50):
            peer.receive_message(commands.Basic.Deliver)
            peer.send(commands.Basic.Ack(number + 1))
        peer.close()


def consume_with_priorities(peer: RawClient, queue: str, priorities: range) -> None:
    consumers = [
        made(
            commands.Basic.Consume,
            queue=queue,
            consumer_tag=f"{priority}",
            arguments={"x-priority": priority},
        )
        for priority in priorities
    ]
    send_all(peer, consumers, commands.Basic.ConsumeOk)


@attack("amqp", "count")
def consumers_of_one_queue_without_messages(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare(exclusive=True)
        consumers = [
            made(commands.Basic.Consume, queue=queue, consumer_tag=f"{number}") for number in range(10_000)
        ]
        send_all(peer, consumers, commands.Basic.ConsumeOk)
        peer.send_bytes(publish_frames(1, "", queue, b"x") * 1000)
        for _ in range(1000):
            peer.receive_message(commands.Basic.Deliver)
        peer.close()


@attack("amqp", "count")
def publishes_that_come_back_to_who_does_not_read(target: Target) -> None:
    with target.connect() as peer:
        returned = publish_frames(1, "", "nobody", b"x" * 1000, mandatory=True)
        for _ in range(50):
            peer.send_bytes(returned * 100)


# -- numbers


@attack("amqp", "number")
def numbers_at_their_limits(target: Target) -> None:
    largest = 2**63 - 1
    for name in (
        "x-max-length",
        "x-max-length-bytes",
        "x-message-ttl",
        "x-expires",
        "x-max-priority",
        "x-delivery-limit",
        "x-stream-max-segment-size-bytes",
        "x-consumer-timeout",
        "x-quorum-initial-group-size",
    ):
        for value in (largest, -largest - 1, -1, 0, 2**31, 2**32):
            with target.connect() as peer:
                arguments = short(name) + b"l" + struct.pack(">q", value)
                peer.send_bytes(
                    method(1, QUEUE_DECLARE, b"\0\0" + short("attack.q") + b"\4" + long(arguments))
                )
                _, found = peer.read_method()
                assert isinstance(found, (commands.Queue.DeclareOk, commands.Channel.Close)), found


@attack("amqp", "number")
def tags_that_were_never_given(target: Target) -> None:
    for tag in (1, 2**31, 2**63 - 1, 2**63, 2**64 - 1):
        for multiple in (False, True):
            with target.connect() as peer:
                peer.ack(tag, multiple=multiple)
                assert peer.refusal().code == 406
