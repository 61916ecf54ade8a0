"""Bulk publishes: a message for very many queues, or a large transaction, is enqueued in slices and takes effect whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Basic, Queue, Tx
from pamqp.common import FieldTable

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.bulk_work import Bulk, bulk_of
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.connection.flow_control import AWAITING_REPLY, BULK_WORK
from warren.broker.model.message import Message
from warren.broker.model.queue.queue import DELIVERIES
from warren.broker.model.vhost.bulk_publish import BULK_COPIES, CHUNK
from warren.wire.content import join_content, make_header
from warren.wire.reply_codes import AmqpError, Reply

QUEUES = BULK_COPIES + CHUNK
"""Queues that one publish reaches."""
ACTIONS = BULK_COPIES + 10
"""Publishes of one transaction, and messages that it settles."""
FIRST, LAST = "q0", f"q{QUEUES - 1}"
TURNS = 2 * QUEUES // CHUNK - 2
"""Iterations of the event loop that the publish takes at least, if each does as little as it can."""


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
    connections = bulk.broker.connections()
    wait_until(lambda: any(each.reads_paused & BULK_WORK for each in connections), "the publish has begun")


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


def test_it_ends_although_others_publish_faster_than_a_slice_enqueues(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    queue = bulk.vhost.queues[FIRST.encode()]
    first = last = bulk.slices()
    most_slices = 2000

    def publish_more() -> None:
        """Publish again after each slice, until the publish to all queues has ended or takes too many slices."""
        nonlocal last
        slices = bulk.work.slices
        if queue.staged is None or slices - first > most_slices:
            return
        if slices > last:
            last = slices
            for _ in range(2 * DELIVERIES):
                content = join_content(1, make_header(1, b"", 0), b"x")
                queue.publish(Message(b"", FIRST.encode(), content, 1, 1))
        bulk.node.loop.call_soon(publish_more)

    with bulk.paused():
        publish(timed, bulk)
        bulk.broker.call(publish_more)
    assert timed.settled(1) == [True]
    assert first < last <= first + most_slices


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


def test_a_message_expires_in_all_queues_at_once(
    timed: Channel, inprocess: InProcessBroker, bulk: Bulk
) -> None:
    declare(timed, {"x-message-ttl": 60_000})
    with bulk.paused():
        publish(timed, bulk)
        inprocess.call(lambda: inprocess.clock.jump(1.0))
    assert timed.settled(1) == [True]
    queues = [bulk.vhost.queues[f"q{number}".encode()] for number in range(QUEUES)]
    # The log has one record, and the content once, for each time of expiry.
    assert len({queue.ready.next_expiry() for queue in queues}) == 1


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


def test_a_publish_that_fails_is_refused(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    with bulk.paused():
        publish(timed, bulk)
        other.publish(FIRST, b"later")
        assert other.exists(LAST)
        break_route(bulk, b"x", b"")
    assert timed.settled(1) == [False]
    assert other.drain(FIRST) == [b"later"]
    assert counts(other) == {0}


def break_route(bulk: Bulk, exchange: bytes, key: bytes) -> None:
    """Let the staging of messages with this route fail, when it comes to the end of the route."""
    queues: list[Any] = bulk.vhost.exchanges[exchange].routes[key]
    bulk.broker.call(lambda: queues.append(None))


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


@pytest.mark.parametrize(("count", "is_torn"), [(2, True), (2, False), (QUEUES, True), (QUEUES, False)])
def test_a_torn_write_leaves_a_publish_in_all_queues_or_none_whatever_their_ttl(
    tmp_path: Path, count: int, is_torn: bool
) -> None:
    with InProcessBroker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare_exchange("x", "fanout", durable=True)
        for number in range(count):
            channel.declare(f"q{number}", durable=True, x_message_ttl=60_000 + number % 2)
            channel.bind(f"q{number}", "x")
        channel.confirm()
        channel.publish("", b"all", exchange="x", delivery_mode=2)
        assert channel.settled(1) == [True]
        image = broker.image()
    (segment,) = (image / "log").glob("*.log")
    content = bytearray(segment.read_bytes())
    end = len(content.rstrip(b"\0"))
    # The last record is torn, as by a power cut before the sync.
    if is_torn:
        content[end - 8 : end] = bytes(8)
        segment.write_bytes(content)
    with InProcessBroker(image) as broker, Connection(broker.url) as again:
        channel = again.channel()
        assert {channel.ready(f"q{number}") for number in range(count)} == {0 if is_torn else 1}


@pytest.mark.parametrize("method", ["confirm", "tx.commit"])
def test_the_reply_comes_although_the_log_was_written_in_the_middle(tmp_path: Path, method: str) -> None:
    with InProcessBroker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        bulk = bulk_of(broker)
        channel = connection.channel()
        if method == "confirm":
            declare(channel)
            name = FIRST.encode()
        else:
            large = transaction(channel)
            name = b"out"
        queue = bulk.vhost.queues[name]
        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", lambda: queue.ready.count > 0))
        if method == "confirm":
            publish(channel, bulk)
        else:
            large.begin()
        wait_until(lambda: queue.ready.count > 0, "the log has the record")
        wait_until(lambda: broker.call(lambda: is_written(bulk)), "the log is written")
        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", lambda: False))
        if method == "confirm":
            assert channel.settled(1) == [True]
        else:
            channel.next_method(Tx.CommitOk)


# -- a dead letter for very many queues


def declare_source(channel: Channel, arguments: FieldTable | None = None) -> None:
    """Bind all queues to the exchange `x`, to which the queue `source` dead-letters."""
    declare(channel, arguments)
    channel.declare("source", durable=True, x_dead_letter_exchange="x")


def reject(channel: Channel, count: int = 1) -> None:
    """Publish messages to `source`, and reject all of them."""
    for number in range(count):
        channel.publish("source", b"%d" % number, delivery_mode=2)
    tag = channel.consume("source")
    last = channel.deliveries(count)[-1].tag
    channel.cancel(tag)
    channel.nack(last, multiple=True, requeue=False)


def test_a_dead_letter_for_many_queues_is_put_into_them_in_slices(timed: Channel, bulk: Bulk) -> None:
    declare_source(timed)
    before = bulk.slices()
    reject(timed)
    # The reply to the next method follows the end of that work.
    assert timed.ready(LAST) == 1
    assert bulk.slices() - before >= TURNS
    assert counts(timed) == {1}


def test_dead_letters_for_many_queues_keep_their_order(timed: Channel, bulk: Bulk) -> None:
    declare_source(timed)
    reject(timed, 3)
    assert timed.ready(LAST) == 3
    assert timed.drain(FIRST) == timed.drain(LAST) == [b"0", b"1", b"2"]
    assert not bulk.vhost.dead_lettering.backlog


def test_others_publish_while_a_dead_letter_is_put_into_many_queues(
    timed: Channel, other: Channel, bulk: Bulk
) -> None:
    declare_source(timed)
    other.confirm()
    with bulk.paused():
        reject(timed)
        wait_until(lambda: bulk.vhost.queues[FIRST.encode()].staged is not None, "the dead letter is staged")
        other.publish(FIRST, b"later")
        other.publish(LAST, b"sooner")
        assert other.settled(2) == [True, True]
    wait_until(lambda: other.ready(LAST) == 2, "the dead letter is in all queues")
    assert other.drain(FIRST) == [b"0", b"later"]
    assert other.drain(LAST) == [b"sooner", b"0"]


def test_a_transaction_that_rejects_into_many_queues_ends(timed: Channel, bulk: Bulk) -> None:
    declare_source(timed)
    channel = timed.connection.channel()
    for _ in range(2):
        channel.publish("source", b"no", delivery_mode=2)
    channel.call(Tx.Select(), Tx.SelectOk)
    tag = channel.consume("source")
    last = channel.deliveries(2)[-1].tag
    channel.cancel(tag)
    for number in range(ACTIONS):
        channel.publish("source", b"%d" % number, delivery_mode=2)
    channel.nack(last, multiple=True, requeue=False)
    channel.call(Tx.Commit(), Tx.CommitOk)
    assert channel.ready("source") == ACTIONS
    assert counts(timed) == {2}


def test_a_dead_letter_whose_move_fails_waits_for_a_retry(timed: Channel, bulk: Bulk) -> None:
    declare_source(timed)
    timed.publish("source", b"first", exchange="x", delivery_mode=2)
    assert timed.settled(1) == [True]
    break_route(bulk, b"x", b"source")
    reject(timed)
    assert timed.ready("source") == 0
    assert counts(timed) == {1}
    assert bulk.vhost.dead_lettering.dropped == 0
    routes: list[Any] = bulk.vhost.exchanges[b"x"].routes[b"source"]
    bulk.broker.call(lambda: routes.remove(None))
    bulk.broker.advance(1)
    wait_until(lambda: counts(timed) == {2}, "the retry has moved it")


@pytest.mark.parametrize("phase", ["staging", "enqueuing"])
def test_a_crash_leaves_a_rejected_message_or_its_dead_letters(tmp_path: Path, phase: str) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        connection = Connection(broker.url)
        channel = connection.channel()
        declare_source(channel)
        first, last = bulk.vhost.queues[FIRST.encode()], bulk.vhost.queues[b"q250"]

        def is_reached() -> bool:
            return last.staged is not None if phase == "staging" else first.ready.count > 0

        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", is_reached))
        reject(channel)
        wait_until(lambda: broker.call(is_reached), "some slices are done")
        wait_until(lambda: broker.call(lambda: is_written(bulk)), "the log is written")
        broker.flush_definitions()
        image = broker.image()
        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", lambda: False))
        connection.abort()
    with InProcessBroker(image) as broker, Connection(broker.url) as again:
        after = again.channel()
        assert counts(after) == ({0} if phase == "staging" else {1})
        assert after.ready("source") == (1 if phase == "staging" else 0)


# -- a large transaction


@dataclass
class Transaction:
    """Transaction that publishes to `out` and settles the messages of `in`, with the channel that sends it."""

    channel: Channel
    last: int
    """Delivery tag of the last message of `in`."""

    def begin(self, settlement: str = "ack") -> None:
        """Send all of it, the commit included."""
        channel = self.channel
        channel.call(Tx.Select(), Tx.SelectOk)
        for number in range(ACTIONS):
            channel.publish("out", b"%d" % number, delivery_mode=2)
        if settlement == "ack":
            channel.ack(self.last, multiple=True)
        else:
            channel.nack(self.last, multiple=True, requeue=settlement == "requeue")
        channel.send(Tx.Commit())


def transaction(channel: Channel) -> Transaction:
    """Declare the queues `in` and `out`, put messages into `in`, and consume them."""
    channel.declare("dead", durable=True)
    channel.declare("in", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channel.declare("out", durable=True)
    other = channel.connection.channel()
    other.confirm()
    for number in range(ACTIONS):
        other.publish("in", b"%d" % number, delivery_mode=2)
    other.settled_until(ACTIONS)
    channel.consume("in", "consumer")
    return Transaction(channel, channel.deliveries(ACTIONS)[-1].tag)


def numbers() -> list[bytes]:
    return [b"%d" % number for number in range(ACTIONS)]


def begun(bulk: Bulk) -> None:
    """Wait until a commit waits for the rest of its slices."""
    connections = bulk.broker.connections()
    wait_until(lambda: any(each.reads_paused & BULK_WORK for each in connections), "it has begun")


def test_a_transaction_is_committed_in_slices(timed: Channel, bulk: Bulk) -> None:
    large = transaction(timed)
    before = bulk.slices()
    large.begin()
    timed.next_method(Tx.CommitOk)
    assert bulk.slices() - before > ACTIONS
    assert timed.connection.channel().drain("out") == numbers()
    timed.cancel("consumer")
    timed.close()
    assert timed.connection.channel().ready("in") == 0


def test_others_publish_behind_a_transaction(timed: Channel, other: Channel, bulk: Bulk) -> None:
    large = transaction(timed)
    other.confirm()
    with bulk.paused():
        large.begin()
        begun(bulk)
        other.publish("out", b"later")
        assert other.settled(1) == [True]
    timed.next_method(Tx.CommitOk)
    # Its place is behind the one message that the transaction had staged.
    assert [body for body in other.drain("out") if body != b"later"] == numbers()


@pytest.mark.parametrize("settlement", ["requeue", "reject"])
def test_a_transaction_returns_messages_in_order(timed: Channel, bulk: Bulk, settlement: str) -> None:
    large = transaction(timed)
    timed.cancel("consumer")
    large.begin(settlement)
    timed.next_method(Tx.CommitOk)
    other = timed.connection.channel()
    assert other.drain("in" if settlement == "requeue" else "dead") == numbers()
    assert other.drain("out") == numbers()


def test_a_transaction_that_a_queue_refuses_in_part_takes_effect(timed: Channel, bulk: Bulk) -> None:
    large = transaction(timed)
    timed.declare("full", x_max_length=1, x_overflow="reject-publish")
    timed.publish("full", b"1")
    timed.call(Tx.Select(), Tx.SelectOk)
    timed.publish("full", b"2")
    large.begin()
    assert timed.closed().code == 406
    other = timed.connection.channel()
    assert other.drain("out") == numbers()
    assert other.drain("full") == [b"1"]


def test_a_client_that_is_lost_has_committed_all(timed: Channel, other: Channel, bulk: Bulk) -> None:
    client = publishing_channel(bulk)
    large = transaction(client)
    connection = bulk.connection()
    with bulk.paused():
        large.begin()
        begun(bulk)
        bulk.broker.call(connection.lifecycle.drop)
    wait_until(lambda: bulk.broker.call(lambda: bulk.work.is_idle), "the commit is finished")
    assert other.drain("out") == numbers()
    assert other.ready("in") == 0
    client.connection.abort()


def test_a_transaction_that_fails_has_no_effect(timed: Channel, other: Channel, bulk: Bulk) -> None:
    client = publishing_channel(bulk)
    large = transaction(client)
    with bulk.paused():
        large.begin()
        begun(bulk)
        other.publish("out", b"later")
        assert other.exists("in")
        break_route(bulk, b"", b"out")
    with pytest.raises(Closed) as error:
        client.next_method(Tx.CommitOk)
    assert error.value.code == 541
    client.connection.abort()
    wait_until(lambda: other.ready("in") == ACTIONS, "the messages are back")
    assert other.drain("out") == [b"later"]


@pytest.mark.parametrize("phase", ["staging", "enqueuing"])
def test_a_crash_leaves_all_of_a_transaction_or_nothing(tmp_path: Path, phase: str) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        connection = Connection(broker.url)
        large = transaction(connection.channel())
        out = bulk.vhost.queues[b"out"]

        def is_reached() -> bool:
            staged = out.staged
            return (staged is not None and len(staged) > 10) if phase == "staging" else out.ready.count > 10

        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", is_reached))
        large.begin()
        wait_until(lambda: broker.call(is_reached), "some slices are done")
        wait_until(lambda: broker.call(lambda: is_written(bulk)), "the log is written")
        image = broker.image()
        bulk.broker.call(lambda: setattr(bulk.work, "_log_is_behind", lambda: False))
        connection.abort()
    with InProcessBroker(image) as broker, Connection(broker.url) as again:
        channel = again.channel()
        assert channel.drain("out") == ([] if phase == "staging" else numbers())
        assert channel.drain("in") == (numbers() if phase == "staging" else [])


def is_written(bulk: Bulk) -> bool:
    """Return True if the log has nothing to write."""
    log = bulk.vhost.log
    assert log is not None
    return log.unwritten_bytes == 0


def test_a_duplicate_does_not_come_between_the_slices_of_a_publish(
    timed: Channel, other: Channel, bulk: Bulk
) -> None:
    declare(timed)
    other.confirm()
    timed.declare("only", durable=True, x_message_deduplication=True)
    timed.bind("only", "x")
    key = {"x-deduplication-header": "k"}
    with bulk.paused():
        timed.publish("", b"1", exchange="x", delivery_mode=2, headers=key)
        begun(bulk)
        other.publish("only", b"2", delivery_mode=2, headers=key)
        assert other.settled(1) == [True]
    assert timed.settled(1) == [True]
    assert len(other.drain("only")) == 1
