"""Bulk work: what one frame, policy, deletion or timer does to many messages is done in slices, in order."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Basic, Queue
from pamqp.commands import Connection as ConnectionClass
from pamqp.frame import marshal

from tests.support.blocking_client import Channel, Connection
from tests.support.bulk_work import Bulk, bulk_of
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.connection.connection_phases import LINGERING
from warren.broker.connection.flow_control import AWAITING_REPLY, BULK_WORK
from warren.broker.model import bulk_work
from warren.broker.model.bulk_work import BulkWork
from warren.broker.model.clock import RealClock
from warren.broker.store.log.switch_interval import SwitchInterval
from warren.wire.reply_codes import AmqpError, Reply

COUNT = 300
"""Messages of one test."""
TURNS = 4
"""Iterations of the event loop that bulk work with them takes at least, if each does as little as it can."""


def declare(channel: Channel, **arguments: Any) -> None:
    """Declare `q` and the queue `dead` for its dead letters."""
    channel.declare("dead", durable=True)
    channel.declare(
        "q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **arguments
    )


def fill(channel: Channel, count: int = COUNT) -> None:
    for number in range(count):
        channel.publish("q", b"%d" % number, delivery_mode=2)
    wait_until(lambda: channel.ready("q") == count, "all messages are in the queue")


def hold(channel: Channel, count: int = COUNT) -> int:
    """Fetch messages without acknowledging them; return the last delivery tag."""
    tag = channel.consume("q")
    last = channel.deliveries(count)[-1].tag
    channel.cancel(tag)
    return last


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def await_ready(channel: Channel, queue: str, count: int) -> None:
    wait_until(lambda: channel.ready(queue) == count, f"{queue} has {count} messages")


# -- each in slices, in order


def test_rejected_messages_are_dead_lettered_in_slices(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed)
    last, before = hold(timed), bulk.slices()
    timed.nack(last, multiple=True, requeue=False)
    # The reply to the next method follows the end of that work.
    assert timed.ready("dead") == COUNT
    assert bulk.slices() - before > TURNS
    assert timed.drain("dead") == numbers(0, COUNT)


@pytest.mark.parametrize("by", ["nack", "recover", "channel", "connection", "lost connection"])
def test_messages_are_requeued_in_slices(timed: Channel, other: Channel, bulk: Bulk, by: str) -> None:
    declare(timed)
    fill(timed)
    last, before = hold(other), bulk.slices()
    if by == "nack":
        other.nack(last, multiple=True)
        assert other.ready("q") == COUNT
    elif by == "recover":
        other.recover()
        assert other.ready("q") == COUNT
    elif by == "channel":
        other.close()
        assert other.connection.channel().ready("q") == COUNT
    elif by == "connection":
        other.connection.close()
        assert timed.ready("q") == COUNT
    else:
        other.connection.abort()
    await_ready(timed, "q", COUNT)
    assert bulk.slices() - before > TURNS
    messages = [timed.get("q", no_ack=True) for _ in range(COUNT)]
    assert [message.body for message in messages if message and message.redelivered] == numbers(0, COUNT)


def test_messages_are_acknowledged_in_slices(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed, 1200)
    last, before = hold(timed, 1200), bulk.slices()
    timed.ack(last, multiple=True)
    timed.recover()
    assert bulk.slices() - before > TURNS
    assert timed.ready("q") == 0


def test_messages_over_a_new_limit_are_dropped_in_slices(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed)
    before = bulk.slices()
    bulk.limit(10)
    await_ready(timed, "dead", COUNT - 10)
    assert bulk.slices() - before > TURNS
    assert timed.drain("dead") == numbers(0, COUNT - 10)
    assert timed.drain("q") == numbers(COUNT - 10, COUNT)


def test_messages_expire_in_slices(timed: Channel, bulk: Bulk) -> None:
    declare(timed, x_message_ttl=1000)
    fill(timed)
    before = bulk.slices()
    bulk.broker.advance(1)
    # The clock counts unfinished slices as work in progress.
    assert timed.ready("dead") == COUNT
    assert bulk.slices() - before > TURNS
    assert timed.drain("dead") == numbers(0, COUNT)


def test_queues_that_expire_at_once_are_deleted_in_slices(timed: Channel, bulk: Bulk) -> None:
    for number in range(20):
        timed.declare(f"q{number}", x_expires=1000)
    before = bulk.slices()
    bulk.broker.advance(1)
    assert not any(timed.exists(f"q{number}") for number in range(20))
    assert bulk.slices() - before >= 20


def test_messages_that_expire_at_once_in_many_queues_are_dropped_in_slices(
    timed: Channel, bulk: Bulk
) -> None:
    queues = [timed.declare(f"q{number}", x_message_ttl=1000) for number in range(20)]
    for queue in queues:
        timed.publish(queue, b"expires")
    before = bulk.slices()
    bulk.broker.advance(1)
    assert {timed.ready(queue) for queue in queues} == {0}
    assert bulk.slices() - before >= 20


def test_a_fast_consumer_does_not_keep_the_broker_busy(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed)
    before = bulk.slices()
    timed.consume("q", no_ack=True)
    assert [message.body for message in timed.deliveries(COUNT)] == numbers(0, COUNT)
    assert bulk.slices() - before >= TURNS


def test_exclusive_queues_are_deleted_in_slices(timed: Channel, other: Channel, bulk: Bulk) -> None:
    for number in range(20):
        other.declare(f"own{number}", exclusive=True)
    before = bulk.slices()
    other.connection.close()
    assert bulk.slices() - before > TURNS
    assert not any(timed.exists(f"own{number}") for number in range(20))


def test_a_queue_is_purged_in_slices(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        with Connection(broker.url) as connection:
            channel = connection.channel()
            declare(channel)
            fill(channel)
            before = bulk.slices()
            assert channel.purge("q") == COUNT
            assert bulk.slices() - before >= TURNS
            assert channel.ready("q") == 0
            channel.publish("q", b"next", delivery_mode=2)
        broker.restart()
        with Connection(broker.url) as connection:
            assert connection.channel().drain("q") == [b"next"]


def test_a_queue_is_deleted_in_slices(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed)
    before = bulk.slices()
    assert timed.delete("q") == COUNT
    assert not timed.exists("q")
    wait_until(lambda: bulk.slices() - before >= TURNS, "the messages are freed in slices")


def test_a_policy_is_applied_in_slices(timed: Channel, bulk: Bulk) -> None:
    queues = [timed.declare(f"q{number}") for number in range(20)]
    before = bulk.slices()
    bulk.limit(1, "^q")
    assert bulk.slices() - before > TURNS
    for queue in queues:
        timed.publish(queue, b"1")
        timed.publish(queue, b"2")
    assert [timed.ready(queue) for queue in queues] == [1] * 20


def test_the_bindings_of_a_deleted_exchange_are_removed_in_slices(timed: Channel, bulk: Bulk) -> None:
    timed.declare_exchange("x", "topic")
    queue = timed.declare()
    for number in range(20):
        timed.bind(queue, "x", f"key.{number}")
    finish = bulk.block(bulk.vhost.exchanges[b"x"])
    timed.delete_exchange("x")
    # A new exchange of the same name keeps its own bindings.
    timed.declare_exchange("x", "topic")
    timed.bind(queue, "x", "key.1")
    finish()
    of_queue = bulk.vhost.queues[queue.encode()].incoming_bindings
    new = bulk.vhost.exchanges[b"x"]
    wait_until(lambda: of_queue == {new: {(b"key.1", b""): True}}, "the other bindings are gone")
    for number in range(3):
        timed.publish(f"key.{number}", b"%d" % number, exchange="x")
    assert timed.drain(queue) == [b"1"]
    timed.delete(queue)


def test_a_new_exchange_outlives_a_binding_of_its_predecessor(timed: Channel, bulk: Bulk) -> None:
    timed.declare_exchange("x")
    queue = timed.declare()
    timed.bind(queue, "x")
    finish = bulk.block(bulk.vhost.exchanges[b"x"])
    timed.delete_exchange("x")
    timed.declare_exchange("x", auto_delete=True)
    timed.delete(queue)
    assert b"x" in bulk.vhost.exchanges
    finish()


def test_many_frames_of_one_client_take_many_turns(timed: Channel, bulk: Bulk) -> None:
    turns = [0]

    def count() -> None:
        turns[0] += 1
        bulk.node.loop.call_soon(count)

    bulk.broker.call(count)
    before = turns[0]
    timed.send(*(Queue.Declare(queue=f"q{number}") for number in range(50)))
    replies = [timed.next_method(Queue.DeclareOk).queue for _ in range(50)]
    assert replies == [f"q{number}" for number in range(50)]
    assert turns[0] - before >= 50


# -- others are served


def test_others_are_served_while_dead_letters_wait(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed)
    last = hold(timed)
    finish = bulk.block(bulk.vhost.dead_lettering)
    timed.nack(last, multiple=True, requeue=False)
    timed.send(Queue.Declare(queue="dead", passive=True))
    other.confirm()
    queue = other.declare(exclusive=True)
    other.publish(queue, b"served")
    assert other.settled(1) == [True]
    assert other.drain(queue) == [b"served"]
    # The first of them may be there already: it does not wait for the bulk work of others.
    assert other.ready("dead") < COUNT
    finish()
    # The client's next frame waited.
    assert timed.next_method(Queue.DeclareOk).message_count == COUNT


def test_a_settled_message_cannot_be_settled_again(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed)
    last = hold(timed)
    timed.nack(last, multiple=True, requeue=False)
    timed.ack(last)
    assert timed.closed().code == 406
    assert other.ready("dead") == COUNT


def test_a_client_that_is_lost_has_settled_what_it_has_settled(
    timed: Channel, other: Channel, bulk: Bulk
) -> None:
    declare(timed)
    fill(timed)
    last = hold(other)
    connection = bulk.connection()
    finish = bulk.block(connection)
    other.nack(last - 100, multiple=True, requeue=False)
    wait_until(lambda: connection.reads_paused > 0, "the broker has read the nack")
    bulk.broker.call(connection.lifecycle.drop)
    finish()
    await_ready(timed, "q", 100)
    assert timed.drain("dead") == numbers(0, COUNT - 100)
    assert timed.drain("q") == numbers(COUNT - 100, COUNT)


def test_frames_wait_for_all_dead_letters_of_one_frame(timed: Channel, bulk: Bulk) -> None:
    counts = {"few": 10, "many": 50}
    timed.declare("dead")
    for queue, count in counts.items():
        timed.declare(queue, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        for number in range(count):
            timed.publish(queue, b"%d" % number)
        timed.consume(queue, tag=queue)
    last = timed.deliveries(60)[-1].tag
    timed.nack(last, multiple=True, requeue=False)
    assert timed.ready("dead") == 60


def test_replies_stay_in_order_when_one_waits_for_the_disk(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        bulk = bulk_of(broker)
        server = bulk.connection()
        channel = connection.channel()
        channel.declare("q", durable=True)
        queue = bulk.vhost.queues[b"q"]
        broker.call(queue.hold)
        channel.send(Queue.Delete(queue="q"), Basic.Qos(prefetch_count=1))
        wait_until(lambda: server.reads_paused & AWAITING_REPLY > 0, "the deletion waits")
        broker.call(queue.release)
        assert isinstance(channel.next(), Queue.DeleteOk)
        assert isinstance(channel.next(), Basic.QosOk)


def test_a_channel_that_is_closed_gets_no_message(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed, 1)
    queue = bulk.vhost.queues[b"q"]
    server = bulk.connection()
    bulk.broker.call(queue.hold)
    other.send(Basic.Get(queue="q"))
    wait_until(lambda: server.reads_paused & AWAITING_REPLY > 0, "the broker has read basic.get")
    error = AmqpError(Reply.PRECONDITION_FAILED, "timed out")
    bulk.broker.call(lambda: server.lifecycle.fail_channel(other.number, error))
    bulk.broker.call(queue.release)
    assert other.closed().code == 406
    assert timed.ready("q") == 1


def test_a_socket_is_not_polled_while_a_close_waits(timed: Channel, other: Channel, bulk: Bulk) -> None:
    server = bulk.connection()
    transport = server.transport
    finish = bulk.block(server)
    other.connection.raw.send_bytes(marshal(ConnectionClass.Close(200, "bye", 0, 0), 0))
    wait_until(lambda: server.phase == LINGERING, "the broker has read connection.close")
    assert not bulk.broker.call(transport.is_reading)
    finish()
    wait_until(
        lambda: bulk.broker.call(transport.is_reading), "close-ok is sent, and the socket is read again"
    )
    other.connection.raw.close()
    wait_until(transport.is_closing, "the broker has noticed that the client closed its socket")


# -- nothing is delivered that is logically gone


def test_nothing_is_delivered_while_messages_over_a_limit_are_left(
    timed: Channel, other: Channel, bulk: Bulk
) -> None:
    declare(timed)
    fill(timed)
    finish = bulk.block(bulk.vhost.queues[b"q"])
    bulk.limit(10)
    timed.consume("q")
    other.send(Basic.Get(queue="q"))
    # The reply to a method on another queue follows what the broker has delivered.
    assert timed.exists("dead")
    assert not timed.events
    finish()
    first = timed.deliveries(1)[0]
    assert first.body == b"%d" % (COUNT - 10)


def test_a_requeued_message_is_delivered_before_later_ones(
    timed: Channel, other: Channel, bulk: Bulk
) -> None:
    declare(timed)
    fill(timed)
    last = hold(other)
    timed.publish("q", b"later")
    await_ready(timed, "q", 1)
    other.nack(last, multiple=True)
    timed.consume("q")
    bodies = [message.body for message in timed.deliveries(COUNT + 1)]
    # The consumer may have been there before the broker has read the nack.
    if bodies[0] == b"later":
        bodies.append(bodies.pop(0))
    assert bodies == [*numbers(0, COUNT), b"later"]


def test_messages_that_are_gone_are_not_counted(timed: Channel, other: Channel, bulk: Bulk) -> None:
    declare(timed)
    fill(timed)
    counting = bulk.broker.connections()[0]
    finish = bulk.block(bulk.vhost.queues[b"q"])
    bulk.limit(10)
    timed.send(Queue.Declare(queue="q", passive=True))
    wait_until(lambda: counting.reads_paused > 0, "the broker has read the first method")
    other.send(Queue.Delete(queue="q"))
    finish()
    assert timed.next_method(Queue.DeclareOk).message_count == 10
    assert other.next_method(Queue.DeleteOk).message_count == 10


# -- work that fails


def test_a_queue_delivers_after_work_on_it_has_failed(timed: Channel, bulk: Bulk) -> None:
    declare(timed)
    queue = bulk.vhost.queues[b"q"]
    calls: list[float] = []

    def fail(end: float) -> bool:
        calls.append(end)
        if len(calls) < 3:
            return False
        raise RuntimeError("broken by the test")

    def begin() -> None:
        queue.hold()
        bulk.work.run(queue, fail, queue.release)

    bulk.broker.call(begin)
    timed.consume("q")
    timed.publish("q", b"next")
    assert timed.deliveries(1)[0].body == b"next"
    assert len(calls) == 3


def test_work_that_follows_failed_work_is_done(timed: Channel, bulk: Bulk) -> None:
    done: list[str] = []

    def fail(_: float) -> bool:
        done.append("failed")
        raise RuntimeError("broken by the test")

    def finish(_: float) -> bool:
        done.append("finished")
        return True

    def begin() -> None:
        bulk.work.later("lane", lambda _: True)
        bulk.work.run("lane", fail, lambda: done.append("first ended"))
        bulk.work.run("lane", finish, lambda: done.append("second ended"))

    bulk.broker.call(begin)
    wait_until(lambda: not bulk.work.is_pending("lane"), "the work is done")
    assert done == ["failed", "first ended", "finished", "second ended"]


# -- durable


def test_a_deleted_queue_has_dead_lettered_what_was_rejected(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        first = Connection(broker.url)
        nacking = bulk.connection()
        second = Connection(broker.url)
        channel, other = first.channel(), second.channel()
        declare(channel)
        channel.confirm()
        fill(channel)
        channel.settled_until(COUNT)
        last = hold(channel)
        finish = bulk.block(bulk.vhost.dead_lettering)
        queue = bulk.vhost.queues[b"q"]
        channel.nack(last, multiple=True, requeue=False)
        wait_until(lambda: nacking.reads_paused > 0, "the messages wait to be dead-lettered")
        other.send(Queue.Delete(queue="q"))
        deleting = bulk.connection()
        wait_until(lambda: queue.deleted or deleting.reads_paused > 0, "the broker has read the deletion")
        # A deletion that does not wait is on disk then.
        broker.flush_definitions()
        image = broker.image()
        finish()
        assert other.next_method(Queue.DeleteOk).message_count == 0
        assert channel.drain("dead") == numbers(0, COUNT)
        first.abort()
        second.abort()
    with InProcessBroker(image) as again, Connection(again.url) as connection:
        channel = connection.channel()
        left = channel.drain("q") if channel.exists("q") else []
        assert channel.drain("dead") + left == numbers(0, COUNT)


@pytest.mark.parametrize("has_backlog", [False, True])
def test_a_confirm_covers_the_rejects_before_it(tmp_path: Path, has_backlog: bool) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        first = Connection(broker.url)
        second = Connection(broker.url)
        rejecting = bulk.connection()
        channel, other = first.channel(), second.channel()
        declare(channel)
        channel.confirm()
        fill(channel, 20)
        channel.settled_until(20)
        other.declare("later", durable=True)
        rejected = other.get("q")
        assert rejected is not None
        last = hold(channel, 19)
        finish = bulk.block(bulk.vhost.dead_lettering)
        if has_backlog:
            channel.nack(last, multiple=True, requeue=False)
            wait_until(lambda: bulk.vhost.dead_lettering.has_backlog(bulk.vhost.queues[b"q"]), "some wait")
        other.confirm()
        other.nack(rejected.tag, requeue=False)
        other.publish("later", b"", delivery_mode=2)
        if has_backlog:
            later = bulk.vhost.queues[b"later"]
            wait_until(lambda: later.ready.count > 0 or rejecting.reads_paused & BULK_WORK > 0, "it waits")
            assert later.ready.count == 0
            finish()
        other.settled_until(1)
        image = broker.image()
        finish()
        first.abort()
        second.abort()
    with InProcessBroker(image) as again, Connection(again.url) as connection:
        channel = connection.channel()
        assert rejected.body in channel.drain("dead")


def test_a_crash_in_the_middle_leaves_each_message_once(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        connection = Connection(broker.url)
        channel = connection.channel()
        declare(channel)
        channel.confirm()
        fill(channel)
        channel.settled_until(COUNT)
        last, before = hold(channel), bulk.slices()
        channel.nack(last, multiple=True, requeue=False)
        wait_until(lambda: bulk.slices() > before + TURNS, "some slices are done")
        broker.crash()
        connection.abort()
        with Connection(broker.url) as again:
            channel = again.channel()
            dead, left = channel.drain("dead"), channel.drain("q")
    assert dead + left == numbers(0, COUNT)


def test_a_stop_in_the_middle_finishes_the_work(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        bulk = bulk_of(broker)
        connection = Connection(broker.url)
        channel = connection.channel()
        declare(channel)
        fill(channel)
        last, before = hold(channel), bulk.slices()
        channel.nack(last, multiple=True, requeue=False)
        wait_until(lambda: bulk.slices() > before, "the work has begun")
        broker.restart()
        connection.abort()
        with Connection(broker.url) as again:
            channel = again.channel()
            assert channel.drain("dead") == numbers(0, COUNT)
            assert channel.ready("q") == 0


def test_slices_wait_for_the_log() -> None:
    async def run() -> None:
        behind = [True, True, True]
        work = BulkWork(RealClock(), lambda: bool(behind and behind.pop()))
        left = [1, 2, 3]
        work.slice_seconds = 0

        def step(_: float) -> bool:
            assert not behind, "a slice was done while the log was behind"
            left.pop()
            return not left

        work.later("lane", step)
        await work.finished("lane")
        assert not left
        assert work.slices >= 3

    asyncio.run(run())


@pytest.fixture
def switch_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bulk work change the switch interval of this process, as in the process of `warren broker`."""
    monkeypatch.setattr(bulk_work, "SWITCH_INTERVAL", SwitchInterval(is_allowed=True))


