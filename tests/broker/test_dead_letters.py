"""Dead-lettering: reasons, targets, and messages that cannot be dead-lettered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp.commands import Basic, Queue, Tx

from tests.broker.conftest import Connect
from tests.support.blocking_client import Channel, Connection
from tests.support.broker_behaviour import Behaviour
from tests.support.dead_letters import arrived, deaths, dying, reasons
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.queue_assertions import holds
from tests.support.restarts import RestartableSession
from warren.broker import BrokerConfig

# -- the reasons


def test_a_rejected_message_is_dead_lettered(
    channel: Channel, server: Behaviour, dead_letter_queue: str
) -> None:
    queue = dying(channel, dead_letter_queue)
    for body in (b"rejected", b"nacked", b"nacked too"):
        channel.publish(queue, body)
        assert channel.get(queue) is not None
    channel.reject(1)
    channel.nack(3, multiple=True, requeue=False)
    for body in (b"rejected", b"nacked", b"nacked too"):
        message = arrived(channel, dead_letter_queue)
        assert message.body == body
        assert reasons(message) == [(queue, "rejected", 1)]
        assert server.may_mark_rejected_dead_letters or not message.redelivered


def test_an_expired_message_is_dead_lettered(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue, x_message_ttl=1)
    channel.publish(queue, b"x")
    assert reasons(arrived(channel, dead_letter_queue)) == [(queue, "expired", 1)]


def test_a_message_over_the_length_limit_is_dead_lettered(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue, x_max_length=1)
    for body in (b"1", b"2", b"3"):
        channel.publish(queue, body)
    for body in (b"1", b"2"):
        message = arrived(channel, dead_letter_queue)
        assert message.body == body
        assert reasons(message) == [(queue, "maxlen", 1)]
    assert channel.drain(queue) == [b"3"]


def test_a_message_over_the_delivery_limit_is_dead_lettered(
    channel: Channel, dead_letter_queue: str, name: str
) -> None:
    channel.declare(
        name,
        durable=True,
        x_queue_type="quorum",
        x_delivery_limit=2,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead_letter_queue,
    )
    channel.confirm()
    channel.publish(name, b"poison")
    channel.settled(1)
    for count in range(3):
        wait_until(lambda: channel.ready(name) == 1, "the message is back")
        message = channel.get(name)
        assert message is not None
        assert message.headers.get("x-delivery-count", 0) == count
        assert message.redelivered == (count > 0)
        channel.reject(message.tag, requeue=True)
    message = arrived(channel, dead_letter_queue)
    assert reasons(message) == [(name, "delivery_limit", 1)]
    channel.delete(name)


RETURNS: dict[str, Callable[[Channel, int], object]] = {
    "nack": lambda channel, tag: channel.nack(tag),
    "recover": lambda channel, tag: channel.call(Basic.Recover(requeue=True), Basic.RecoverOk),
    "reject": lambda channel, tag: channel.reject(tag, requeue=True),
    "close": lambda channel, tag: channel.close(),
}


@pytest.mark.parametrize(
    ("how", "in_transaction"),
    [*((how, False) for how in RETURNS), ("nack", True), ("reject", True)],
)
def test_a_failure_counts_against_the_delivery_limit_and_a_return_does_not(
    connect: Connect, server: Behaviour, name: str, how: str, in_transaction: bool
) -> None:
    connection = connect()
    keeper = connection.channel()
    keeper.declare(name, durable=True, x_queue_type="quorum", x_delivery_limit=1)
    keeper.confirm()
    keeper.publish(name, b"x")
    keeper.settled(1)
    counts = how in ("reject", "close") or not server.counts_returns_apart
    for returns in range(2 if counts else 5):
        wait_until(lambda: keeper.ready(name) == 1, "the message is back")
        channel = connection.channel()
        if in_transaction:
            channel.call(Tx.Select(), Tx.SelectOk)
        message = channel.get(name)
        assert message is not None
        headers = dict.fromkeys(["x-acquired-count"] if server.counts_returns_apart else [], returns)
        headers |= dict.fromkeys(["x-delivery-count"] if counts else [], returns)
        # RabbitMQ 3.10 sends a count of 0 with the first delivery by basic.get.
        assert {key: value for key, value in message.headers.items() if value} == (headers if returns else {})
        RETURNS[how](channel, message.tag)
        if in_transaction:
            channel.call(Tx.Commit(), Tx.CommitOk)
    if counts:
        wait_until(lambda: keeper.state(name) == (0, 0), "the message is dropped")
    else:
        wait_until(lambda: keeper.ready(name) == 1, "the message is back")
    assert keeper.delete(name) == (0 if counts else 1)


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_both_counts_outlive_a_restart(session: RestartableSession, how: str) -> None:
    session.channel.declare("q", durable=True, x_queue_type="quorum")
    session.publish("q", b"x")
    for settle in (RETURNS["nack"], RETURNS["reject"], RETURNS["nack"]):
        message = session.channel.get("q")
        assert message is not None
        settle(session.channel, message.tag)
    session.sync()
    getattr(session, how)()
    message = session.channel.get("q")
    assert message is not None
    assert message.headers == {"x-acquired-count": 3, "x-delivery-count": 1}


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"x_queue_type": "quorum"}, 20),
        ({"x_queue_type": "quorum", "x_delivery_limit": 0}, 0),
        ({"x_delivery_limit": 3}, 3),
    ],
)
def test_delivery_limits_of_each_queue_type(timed: Channel, arguments: dict[str, Any], limit: int) -> None:
    dead_letter_queue = timed.declare(exclusive=True)
    queue = timed.declare(
        "limited",
        durable=True,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead_letter_queue,
        **arguments,
    )
    timed.publish(queue, b"poison")
    for count in range(limit + 1):
        holds(timed, dead_letter_queue, 0)
        message = timed.get(queue)
        assert message is not None
        assert message.headers.get("x-delivery-count", 0) == count
        timed.reject(message.tag, requeue=True)
    assert (timed.ready(queue), timed.ready(dead_letter_queue)) == (0, 1)


@pytest.mark.parametrize("arguments", [{}, {"x_queue_type": "quorum", "x_delivery_limit": -1}])
def test_without_a_delivery_limit(timed: Channel, arguments: dict[str, Any]) -> None:
    queue = timed.declare("unlimited", durable=True, **arguments)
    timed.publish(queue, b"x")
    for _ in range(30):
        message = timed.get(queue)
        assert message is not None
        timed.reject(message.tag, requeue=True)
    holds(timed, queue, 1)


def test_a_lost_connection_counts_as_a_requeue(inprocess: InProcessBroker) -> None:
    """One requeue for each lost connection, however many channels it had."""
    with Connection(inprocess.url) as keeper:
        observer = keeper.channel()
        observer.declare("limited", durable=True, x_delivery_limit=5)
        observer.publish("limited", b"x")
        for count in (1, 2):
            with Connection(inprocess.url) as connection:
                for _ in range(3):
                    channel = connection.channel()
                    channel.consume("limited")
                assert connection.channels[1].deliveries(1)
            message = observer.get("limited")
            assert message is not None
            assert message.headers["x-delivery-count"] == 2 * count - 1
            observer.reject(message.tag, requeue=True)


# -- routing keys


def test_the_routing_key_is_kept_or_overridden(channel: Channel, name: str) -> None:
    channel.declare_exchange(name, "topic")
    dead_letter_queue = channel.declare(exclusive=True)
    channel.bind(dead_letter_queue, name, "#")
    kept = channel.declare(exclusive=True, x_dead_letter_exchange=name, x_max_length=0)
    changed = channel.declare(
        exclusive=True, x_dead_letter_exchange=name, x_dead_letter_routing_key="other", x_max_length=0
    )
    for queue, key in ((kept, kept), (changed, "other")):
        channel.publish(queue, b"x")
        dead = arrived(channel, dead_letter_queue)
        assert (dead.carrier.exchange, dead.carrier.routing_key) == (name, key)
        assert deaths(dead)[0]["routing-keys"] == [queue]
    channel.delete_exchange(name)


@pytest.mark.parametrize("override", [None, "other"])
def test_cc_and_bcc(channel: Channel, server: Behaviour, name: str, override: str | None) -> None:
    channel.declare_exchange(name)
    dead_letter_queue = channel.declare(exclusive=True)
    channel.bind(dead_letter_queue, name)
    arguments: dict[str, Any] = {"x_dead_letter_exchange": name, "x_max_length": 0}
    if override is not None:
        arguments["x_dead_letter_routing_key"] = override
    queue = channel.declare(exclusive=True, **arguments)
    channel.publish(queue, b"x", headers={"CC": ["cc1", "cc2"], "BCC": ["bcc"], "other": 1})
    dead = arrived(channel, dead_letter_queue)
    assert deaths(dead)[0]["routing-keys"] == [queue, "cc1", "cc2"]
    assert "BCC" not in dead.headers
    removed = override is not None and server.removes_cc
    assert dead.headers.get("CC") == (None if removed else ["cc1", "cc2"])
    assert dead.headers["other"] == 1
    channel.delete_exchange(name)


# -- where nothing is


def test_a_missing_dead_letter_exchange_drops_the_message(channel: Channel, name: str) -> None:
    plans: list[dict[str, Any]] = [
        {},
        {"x_dead_letter_exchange": name},
        {"x_dead_letter_exchange": "amq.direct"},
    ]
    for arguments in plans:
        queue = channel.declare(exclusive=True, **arguments)
        channel.publish(queue, b"x")
        message = channel.get(queue)
        assert message is not None
        channel.reject(message.tag)
        assert channel.state(queue) == (0, 0)


def test_the_dead_letter_exchange_may_be_declared_later(channel: Channel, name: str) -> None:
    queue = channel.declare(exclusive=True, x_dead_letter_exchange=name)
    dead_letter_queue = channel.declare(exclusive=True)
    channel.declare_exchange(name)
    channel.bind(dead_letter_queue, name)
    channel.publish(queue, b"x")
    message = channel.get(queue)
    assert message is not None
    channel.reject(message.tag)
    assert arrived(channel, dead_letter_queue).body == b"x"
    channel.delete_exchange(name)


def test_a_full_target_rejects_its_copy(channel: Channel, name: str) -> None:
    channel.declare_exchange(name)
    full = channel.declare(exclusive=True, x_max_length=1, x_overflow="reject-publish")
    free = channel.declare(exclusive=True)
    for target in (full, free):
        channel.bind(target, name)
    queue = channel.declare(exclusive=True, x_dead_letter_exchange=name, x_max_length=0)
    for body in (b"1", b"2"):
        channel.publish(queue, body)
    wait_until(lambda: channel.ready(free) == 2, "both are dead-lettered")
    # By this answer it has sent the second to both: a queue of RabbitMQ's sends to one after the other.
    assert channel.get(queue) is None
    assert channel.drain(full) == [b"1"]
    channel.delete_exchange(name)


def test_deletion_and_purge_dead_letter_nothing(channel: Channel, dead_letter_queue: str) -> None:
    queue = dying(channel, dead_letter_queue)
    channel.publish(queue, b"purged")
    assert channel.purge(queue) == 1
    channel.publish(queue, b"deleted")
    assert channel.delete(queue) == 1
    holds(channel, dead_letter_queue, 0)


# -- at least once


def strict(channel: Channel, queue: str, exchange: str, **arguments: Any) -> str:
    return channel.declare(
        queue,
        durable=True,
        x_queue_type="quorum",
        x_dead_letter_exchange=exchange,
        x_dead_letter_strategy="at-least-once",
        x_overflow="reject-publish",
        **arguments,
    )


def test_at_least_once_keeps_unroutable_dead_letters(timed: Channel, inprocess: InProcessBroker) -> None:
    strict(timed, "work", "dlx", x_max_length=2)
    for body in (b"1", b"2"):
        timed.publish("work", body)
        message = timed.get("work")
        assert message is not None
        timed.reject(message.tag)
    inprocess.advance(60)
    # Kept aside: not ready, but in the way of what would be too much.
    assert timed.ready("work") == 0
    timed.confirm()
    timed.publish("work", b"3")
    assert timed.settled(1) == [False]
    timed.declare_exchange("dlx")
    dead_letter_queue = timed.declare(exclusive=True)
    timed.bind(dead_letter_queue, "dlx")
    inprocess.advance(2)
    for body in (b"1", b"2"):
        dead = arrived(timed, dead_letter_queue)
        assert dead.body == body
        assert reasons(dead) == [("work", "rejected", 1)]
    timed.publish("work", b"4")
    assert timed.drain("work") == [b"4"]


def test_a_purge_removes_dead_letters_that_wait(channel: Channel, server: Behaviour, name: str) -> None:
    strict(channel, name, "missing", x_message_ttl=1)
    channel.confirm()
    for body in (b"1", b"2", b"3"):
        channel.publish(name, body)
    assert channel.settled(3) == [True] * 3
    wait_until(lambda: channel.ready(name) == 0, "the messages have expired")
    purged = [channel.purge(name)]

    def all_are_purged() -> bool:
        purged.append(channel.purge(name))
        return sum(purged) >= 3

    if server.is_4_3 or server.is_warren:
        # RabbitMQ hands them to its dead letter worker after their expiry, maybe one by one.
        wait_until(all_are_purged, "the dead letters are purged")
        assert sum(purged) == 3
    else:
        assert purged == [0], "earlier versions do not count them"
    assert channel.purge(name) == 0
    channel.delete(name)


def test_dead_letters_that_wait_keep_a_queue_from_being_deleted_if_empty(
    timed: Channel, inprocess: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    strict(timed, "work", "missing", x_message_ttl=200, x_max_length=5)
    timed.confirm()
    for number in range(7):
        timed.publish("work", b"%d" % number)
    assert timed.settled(7) == [True] * 5 + [False] * 2
    inprocess.advance(1)
    assert timed.state("work") == (0, 0)
    queue = inprocess.virtual_host().queues[b"work"]
    assert inprocess.call(lambda: (queue.held_back_count(), queue.held_back_bytes())) == (5, 5)
    other = timed.connection.channel()
    other.send(Queue.Delete(queue="work", if_empty=True))
    assert other.closed().text == "PRECONDITION_FAILED - queue 'work' in vhost '/' not empty"
    del timed.connection.channels[other.number]
    assert timed.delete("work") == 0
    assert "event=dead_letter.deleted_with_queue queue='work' messages=5" in caplog.text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by_http", [False, True])
def test_dead_letters_that_wait_count_as_messages_and_are_not_lost_unseen(
    by_http: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        assert broker.broker is not None
        api = HttpApi(f"http://{broker.broker.management_addresses[0]}")
        path = "queues/%2F/work"
        strict(channel, "work", "missing", x_message_ttl=200, x_max_length=5)
        channel.confirm()
        for _ in range(12):
            channel.publish("work", b"four")
        assert channel.settled(12) == [True] * 5 + [False] * 7
        broker.advance(1)
        # As in RabbitMQ 4.3: declare-ok counts the ready messages, the listings count all.
        assert channel.state("work") == (0, 0)
        listed = api.get(path)
        assert {name: listed[name] for name in listed if name in HELD_BACK} == HELD_BACK
        # Totals are sampled from time to time.
        wait_until(lambda: api.get("overview")["queue_totals"]["messages"] == 5, "the totals have it")
        assert api.get("vhosts/%2F")["messages"] == 5
        if by_http:
            answer = api.ask("DELETE", f"{path}?if-empty=true")
            assert (answer.status, answer.body["reason"]) == (400, "queue 'work' in vhost '/' not empty")
            assert api.ask("DELETE", f"{path}/contents").status == 204
        else:
            other = connection.channel()
            other.send(Queue.Delete(queue="work", if_empty=True))
            assert other.closed().text == "PRECONDITION_FAILED - queue 'work' in vhost '/' not empty"
            del connection.channels[other.number]
            assert channel.purge("work") == 5
        assert "event=dead_letter.purged queue='work' messages=5" in caplog.text
        assert api.get(path)["messages"] == 0
        channel.publish("work", b"four")
        channel.settled_until(13)
        broker.advance(1)
        if by_http:
            assert api.ask("DELETE", path).status == 204
        else:
            channel.delete("work")
        assert "event=dead_letter.deleted_with_queue queue='work' messages=1" in caplog.text


HELD_BACK = {
    "messages": 5,
    "messages_ready": 0,
    "messages_unacknowledged": 0,
    "messages_dlx": 5,
    "messages_persistent": 5,
    "message_bytes": 20,
    "message_bytes_ready": 0,
    "message_bytes_dlx": 20,
    "message_bytes_persistent": 20,
}
"""Counts of a queue with five dead letters that no target has accepted. RabbitMQ 4.3 gives the same."""


def test_a_policy_that_takes_the_exchange_from_dead_letters_that_wait_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        assert broker.broker is not None
        api = HttpApi(f"http://{broker.broker.management_addresses[0]}")
        definition = {"dead-letter-exchange": "missing", "dead-letter-strategy": "at-least-once"}
        api.put("policies/%2F/dead", {"pattern": "work", "definition": {**definition, "message-ttl": 200}})
        channel.declare("work", durable=True, x_queue_type="quorum", x_overflow="reject-publish")
        channel.confirm()
        channel.publish("work")
        channel.publish("work")
        assert channel.settled(2) == [True, True]
        broker.advance(1)
        assert api.get("queues/%2F/work")["messages_dlx"] == 2
        assert api.ask("DELETE", "policies/%2F/dead").status == 204
        broker.advance(2)
        assert api.get("queues/%2F/work")["messages"] == 0
        assert "event=dead_letter.left_without_exchange queue='work' messages=2" in caplog.text


def test_a_purge_over_a_restart_removes_dead_letters_that_wait(session: RestartableSession) -> None:
    strict(session.channel, "work", "missing")
    session.publish("work", b"1", b"2")
    for _ in range(2):
        message = session.channel.get("work")
        assert message is not None
        session.channel.reject(message.tag)
    session.sync()
    session.crash()
    assert session.channel.purge("work") == 2
    session.sync()
    session.crash()
    assert session.channel.purge("work") == 0


def test_at_least_once_waits_for_room(timed: Channel, inprocess: InProcessBroker) -> None:
    timed.declare("dead-letters", x_max_length=1, x_overflow="reject-publish")
    strict(timed, "work", "", x_dead_letter_routing_key="dead-letters")
    for body in (b"1", b"2", b"3"):
        timed.publish("work", body)
        message = timed.get("work")
        assert message is not None
        timed.reject(message.tag)
    found = []
    for _ in range(3):
        found += timed.drain("dead-letters")
        inprocess.advance(2)
    assert found == [b"1", b"2", b"3"]


def test_at_least_once_publishes_a_long_backlog(timed: Channel, inprocess: InProcessBroker) -> None:
    strict(timed, "work", "dlx", x_message_ttl=1000)
    bodies = [b"%d" % number for number in range(1000)]
    timed.connection.raw.send_bytes(b"".join(timed.encoded("work", body) for body in bodies))
    assert timed.ready("work") == 1000
    inprocess.advance(30)
    assert timed.ready("work") == 0
    timed.declare_exchange("dlx")
    dead_letter_queue = timed.declare(exclusive=True)
    timed.bind(dead_letter_queue, "dlx")
    inprocess.advance(1)
    assert sorted(timed.drain(dead_letter_queue), key=int) == bodies


def test_at_most_once_drops_unroutable_dead_letters(timed: Channel, inprocess: InProcessBroker) -> None:
    timed.declare("work", durable=True, x_queue_type="quorum", x_dead_letter_exchange="dlx")
    timed.publish("work", b"x")
    message = timed.get("work")
    assert message is not None
    timed.reject(message.tag)
    timed.declare_exchange("dlx")
    dead_letter_queue = timed.declare(exclusive=True)
    timed.bind(dead_letter_queue, "dlx")
    inprocess.advance(10)
    holds(timed, dead_letter_queue, 0)


def test_pending_dead_letters_are_deleted_with_their_queue(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    strict(timed, "work", "dlx")
    timed.publish("work", b"x")
    message = timed.get("work")
    assert message is not None
    timed.reject(message.tag)
    timed.delete("work")
    timed.declare_exchange("dlx")
    dead_letter_queue = timed.declare(exclusive=True)
    timed.bind(dead_letter_queue, "dlx")
    inprocess.advance(10)
    holds(timed, dead_letter_queue, 0)


def test_pending_dead_letters_count_for_the_length_limit(timed: Channel) -> None:
    strict(timed, "work", "dlx", x_max_length_bytes=10)
    timed.publish("work", b"12345678")
    message = timed.get("work")
    assert message is not None
    timed.reject(message.tag)
    timed.confirm()
    timed.publish("work", b"abc")
    assert timed.settled(1) == [False]


def test_dead_letters_reach_a_waiting_consumer(connect: Connect) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    dead_letter_queue = channel.declare(exclusive=True)
    other.consume(dead_letter_queue, "waiting")
    queue = dying(channel, dead_letter_queue, x_max_length=0)
    channel.publish(queue, b"x")
    (message,) = other.deliveries(1)
    assert (message.consumer, message.body, message.redelivered) == ("waiting", b"x", False)


def test_an_error_in_one_dead_letter_does_not_affect_the_others(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    dead_letter_queue = timed.declare(exclusive=True)
    queue = dying(timed, dead_letter_queue, x_message_ttl=1000)
    for body in (b"1", b"broken", b"2"):
        timed.publish(queue, body)
    timed.ready(queue)

    def damage() -> None:
        vhost = inprocess.virtual_host()
        vhost.queues[queue.encode()].ready.q4[1].content = b"too short"

    inprocess.call(damage)
    inprocess.advance(1)
    assert timed.drain(dead_letter_queue) == [b"1", b"2"]
    holds(timed, queue, 0)
