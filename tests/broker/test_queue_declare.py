"""Declaring, redeclaring, purging and deleting queues: rules, their order, and RabbitMQ's words (rabbit_amqqueue)."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from pamqp import commands

from tests.broker.conftest import Talk
from tests.support.behaviour import Behaviour
from tests.support.peer import Peer, Refusal, made, raw_frame

DURABLE, EXCLUSIVE, AUTO_DELETE = 2, 4, 8
Field = tuple[str, bytes]


def integer(value: int) -> bytes:
    return b"I" + struct.pack(">i", value)


def long(value: int) -> bytes:
    return b"l" + struct.pack(">q", value)


def text(value: str) -> bytes:
    return b"S" + struct.pack(">I", len(value.encode())) + value.encode()


QUORUM = ("x-queue-type", text("quorum"))
TTL = "x-message-ttl"


def declare(peer: Peer, name: str, *fields: Field, flags: int = EXCLUSIVE) -> str | Refusal:
    """queue.declare with fields of any type: the name in its answer, or why not."""
    table = b"".join(bytes([len(key)]) + key.encode() + raw for key, raw in fields)
    payload = struct.pack(">HHH", 50, 10, 0) + bytes([len(name)]) + name.encode() + bytes([flags])
    peer.send_bytes(raw_frame(1, 1, payload + struct.pack(">I", len(table)) + table))
    number, found = peer.read_method()
    if isinstance(found, commands.Queue.DeclareOk):
        return found.queue or ""
    assert isinstance(found, commands.Channel.Close), found
    assert (number, found.class_id, found.method_id) == (1, 50, 10)
    peer.send(commands.Channel.CloseOk())
    peer.open()
    return Refusal("channel", found.reply_code or 0, found.reply_text, (50, 10))


def failed(code: int, explanation: str) -> Refusal:
    names = {403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED"}
    return Refusal("channel", code, f"{names[code]} - {explanation}", (50, 10))


def locked(name: str) -> str:
    return (
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be originally declared on another "
        "connection or the exclusive property value does not match that of the original declaration."
    )


# -- names


def test_a_queue_without_a_name_gets_one(peer: Peer, server: Behaviour) -> None:
    names = {peer.declare(exclusive=True) for _ in range(10)}
    assert len(names) == 10
    for name in names:
        assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name)
    if server.takes_its_own_names:
        for name in names:
            assert peer.declare(name, exclusive=True) == name


def test_names_that_begin_with_amq_are_reserved(peer: Peer) -> None:
    assert declare(peer, "amq.mine") == failed(403, "queue name 'amq.mine' contains reserved prefix 'amq.*'")
    passive = made(commands.Queue.Declare, queue="amq.mine", passive=True)
    assert peer.refused(passive) == failed(404, "no queue 'amq.mine' in vhost '/'")


@pytest.mark.parametrize("name", ["x" * 255, "spaces and 'quotes'", "\u00fcml\u00e4ut\u2603", "a/b:c#*"])
def test_names_may_be_of_any_characters(peer: Peer, name: str) -> None:
    assert peer.declare(name, exclusive=True) == name
    peer.publish("", name, b"x")
    assert peer.purge(name) == 1


def test_line_ends_are_taken_out_of_names(peer: Peer, name: str) -> None:
    """As RabbitMQ does for queues and exchanges where they are declared and bound."""
    assert peer.declare(f"{name}\r\n", exclusive=True) == name
    peer.declare_exchange(f"\n{name}", "fanout", auto_delete=True)
    peer.bind(f"\r{name}", f"{name}\n")
    peer.publish(name, "", b"x")
    assert peer.purge(name) == 1


def test_an_empty_name_is_the_last_declared_queue(peer: Peer, name: str) -> None:
    for command in (
        made(commands.Queue.Bind, exchange="amq.direct", routing_key="x"),
        made(commands.Queue.Unbind, exchange="amq.direct", routing_key="x"),
        made(commands.Queue.Purge),
        made(commands.Queue.Delete),
        made(commands.Basic.Consume),
        made(commands.Basic.Get),
    ):
        found = peer.refused(command)
        assert (found.code, found.text) == (404, "NOT_FOUND - no previously declared queue")
        peer.open()
    peer.declare(name, exclusive=True)
    peer.bind("", "amq.direct")
    # With neither queue nor key named, the key is the queue's name; so in unbind.
    peer.publish("amq.direct", name, b"x")
    assert peer.purge("") == 1
    peer.call(made(commands.Queue.Unbind, exchange="amq.direct"), 1, commands.Queue.UnbindOk)
    peer.publish("amq.direct", name, b"x")
    assert peer.purge("") == 0
    # The shortcut is the channel's own, and passive declares have none.
    peer.open(2)
    assert peer.refused(made(commands.Queue.Purge), 2).code == 404
    passive = made(commands.Queue.Declare, passive=True)
    assert peer.refused(passive) == failed(404, "no queue '' in vhost '/'")


# -- declaring again


def test_a_passive_declare_looks_only(peer: Peer, name: str) -> None:
    passive = made(commands.Queue.Declare, queue=name, passive=True, durable=True)
    assert peer.refused(passive) == failed(404, f"no queue '{name}' in vhost '/'")
    peer.open()
    peer.declare(name, exclusive=True)
    peer.publish("", name, b"x")
    answer = peer.call(passive, 1, commands.Queue.DeclareOk)
    assert (answer.queue, answer.message_count, answer.consumer_count) == (name, 1, 0)


def test_counts_are_of_ready_messages_and_consumers(peer: Peer, name: str) -> None:
    peer.declare(name, exclusive=True)
    peer.call(made(commands.Basic.Qos, prefetch_count=1), 1, commands.Basic.QosOk)
    peer.call(made(commands.Basic.Consume, queue=name), 1, commands.Basic.ConsumeOk)
    for _ in range(3):
        peer.publish("", name, b"x")
    peer.given(commands.Basic.Deliver)
    answer = peer.call(made(commands.Queue.Declare, queue=name, exclusive=True), 1, commands.Queue.DeclareOk)
    assert (answer.message_count, answer.consumer_count) == (2, 1)


@pytest.mark.parametrize(
    ("first", "second", "which", "received", "current"),
    [
        (AUTO_DELETE, AUTO_DELETE | DURABLE, "durable", "true", "false"),
        (AUTO_DELETE, 0, "auto_delete", "false", "true"),
        (AUTO_DELETE, DURABLE, "durable", "true", "false"),
        (EXCLUSIVE, EXCLUSIVE | AUTO_DELETE, "auto_delete", "true", "false"),
    ],
)
def test_flags_have_to_be_the_same(
    peer: Peer, name: str, first: int, second: int, which: str, received: str, current: str
) -> None:
    assert declare(peer, name, flags=first) == name
    found = declare(peer, name, (TTL, integer(5)), flags=second)
    assert found == failed(
        406,
        f"inequivalent arg '{which}' for queue '{name}' in vhost '/': received '{received}' but current is '{current}'",
    )
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)


def test_an_exclusive_queue_is_never_durable(peer: Peer, name: str) -> None:
    assert declare(peer, name, flags=EXCLUSIVE) == name
    assert declare(peer, name, flags=EXCLUSIVE | DURABLE) == name


def test_an_exclusive_queue_belongs_to_its_connection(talk: Talk, peer: Peer, name: str) -> None:
    peer.declare(name, exclusive=True)
    peer.open(2)
    # Any channel of it, but not as a queue that is not exclusive.
    assert peer.declare(name, channel=2, exclusive=True) == name
    assert declare(peer, name, flags=0) == failed(405, locked(name))
    other = talk().connect().open()
    methods: list[Any] = [
        made(commands.Queue.Declare, queue=name),
        made(commands.Queue.Declare, queue=name, exclusive=True),
        made(commands.Queue.Declare, queue=name, passive=True),
        made(commands.Queue.Bind, queue=name, exchange="amq.direct", routing_key="x"),
        made(commands.Queue.Purge, queue=name),
        made(commands.Queue.Delete, queue=name),
        made(commands.Basic.Consume, queue=name),
        made(commands.Basic.Get, queue=name),
    ]
    for command in methods:
        found = other.refused(command)
        assert (found.code, found.text) == (405, f"RESOURCE_LOCKED - {locked(name)}")
        other.open()
    # To take away what is not bound is no error, but what is bound stays.
    unbind = made(commands.Queue.Unbind, queue=name, exchange="amq.direct", routing_key=name)
    other.call(unbind, 1, commands.Queue.UnbindOk)
    peer.bind(name, "amq.direct", name)
    assert other.refused(unbind).code == 405
    other.open()
    # Publishing to it is open to all.
    other.publish("", name, b"x")
    other.sync()
    assert peer.purge(name) == 1


def test_what_is_not_exclusive_cannot_become_it(peer: Peer, name: str) -> None:
    assert declare(peer, name, flags=AUTO_DELETE) == name
    assert declare(peer, name, flags=AUTO_DELETE | EXCLUSIVE) == failed(405, locked(name))
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        (
            [],
            [(TTL, integer(5000))],
            f"{TTL}: received the value '5000' of type 'signedint' but current is none",
        ),
        ([], [(TTL, long(5000))], f"{TTL}: received the value '5000' of type 'long' but current is none"),
        ([], [(TTL, b"b\5")], f"{TTL}: received the value '5' of type 'byte' but current is none"),
        ([], [(TTL, b"B\5")], f"{TTL}: received the value '5' of type 'unsignedbyte' but current is none"),
        ([], [(TTL, b"s\0\5")], f"{TTL}: received the value '5' of type 'short' but current is none"),
        ([], [(TTL, b"u\0\5")], f"{TTL}: received the value '5' of type 'unsignedshort' but current is none"),
        (
            [],
            [(TTL, b"i\0\0\0\5")],
            f"{TTL}: received the value '5' of type 'unsignedint' but current is none",
        ),
        ([], [(TTL, text("abc"))], f"{TTL}: received the value 'abc' of type 'longstr' but current is none"),
        ([(TTL, integer(5000))], [(TTL, integer(5001))], f"{TTL}: received '5001' but current is '5000'"),
        (
            [(TTL, integer(5000))],
            [],
            f"{TTL}: received none but current is the value '5000' of type 'signedint'",
        ),
        (
            [(TTL, integer(5000)), ("x-expires", integer(60000))],
            [("x-max-length", integer(1))],
            "x-expires: received none but current is the value '60000' of type 'signedint'",
        ),
        (
            [("x-dead-letter-exchange", text("a"))],
            [("x-dead-letter-exchange", text("b"))],
            "x-dead-letter-exchange: received 'b' but current is 'a'",
        ),
        ([(TTL, integer(5000))], [(TTL, long(5000))], None),
        ([(TTL, integer(5000))], [(TTL, b"s\x13\x88")], None),
        ([("x-unknown", text("a"))], [("x-unknown", text("b"))], None),
        ([("x-unknown", text("a"))], [], None),
        ([], [("x-queue-type", text("classic"))], None),
        ([("x-queue-type", text("classic"))], [], None),
    ],
)
def test_arguments_have_to_be_the_same(
    peer: Peer, name: str, before: list[Field], after: list[Field], difference: str | None
) -> None:
    assert declare(peer, name, *before) == name
    found = declare(peer, name, *after)
    if difference is None:
        assert found == name
        return
    which, _, rest = difference.partition(": ")
    assert found == failed(406, f"inequivalent arg '{which}' for queue '{name}' in vhost '/': {rest}")


# -- arguments


@pytest.mark.parametrize("which", [TTL, "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (integer(-1), "{value_negative,-1}"),
        (text("5"), '"expected integer, got longstr"'),
        (b"t\1", '"expected integer, got bool"'),
        (b"d" + struct.pack(">d", 5.0), '"expected integer, got double"'),
        (b"b\5", None),
        (integer(100), None),
    ],
)
def test_limits_are_integers(peer: Peer, name: str, which: str, value: bytes, reason: str | None) -> None:
    found = declare(peer, name, (which, value))
    if reason is None:
        assert found == name
    else:
        assert found == failed(406, f"invalid arg '{which}' for queue '{name}' in vhost '/': {reason}")


@pytest.mark.parametrize(
    ("which", "value", "reason"),
    [
        (TTL, long(315_360_000_001), "{value_too_large,315360000001}"),
        ("x-expires", long(315_360_000_001), "{value_too_large,315360000001}"),
        ("x-expires", integer(0), "{value_zero,0}"),
        ("x-max-priority", integer(256), "{max_value_exceeded,256}"),
        ("x-overflow", text("foo"), "invalid_overflow"),
        ("x-overflow", integer(5), "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", integer(5), "{unacceptable_type,signedint}"),
        ("x-queue-type", text("foo"), "\"unsupported queue type 'foo'\""),
        ("x-queue-type", integer(5), "{unacceptable_type,signedint}"),
    ],
)
def test_what_an_argument_cannot_be(peer: Peer, name: str, which: str, value: bytes, reason: str) -> None:
    expected = failed(406, f"invalid arg '{which}' for queue '{name}' in vhost '/': {reason}")
    assert declare(peer, name, (which, value)) == expected
    # Nothing was made.
    assert peer.refused(made(commands.Queue.Declare, queue=name, passive=True)).code == 404


def test_the_first_fault_in_rabbitmqs_order_is_named(peer: Peer, name: str) -> None:
    described = f"queue '{name}' in vhost '/'"
    found = declare(peer, name, (TTL, integer(-1)), ("x-expires", integer(0)))
    assert found == failed(406, f"invalid arg 'x-expires' for {described}: {{value_zero,0}}")
    found = declare(peer, name, ("x-dead-letter-routing-key", text("k")), (TTL, integer(-1)))
    assert found == failed(406, f"invalid arg '{TTL}' for {described}: {{value_negative,-1}}")


def test_a_dead_letter_exchange_is_a_string(peer: Peer, name: str) -> None:
    found = declare(peer, name, ("x-dead-letter-exchange", integer(5)))
    assert found == failed(
        406, f"invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue '{name}' in vhost '/'"
    )


@pytest.mark.parametrize("which", ["x-max-age", "x-quorum-initial-group-size"])
def test_arguments_of_another_queue_type_are_refused(peer: Peer, name: str, which: str) -> None:
    found = declare(peer, name, (which, integer(5)))
    assert found == failed(
        406, f"invalid arg '{which}' for queue '{name}' in vhost '/' of queue type rabbit_classic_queue"
    )


def test_a_delivery_limit_is_for_every_queue(peer: Peer, name: str, server: Behaviour) -> None:
    """Warren goes further than RabbitMQ, whose classic queues have none."""
    found = declare(peer, name, ("x-delivery-limit", integer(5)))
    if server.is_warren:
        assert found == name
    else:
        assert found == failed(
            406,
            f"invalid arg 'x-delivery-limit' for queue '{name}' in vhost '/' of queue type rabbit_classic_queue",
        )


# -- quorum queues: https://www.rabbitmq.com/docs/quorum-queues#feature-matrix


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (0, "non-durable"),
        (DURABLE | EXCLUSIVE, "exclusive-owner"),
        (EXCLUSIVE, "exclusive-owner"),
        (DURABLE | AUTO_DELETE, "auto-delete"),
    ],
)
def test_what_a_quorum_queue_cannot_be(peer: Peer, name: str, flags: int, what: str) -> None:
    found = declare(peer, name, QUORUM, flags=flags)
    assert found == failed(406, f"invalid property '{what}' for queue '{name}' in vhost '/'")


def test_a_quorum_queue_has_a_name(peer: Peer) -> None:
    text = "Cannot declare a server-named queue for type rabbit_quorum_queue"
    assert declare(peer, "", QUORUM, flags=DURABLE) == failed(406, text)
    text = "queue name 'amq.q' contains reserved prefix 'amq.*'"
    assert declare(peer, "amq.q", QUORUM, flags=DURABLE) == failed(403, text)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (("x-max-priority", integer(5)), " of queue type rabbit_quorum_queue"),
        (("x-queue-mode", text("lazy")), " of queue type rabbit_quorum_queue"),
        (("x-dead-letter-strategy", text("foo")), ": invalid_dlx_strategy"),
        (("x-delivery-limit", integer(-1)), None),
        (("x-dead-letter-strategy", text("at-least-once")), None),
        (("x-expires", integer(60_000)), None),
        (("x-unknown", integer(1)), None),
    ],
)
def test_arguments_of_a_quorum_queue(peer: Peer, name: str, field: Field, reason: str | None) -> None:
    found = declare(peer, name, QUORUM, field, flags=DURABLE)
    if reason is not None:
        assert found == failed(406, f"invalid arg '{field[0]}' for queue '{name}' in vhost '/'{reason}")
        return
    assert found == name
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)


def test_the_type_of_a_queue_stays(peer: Peer, name: str) -> None:
    assert declare(peer, name, QUORUM, flags=DURABLE) == name
    inequivalent = f"inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': received"
    assert declare(peer, name, flags=DURABLE) == failed(
        406, f"{inequivalent} none but current is the value 'quorum' of type 'longstr'"
    )
    assert declare(peer, name, ("x-queue-type", text("classic")), flags=DURABLE) == failed(
        406, f"{inequivalent} 'classic' but current is 'quorum'"
    )
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)


# -- purging and deleting


def test_purging_spares_what_is_unacknowledged(peer: Peer, name: str) -> None:
    peer.declare(name, exclusive=True)
    for _ in range(3):
        peer.publish("", name, b"x")
    peer.send(made(commands.Basic.Get, queue=name))
    peer.given(commands.Basic.GetOk)
    assert peer.purge(name) == 2
    peer.send(commands.Basic.Nack(1, False, True))
    assert peer.purge(name) == 1
    found = peer.refused(made(commands.Queue.Purge, queue="missing"))
    assert found == Refusal("channel", 404, "NOT_FOUND - no queue 'missing' in vhost '/'", (50, 30))


def test_deleting(peer: Peer, name: str) -> None:
    delete = made(commands.Queue.Delete, queue=name)
    assert peer.call(delete, 1, commands.Queue.DeleteOk).message_count == 0
    peer.declare(name)
    peer.publish("", name, b"x")
    found = peer.refused(made(commands.Queue.Delete, queue=name, if_empty=True))
    text = f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty"
    assert found == Refusal("channel", 406, text, (50, 40))
    peer.open()
    peer.call(made(commands.Basic.Consume, queue=name, consumer_tag="c"), 1, commands.Basic.ConsumeOk)
    peer.given(commands.Basic.Deliver)
    found = peer.refused(made(commands.Queue.Delete, queue=name, if_unused=True))
    text = f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use"
    assert found == Refusal("channel", 406, text, (50, 40))
    peer.open()
    # The channel took its consumer with it, and the message came back.
    unused = made(commands.Queue.Delete, queue=name, if_unused=True)
    assert peer.call(unused, 1, commands.Queue.DeleteOk).message_count == 1


def test_a_consumer_hears_that_its_queue_is_gone(talk: Talk, peer: Peer, name: str) -> None:
    other = talk().connect().open()
    peer.declare(name)
    peer.publish("", name, b"x")
    peer.call(made(commands.Basic.Consume, queue=name, consumer_tag="c"), 1, commands.Basic.ConsumeOk)
    peer.given(commands.Basic.Deliver)
    assert other.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk).message_count == 0
    cancelled = peer.expect(commands.Basic.Cancel)
    assert (cancelled.consumer_tag, cancelled.nowait) == ("c", True)
    # To acknowledge what vanished with it is no error.
    peer.send(commands.Basic.Ack(1))
    peer.sync()


def test_an_auto_delete_queue_goes_with_its_last_consumer(talk: Talk, peer: Peer, name: str) -> None:
    other = talk().connect().open()
    peer.declare(name, auto_delete=True)
    passive = made(commands.Queue.Declare, queue=name, passive=True)
    for _ in range(2):
        # Neither the end of a channel nor basic.get counts as use.
        peer.send(made(commands.Basic.Get, queue=name))
        peer.expect(commands.Basic.GetEmpty)
        peer.call(commands.Channel.Close(200, "", 0, 0), 1, commands.Channel.CloseOk)
        peer.open()
        other.call(passive, 1, commands.Queue.DeclareOk)
    peer.call(made(commands.Basic.Consume, queue=name, consumer_tag="a"), 1, commands.Basic.ConsumeOk)
    peer.call(made(commands.Basic.Consume, queue=name, consumer_tag="b"), 1, commands.Basic.ConsumeOk)
    peer.call(commands.Basic.Cancel("a"), 1, commands.Basic.CancelOk)
    other.call(passive, 1, commands.Queue.DeclareOk)
    peer.call(commands.Basic.Cancel("b"), 1, commands.Basic.CancelOk)
    assert peer.refused(passive).code == 404


def test_many_exclusive_queues_come_and_go(talk: Talk, name: str) -> None:
    peer = talk().connect().open()
    for number in range(50):
        peer.declare(f"{name}-{number}", exclusive=True)
    for number in range(0, 50, 2):
        peer.call(made(commands.Queue.Delete, queue=f"{name}-{number}"), 1, commands.Queue.DeleteOk)
    peer.abort()
    other = talk().connect().open()
    for number in range(50):
        command = made(commands.Queue.Declare, queue=f"{name}-{number}", exclusive=True)
        other.send(command)
        _, found = other.read_method()
        while isinstance(found, commands.Channel.Close):
            # The broker may not have noticed yet that the first connection is gone.
            assert found.reply_code == 405
            other.send(commands.Channel.CloseOk())
            other.open()
            other.send(command)
            _, found = other.read_method()
        assert isinstance(found, commands.Queue.DeclareOk)