@pytest.mark.usefixtures("switch_interval")
def test_other_threads_run_sooner_while_work_is_unfinished() -> None:
    """The log's writer thread waits for the interpreter's lock, and confirms wait for the writer."""

    async def run() -> None:
        usual = sys.getswitchinterval()
        work, other = BulkWork(RealClock()), BulkWork(RealClock())
        others = [1, 2, 3, 4, 5]
        seen = []

        def step(_: float) -> bool:
            seen.append(sys.getswitchinterval())
            return len(seen) == 3

        work.slice_seconds = other.slice_seconds = 0
        assert work.run("short", lambda _: True)
        assert sys.getswitchinterval() == usual, "work that ends at once changes nothing"
        work.later("lane", step)
        other.later("lane", lambda _: others.pop() == 1)
        await work.finished("lane")
        assert max(seen) < usual
        await other.finished("lane")
        assert sys.getswitchinterval() == usual

    asyncio.run(run())


def test_an_embedded_broker_leaves_the_switch_interval_to_the_application() -> None:
    async def run() -> None:
        usual = sys.getswitchinterval()
        work = BulkWork(RealClock())
        work.later("lane", lambda _: True)
        assert sys.getswitchinterval() == usual
        await work.finished("lane")
        assert sys.getswitchinterval() == usual

    asyncio.run(run())


