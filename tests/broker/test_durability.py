"""Durability over a clean stop and a crash: definitions, persistent messages and their state."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from pamqp.commands import Queue

from tests.support.blocking_client import Connection
from tests.support.broker_process import BrokerProcess
from tests.support.restarts import ENDS, PERSISTENT, RestartableSession, end, flags
from warren.broker.store.definitions.definitions_database import BindingRow, Definitions
from warren.wire import field_tables

# Durable exchanges, queues and messages


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("durable_exchange", [True, False])
@pytest.mark.parametrize("durable_queue", [True, False])
def test_exchanges_queues_messages_and_bindings_are_durable_by_their_own_flags(
    session: RestartableSession, durable_exchange: bool, durable_queue: bool, how: str
) -> None:
    session.channel.declare_exchange("x", durable=durable_exchange)
    session.channel.declare("q", durable=durable_queue)
    session.channel.bind("q", "x")
    session.publish("", b"persistent", exchange="x")
    session.publish("", b"transient", exchange="x", delivery_mode=1)
    end(session, how)
    channel = session.channel
    assert session.channel.exists("q") == durable_queue
    channel.declare_exchange("x", durable=durable_exchange)
    channel.declare("q", durable=durable_queue)
    assert channel.drain("q") == ([b"persistent"] if durable_queue else [])
    # A binding survives if its exchange and its queue do.
    channel.publish("", b"again", exchange="x")
    assert channel.drain("q") == ([b"again"] if durable_exchange and durable_queue else [])


@pytest.mark.parametrize("how", ENDS)
def test_definitions_survive_with_their_arguments(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare_exchange("alternate", durable=True)
    channel.declare_exchange("topic", "topic", durable=True, alternate_exchange="alternate")
    channel.declare_exchange("dlx", "direct", durable=True)
    arguments: dict[str, Any] = {"x_message_ttl": 60_000, "x_max_length": 2, "x_dead_letter_exchange": "dlx"}
    channel.declare("q", durable=True, **arguments)
    channel.declare("rest", durable=True)
    channel.declare("dead-letters", durable=True, auto_delete=True)
    channel.bind("q", "topic", "a.#")
    channel.bind("q", "topic", "*.b")
    channel.bind("rest", "alternate")
    channel.bind("dead-letters", "dlx", "a.1")
    end(session, how)
    channel = session.channel
    channel.declare("q", durable=True, **arguments)
    channel.declare_exchange("topic", "topic", durable=True, alternate_exchange="alternate")
    for key in ("a.1", "x.b", "a.2", "none"):
        channel.publish(key, key, exchange="topic")
    assert channel.drain("q") == [b"x.b", b"a.2"]
    assert channel.drain("rest") == [b"none"]
    (dead,) = [channel.get("dead-letters")]
    assert dead is not None
    assert dead.headers["x-death"][0]["reason"] == "maxlen"
    # Auto-delete survives: the queue is deleted with its last consumer.
    channel.consume("dead-letters", "tag")
    channel.cancel("tag")
    assert not session.channel.exists("dead-letters")


@pytest.mark.parametrize("how", ENDS)
def test_deleted_queues_and_bindings_do_not_come_back(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare_exchange("x", durable=True)
    channel.declare("q", durable=True)
    channel.declare("kept", durable=True)
    channel.bind("q", "x")
    channel.bind("kept", "x")
    session.publish("q", b"gone")
    channel.delete("q")
    channel.call(Queue.Unbind(queue="kept", exchange="x"), Queue.UnbindOk)
    end(session, how)
    assert not session.channel.exists("q")
    session.channel.publish("", b"unbound", exchange="x")
    assert session.channel.drain("kept") == []


def test_bindings_of_an_earlier_version_whose_arguments_are_in_several_orders_become_one(
    session: RestartableSession,
) -> None:
    channel = session.channel
    channel.declare("q", durable=True)
    channel.declare_exchange("x", "headers", durable=True)
    names = ("b", "x-match", "a")
    values: dict[str, field_tables.Value] = {"a": "1", "b": "2", "x-match": "all"}
    for order in itertools.permutations(names):
        raw = field_tables.encode({name: values[name] for name in order})
        row = BindingRow(b"/", b"x", b"q", False, b"", raw)
        session.broker.call(partial(definitions(session).put, row))
    session.publish("q", b"sync")
    session.restart()
    session.publish("", b"routed", exchange="x", headers={"a": "1", "b": "2"})
    assert session.channel.drain("q") == [b"sync", b"routed"]
    arguments: dict[str, Any] = {"a": "1", "b": "2", "x-match": "all"}
    session.channel.call(Queue.Unbind(queue="q", exchange="x", arguments=arguments), Queue.UnbindOk)
    for _ in range(2):
        session.publish("", b"unrouted", exchange="x", headers={"a": "1", "b": "2"})
        assert session.channel.drain("q") == []
        session.restart()


def definitions(session: RestartableSession) -> Definitions:
    declarations = session.broker.virtual_host().declarations
    assert declarations is not None
    assert declarations.definitions is not None
    return declarations.definitions


@pytest.mark.parametrize("how", ENDS)
def test_a_redeclared_queue_has_no_messages_of_the_deleted_one(session: RestartableSession, how: str) -> None:
    for generation in (b"1", b"2", b"3"):
        session.channel.declare("q", durable=True)
        session.publish("q", generation)
        if generation != b"3":
            session.channel.delete("q")
    end(session, how)
    assert session.channel.drain("q") == [b"3"]


def test_exclusive_queues_do_not_survive_a_crash(session: RestartableSession) -> None:
    session.channel.declare("q", durable=True, exclusive=True)
    session.publish("q", b"x")
    session.crash()
    assert not session.channel.exists("q")


# Messages


@pytest.mark.parametrize("how", ENDS)
def test_messages_survive_unchanged_and_in_order(session: RestartableSession, how: str) -> None:
    session.channel.declare("q", durable=True)
    bodies = [b"%d" % number * (number % 50) for number in range(500)] + [b"x" * 300_000]
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "headers": {"n": 1, "nested": {"list": [1, "two"]}},
        "correlation_id": "c",
        "message_id": "m",
    }
    session.publish("q", *bodies, **properties)
    end(session, how)
    found = [session.channel.get("q", no_ack=True) for _ in bodies]
    assert [message.body for message in found if message] == bodies
    assert found[0] is not None
    for name, value in properties.items():
        assert getattr(found[0].properties, name) == value
    assert (found[0].carrier.exchange, found[0].carrier.routing_key) == ("", "q")


@pytest.mark.parametrize("how", ENDS)
def test_acknowledged_messages_do_not_come_back(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare("q", durable=True)
    session.publish("q", b"1", b"2", b"3", b"4", b"5", b"6")
    for _ in range(5):
        assert channel.get("q") is not None
    channel.ack(1)
    channel.ack(3)
    channel.reject(4)
    assert channel.get("q", no_ack=True) is not None
    session.publish("q", b"7")
    end(session, how)
    assert session.channel.drain("q") == [b"2", b"5", b"7"]


def test_automatically_acknowledged_messages_do_not_come_back(session: RestartableSession) -> None:
    channel = session.channel
    channel.declare("q", durable=True)
    session.publish("q", b"waiting")
    channel.consume("q", "tag", no_ack=True)
    session.publish("q", b"straight")
    assert [message.body for message in channel.deliveries(2)] == [b"waiting", b"straight"]
    channel.cancel("tag")
    session.publish("q", b"left")
    session.crash()
    assert session.channel.drain("q") == [b"left"]


@pytest.mark.parametrize("how", ENDS)
def test_purged_messages_do_not_come_back(session: RestartableSession, how: str) -> None:
    session.channel.declare("q", durable=True)
    session.publish("q", b"1", b"2")
    assert session.channel.get("q") is not None
    assert session.channel.purge("q") == 1
    session.publish("q", b"3")
    end(session, how)
    assert session.channel.drain("q") == [b"1", b"3"]


def test_after_a_clean_stop_only_delivered_messages_are_marked_redelivered(
    session: RestartableSession,
) -> None:
    channel = session.channel
    channel.declare("q", durable=True)
    session.publish("q", b"unacknowledged", b"requeued", b"untouched")
    for _ in range(2):
        assert channel.get("q") is not None
    channel.nack(2)
    session.restart()
    expected = [(b"unacknowledged", True), (b"requeued", True), (b"untouched", False)]
    session.restart()
    assert flags(session.channel, "q") == expected


def test_after_a_crash_all_messages_are_marked_redelivered(session: RestartableSession) -> None:
    session.channel.declare("q", durable=True)
    session.publish("q", b"1", b"2")
    session.crash()
    session.publish("q", b"new")
    expected = [(b"1", True), (b"2", True), (b"new", False)]
    session.restart()
    # After a later clean stop they are still marked.
    session.restart()
    assert flags(session.channel, "q") == expected


@pytest.mark.parametrize("how", ENDS)
def test_requeued_messages_are_restored_in_order(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare("q", durable=True)
    session.publish("q", *[b"%d" % number for number in range(6)])
    for _ in range(4):
        assert channel.get("q") is not None
    channel.nack(3)
    channel.nack(1)
    end(session, how)
    assert session.channel.drain("q") == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("how", ENDS)
def test_sequences_are_not_used_again(session: RestartableSession, how: str) -> None:
    """With a sequence used twice, the acknowledgement of the first message would remove the second."""
    channel = session.channel
    channel.declare("q", durable=True)
    session.publish("q", b"1", b"2", b"3")
    assert channel.drain("q") == [b"1", b"2", b"3"]
    for generation in range(3):
        session.publish("q", b"marker")
        assert session.channel.drain("q") == [b"marker"]
        session.sync()
        end(session, how)
        assert session.channel.drain("q") == [], generation
    session.publish("q", b"4", b"5")
    end(session, how)
    assert session.channel.drain("q") == [b"4", b"5"]


@pytest.mark.parametrize("how", ENDS)
def test_a_fan_out_is_acknowledged_queue_by_queue(session: RestartableSession, how: str) -> None:
    channel = session.channel
    channel.declare_exchange("x", durable=True)
    for queue in "abc":
        channel.declare(queue, durable=True)
        channel.bind(queue, "x")
    channel.declare("memory")
    channel.bind("memory", "x")
    session.publish("", b"1", b"2", exchange="x")
    assert channel.drain("a") == [b"1", b"2"]
    assert channel.get("b", no_ack=True) is not None
    session.publish("b", b"3")
    end(session, how)
    assert {queue: session.channel.drain(queue) for queue in "abc"} == {
        "a": [],
        "b": [b"2", b"3"],
        "c": [b"1", b"2"],
    }


@pytest.mark.parametrize("how", ENDS)
def test_the_delivery_count_survives(session: RestartableSession, how: str) -> None:
    session.channel.declare("q", durable=True, x_queue_type="quorum", x_delivery_limit=2)
    session.publish("q", b"poison")
    for count in range(3):
        message = session.channel.get("q")
        assert message is not None
        assert message.headers.get("x-delivery-count", 0) == count
        session.channel.reject(message.tag, requeue=True)
        session.sync()
        end(session, how)
    assert session.channel.ready("q") == 0


def test_a_clean_stop_counts_as_one_redelivery(session: RestartableSession) -> None:
    """A message requeued by a closing connection is not delivered to the others, which close as well."""
    session.channel.declare("q", durable=True, x_queue_type="quorum", x_delivery_limit=3)
    consumers = [Connection(session.broker.url) for _ in range(6)]
    for consumer in consumers:
        consumer.channel().consume("q")
        consumer.channel().consume("q")
    session.publish("q", b"x")
    assert session.channel.state("q") == (0, 12)
    session.restart()
    for consumer in consumers:
        consumer.abort()
    message = session.channel.get("q")
    assert message is not None
    assert message.headers["x-delivery-count"] == 1


# A broker process


def test_a_killed_broker_process_keeps_its_confirmed_messages(broker: BrokerProcess) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        for number in range(200):
            channel.publish("q", b"%d" % number, **PERSISTENT)
        channel.settled(200)
        for _ in range(100):
            message = channel.get("q")
            assert message is not None
            channel.ack(message.tag)
        # The confirm of a later publish proves that the acknowledgements are on disk.
        channel.publish("q", b"200", **PERSISTENT)
        channel.settled_until(201)
    broker.kill()
    broker.start()
    with Connection(broker.url) as connection:
        assert flags(connection.channel(), "q") == [(b"%d" % number, True) for number in range(100, 201)]
    assert broker.stop() == 0
    broker.start()
    with Connection(broker.url) as connection:
        assert connection.channel().ready("q") == 0
