"""Bulk publishes: a message for very many queues, or a large transaction, is enqueued in slices and takes effect whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic, Queue
from pamqp.common import FieldTable

from tests.support.blocking_client import Channel, Connection
from tests.support.bulk_work import Bulk, bulk_of
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.connection.flow_control import AWAITING_REPLY, BULK_WORK
from warren.broker.model.vhost.bulk_publish import BULK_COPIES, CHUNK
from warren.wire.reply_codes import AmqpError, Reply

QUEUES = BULK_COPIES + CHUNK
"""Queues that one publish reaches."""
FIRST, LAST = "q0", f"q{QUEUES - 1}"
TURNS = 2 * QUEUES // CHUNK - 2
"""Iterations of the event loop that the publish takes at least, if each does as little as it can."""


@pytest.fixture
def bulk(inprocess: InProcessBroker) -> Bulk:
    return bulk_of(inprocess)


@pytest.fixture
def other(inprocess: InProcessBroker) -> Iterator[Channel]:
    """Channel of another connection."""
    connection = Connection(inprocess.url)
    yield connection.channel()
    connection.abort()


def declare(channel: Channel, arguments: FieldTable | None = None) -> None:
    """Bind all queues to the exchange `x`, and put the channel into confirm mode."""
    channel.declare_exchange("x", "fanout", durable=True)
    for number in range(QUEUES):
        queue = f"q{number}"
        channel.send(
            Queue.Declare(queue=queue, durable=True, arguments=arguments, nowait=True),
            Queue.Bind(queue=queue, exchange="x", nowait=True),
        )
    channel.confirm()


def counts(channel: Channel) -> set[int | None]:
    """Return the numbers of messages that the queues have."""
    channel.send(*(Queue.Declare(queue=f"q{number}", passive=True) for number in range(QUEUES)))
    return {channel.next_method(Queue.DeclareOk).message_count for _ in range(QUEUES)}


def publish(channel: Channel, bulk: Bulk, body: bytes = b"all") -> None:
    """Publish to all queues while bulk work is paused, so that the message is staged in the first queue only."""
    channel.publish("", body, exchange="x", delivery_mode=2)
    connections = bulk.node.connections
    wait_until(
        lambda: any(each.reads_paused & BULK_WORK for each in list(connections)), "the publish has begun"
    )


# -- one message for very many queues


def test_a_publish_to_many_queues_is_done_in_slices(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    before = bulk.slices()
    timed.publish("", b"all", exchange="x", delivery_mode=2)
    assert timed.settled(1) == [True]
    assert bulk.slices() - before >= TURNS
    assert counts(timed) == {1}


def test_its_confirm_and_the_next_publish_wait_for_all_queues(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    with bulk.paused():
        publish(timed, bulk)
        timed.publish(LAST, b"next")
        assert bulk.vhost.queues[LAST.encode()].ready.count == 0
        assert not timed.events
    timed.settled_until(2)
    assert timed.drain(LAST) == [b"all", b"next"]


def test_messages_of_others_keep_their_place(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    other.confirm()
    with bulk.paused():
        publish(timed, bulk)
        other.publish(FIRST, b"later")
        other.publish(LAST, b"sooner")
        assert other.settled(2) == [True, True]
    timed.settled_until(1)
    assert other.drain(FIRST) == [b"all", b"later"]
    assert other.drain(LAST) == [b"sooner", b"all"]


def test_nothing_is_delivered_before_the_message_is_in_all_queues(
    timed: Channel, other: Channel, bulk: Bulk
) -> None:
    declare(timed)
    with bulk.paused():
        publish(timed, bulk)
        other.consume(FIRST)
        other.publish(FIRST, b"later")
        assert other.exists(LAST)
        assert not other.events
    assert [message.body for message in other.deliveries(2)] == [b"all", b"later"]


def test_a_get_and_a_purge_wait_for_the_message(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    purging = bulk.connection()
    channel = publishing_channel(bulk)
    with bulk.paused():
        publish(timed, bulk)
        channel.send(Basic.Get(queue=FIRST, no_ack=True))
        other.send(Queue.Purge(queue="q1"))
        wait_until(lambda: purging.reads_paused & AWAITING_REPLY > 0, "the purge waits")
    assert other.next_method(Queue.PurgeOk).message_count == 1
    wait_until(lambda: timed.ready(FIRST) == 0, "the message was fetched")
    channel.connection.abort()


def publishing_channel(bulk: Bulk) -> Channel:
    """Return a channel of one more connection."""
    return Connection(bulk.broker.url).channel()


def test_a_waiting_consumer_gets_a_message_that_expires_at_once(
    timed: Channel, other: Channel, bulk: Bulk
) -> None:
    declare(timed, {"x-max-length": 0, "x-message-ttl": 0})
    other.consume(FIRST)
    timed.publish("", b"all", exchange="x", delivery_mode=2)
    assert timed.settled(1) == [True]
    assert other.deliveries(1)[0].body == b"all"
    assert timed.ready(LAST) == 0


def test_a_full_queue_refuses_it_and_the_others_keep_it(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    timed.declare("full", x_max_length=1, x_overflow="reject-publish")
    timed.bind("full", "x")
    timed.publish("", b"1", exchange="x", delivery_mode=2)
    timed.publish("", b"2", exchange="x", delivery_mode=2)
    assert timed.settled(2) == [True, False]
    assert counts(timed) == {2}
    assert timed.drain("full") == [b"1"]


def test_a_client_that_is_lost_has_published_to_all(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    with bulk.paused():
        channel = publishing_channel(bulk)
        connection = bulk.connection()
        publish(channel, bulk)
        bulk.broker.call(connection.lifecycle.drop)
    wait_until(lambda: bulk.broker.call(lambda: bulk.work.is_idle), "the publish is finished")
    assert counts(other) == {1}
    channel.connection.abort()


def test_a_channel_that_is_closed_gets_no_confirm(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    server = bulk.connection()
    with bulk.paused():
        publish(timed, bulk)
        error = AmqpError(Reply.PRECONDITION_FAILED, "timed out")
        bulk.broker.call(lambda: server.lifecycle.fail_channel(timed.number, error))
    assert timed.closed().code == 406
    assert counts(timed.connection.channel()) == {1}


def test_queues_deleted_meanwhile_are_left_out(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    with bulk.paused():
        publish(timed, bulk)
        assert other.delete(LAST) == 0
        other.send(Queue.Delete(queue=FIRST))
    assert timed.settled(1) == [True]
    # The deletion of a queue that has its place for the message waits for it.
    assert other.next_method(Queue.DeleteOk).message_count == 1
    assert timed.ready("q1") == 1


def test_a_publish_that_fails_is_refused(
    timed: Channel, other: Channel, bulk: Bulk, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(timed)
    with bulk.paused():
        publish(timed, bulk)
        other.publish(FIRST, b"later")
        assert other.exists(LAST)
        monkeypatch.setattr(bulk.vhost.queues[LAST.encode()].__class__, "stage", raise_error)
    assert timed.settled(1) == [False]
    assert other.drain(FIRST) == [b"later"]
    assert counts(other) == {0}


def raise_error(*_: object) -> bool:
    raise RuntimeError("broken by the test")


@pytest.mark.parametrize("phase", ["staging", "enqueuing"])
def test_a_crash_leaves_a_publish_in_all_queues_or_none(tmp_path: Path, phase: str) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        connection = Connection(broker.url)
        channel = connection.channel()
        declare(channel)
        first, last = bulk.vhost.queues[FIRST.encode()], bulk.vhost.queues[b"q250"]

        def is_reached() -> bool:
            return last.staged is not None if phase == "staging" else first.ready.count > 0

        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", is_reached))
        publish(channel, bulk)
        wait_until(lambda: broker.call(is_reached), "some slices are done")
        wait_until(lambda: broker.call(lambda: is_written(bulk)), "the log is written")
        broker.flush_definitions()
        image = broker.image()
        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", lambda: False))
        connection.abort()
    with InProcessBroker(image) as broker, Connection(broker.url) as again:
        assert counts(again.channel()) == ({0} if phase == "staging" else {1})


def is_written(bulk: Bulk) -> bool:
    """Return True if the log has nothing to write."""
    log = bulk.vhost.log
    assert log is not None
    return log.unwritten_bytes == 0
