"""Declare, redeclare, purge and delete queues: the rules, their order, and RabbitMQ's texts (rabbit_amqqueue)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pamqp import commands

from tests.broker.conftest import RawConnect
from tests.support.queue_arguments import (
    AUTO_DELETE,
    DURABLE,
    EXCLUSIVE,
    TTL,
    Field,
    declare,
    failed,
    integer,
    locked,
    long,
    text,
)
from tests.support.raw_client import RawClient, Refusal, made

# -- names


def test_the_server_names_a_queue_without_a_name(peer: RawClient) -> None:
    names = {peer.declare(exclusive=True) for _ in range(10)}
    assert len(names) == 10
    for name in names:
        assert re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", name)
    # Such a name belongs to the server.
    name = names.pop()
    refused = failed(403, f"queue name '{name}' contains reserved prefix 'amq.*'")
    assert declare(peer, name, flags=EXCLUSIVE) == refused


def test_names_with_the_prefix_amq_are_reserved(peer: RawClient) -> None:
    assert declare(peer, "amq.mine") == failed(403, "queue name 'amq.mine' contains reserved prefix 'amq.*'")
    passive = made(commands.Queue.Declare, queue="amq.mine", passive=True)
    assert peer.refused(passive) == failed(404, "no queue 'amq.mine' in vhost '/'")


@pytest.mark.parametrize("name", ["x" * 255, "spaces and 'quotes'", "\u00fcml\u00e4ut\u2603", "a/b:c#*"])
def test_names_may_have_any_characters(peer: RawClient, name: str) -> None:
    assert peer.declare(name, exclusive=True) == name
    peer.publish("", name, b"x")
    assert peer.purge(name) == 1


def test_line_ends_are_removed_from_names(peer: RawClient, name: str) -> None:
    """Remove line ends as RabbitMQ does: on declare, bind and delete of queues and exchanges, nowhere else."""
    assert peer.declare(f"{name}\r\n", exclusive=True) == name
    peer.declare_exchange(f"\n{name}", "fanout", auto_delete=True)
    peer.bind(f"\r{name}", f"{name}\n")
    peer.publish(name, "", b"x")
    assert peer.purge(name) == 1
    for method in (commands.Queue.Purge, commands.Basic.Get, commands.Basic.Consume):
        found = peer.refused(made(method, queue=f"{name}\n"))
        assert (found.code, found.text) == (404, f"NOT_FOUND - no queue '{name}\n' in vhost '/'")
        peer.open()
    reply = peer.call(made(commands.Queue.Delete, queue=f"{name}\r"), 1, commands.Queue.DeleteOk)
    assert reply.message_count == 0
    assert peer.refused(made(commands.Queue.Purge, queue=name)).code == 404


def test_an_empty_name_means_the_last_declared_queue(peer: RawClient, name: str) -> None:
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


def put(peer: RawClient, name: str, count: int) -> None:
    """Publish with a confirm. RabbitMQ may report a queue's state before it processes unconfirmed publishes."""
    peer.open(2)
    peer.call(made(commands.Confirm.Select), 2, commands.Confirm.SelectOk)
    for _ in range(count):
        peer.publish("", name, b"x", channel=2)
    while peer.expect(commands.Basic.Ack).delivery_tag != count:
        pass


def test_a_passive_declare_makes_nothing(peer: RawClient, name: str) -> None:
    passive = made(commands.Queue.Declare, queue=name, passive=True, durable=True)
    assert peer.refused(passive) == failed(404, f"no queue '{name}' in vhost '/'")
    peer.open()
    peer.declare(name, exclusive=True)
    put(peer, name, 1)
    answer = peer.call(passive, 1, commands.Queue.DeclareOk)
    assert (answer.queue, answer.message_count, answer.consumer_count) == (name, 1, 0)


def test_declare_ok_counts_ready_messages_and_consumers(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    put(peer, name, 3)
    peer.call(made(commands.Basic.Qos, prefetch_count=1), 1, commands.Basic.QosOk)
    peer.call(made(commands.Basic.Consume, queue=name), 1, commands.Basic.ConsumeOk)
    peer.receive_message(commands.Basic.Deliver)
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
def test_a_redeclaration_needs_the_same_flags(
    peer: RawClient, name: str, first: int, second: int, which: str, received: str, current: str
) -> None:
    assert declare(peer, name, flags=first) == name
    found = declare(peer, name, (TTL, integer(5)), flags=second)
    assert found == failed(
        406,
        f"inequivalent arg '{which}' for queue '{name}' in vhost '/': received '{received}' but current is '{current}'",
    )
    peer.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk)