@pytest.mark.usefixtures("switch_interval")
def test_other_threads_run_as_usual_after_unfinished_work_is_given_up() -> None:
    """Work that a stopping broker leaves behind, or that it causes while it stops, is never done."""

    async def run() -> None:
        usual = sys.getswitchinterval()
        work = BulkWork(RealClock())
        work.later("lane", lambda _: False)
        assert sys.getswitchinterval() < usual
        work.close()
        assert work.is_idle
        assert sys.getswitchinterval() == usual
        work.later("lane", lambda _: False)
        work.slice_seconds = 0
        work.run("other lane", lambda _: False)
        assert sys.getswitchinterval() == usual

    asyncio.run(run())


def test_brokers_in_several_threads_share_the_switch_interval() -> None:
    """None of their requests for a short one is lost, however their threads take turns."""
    before, usual = sys.getswitchinterval(), 0.005
    sys.setswitchinterval(usual)
    shared = SwitchInterval(is_allowed=True)

    def use() -> None:
        for _ in range(20_000):
            shared.shorten()
            shared.restore()

    try:
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sys.getswitchinterval() == usual
        shared.shorten()
        assert sys.getswitchinterval() < usual
        shared.restore()
        assert sys.getswitchinterval() == usual
    finally:
        sys.setswitchinterval(before)