def test_an_exclusive_queue_is_never_durable(peer: RawClient, name: str) -> None:
    assert declare(peer, name, flags=EXCLUSIVE) == name
    assert declare(peer, name, flags=EXCLUSIVE | DURABLE) == name


def test_an_exclusive_queue_belongs_to_its_connection(
    raw_connect: RawConnect, peer: RawClient, name: str
) -> None:
    peer.declare(name, exclusive=True)
    peer.open(2)
    # Any channel of it, but not as a queue that is not exclusive.
    assert peer.declare(name, channel=2, exclusive=True) == name
    assert declare(peer, name, flags=0) == failed(405, locked(name))
    other = raw_connect().connect().open()
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


def test_a_redeclaration_cannot_make_a_queue_exclusive(peer: RawClient, name: str) -> None:
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
def test_a_redeclaration_needs_the_same_arguments(
    peer: RawClient, name: str, before: list[Field], after: list[Field], difference: str | None
) -> None:
    assert declare(peer, name, *before) == name
    found = declare(peer, name, *after)
    if difference is None:
        assert found == name
        return
    which, _, rest = difference.partition(": ")
    assert found == failed(406, f"inequivalent arg '{which}' for queue '{name}' in vhost '/': {rest}")


# -- purging and deleting


def test_a_purge_keeps_unacknowledged_messages(peer: RawClient, name: str) -> None:
    peer.declare(name, exclusive=True)
    for _ in range(3):
        peer.publish("", name, b"x")
    peer.send(made(commands.Basic.Get, queue=name))
    peer.receive_message(commands.Basic.GetOk)
    assert peer.purge(name) == 2
    peer.send(commands.Basic.Nack(1, False, True))
    assert peer.purge(name) == 1
    found = peer.refused(made(commands.Queue.Purge, queue="missing"))
    assert found == Refusal("channel", 404, "NOT_FOUND - no queue 'missing' in vhost '/'", (50, 30))


def test_delete_with_if_unused_and_if_empty(peer: RawClient, name: str) -> None:
    delete = made(commands.Queue.Delete, queue=name)
    assert peer.call(delete, 1, commands.Queue.DeleteOk).message_count == 0
    peer.declare(name)
    peer.publish("", name, b"x")
    found = peer.refused(made(commands.Queue.Delete, queue=name, if_empty=True))
    text = f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty"
    assert found == Refusal("channel", 406, text, (50, 40))
    peer.open()
    peer.call(made(commands.Basic.Consume, queue=name, consumer_tag="c"), 1, commands.Basic.ConsumeOk)
    peer.receive_message(commands.Basic.Deliver)
    found = peer.refused(made(commands.Queue.Delete, queue=name, if_unused=True))
    text = f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use"
    assert found == Refusal("channel", 406, text, (50, 40))
    peer.open()
    # The channel took its consumer with it, and the message came back.
    unused = made(commands.Queue.Delete, queue=name, if_unused=True)
    assert peer.call(unused, 1, commands.Queue.DeleteOk).message_count == 1


def test_a_consumer_is_cancelled_when_its_queue_is_deleted(
    raw_connect: RawConnect, peer: RawClient, name: str
) -> None:
    other = raw_connect().connect().open()
    peer.declare(name)
    peer.publish("", name, b"x")
    peer.call(made(commands.Basic.Consume, queue=name, consumer_tag="c"), 1, commands.Basic.ConsumeOk)
    peer.receive_message(commands.Basic.Deliver)
    assert other.call(made(commands.Queue.Delete, queue=name), 1, commands.Queue.DeleteOk).message_count == 0
    cancelled = peer.expect(commands.Basic.Cancel)
    assert (cancelled.consumer_tag, cancelled.nowait) == ("c", True)
    # To acknowledge what vanished with it is no error.
    peer.send(commands.Basic.Ack(1))
    peer.sync()


def test_an_auto_delete_queue_is_deleted_with_its_last_consumer(
    raw_connect: RawConnect, peer: RawClient, name: str
) -> None:
    other = raw_connect().connect().open()
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


def test_many_exclusive_queues_are_declared_and_deleted(raw_connect: RawConnect, name: str) -> None:
    peer = raw_connect().connect().open()
    for number in range(50):
        peer.declare(f"{name}-{number}", exclusive=True)
    for number in range(0, 50, 2):
        peer.call(made(commands.Queue.Delete, queue=f"{name}-{number}"), 1, commands.Queue.DeleteOk)
    peer.abort()
    other = raw_connect().connect().open()
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
