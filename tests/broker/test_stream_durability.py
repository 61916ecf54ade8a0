"""Streams over stops and crashes, on full, failing and absent disks; stored offsets; retention by size and age."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pamqp.commands import Basic, Tx
from pamqp.commands import Connection as ConnectionClass

from tests.broker.test_disk_faults import Disk
from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.restarts import ENDS, RestartableSession, end
from tests.support.streams import (
    bodies,
    consume,
    declare_stream,
    numbered,
    offset_of,
    publish,
    publish_at_once,
    seen,
)
from warren.broker.model.policy.policies import Policy


@pytest.mark.parametrize("how", ENDS)
def test_a_stream_survives_a_stop_and_a_crash(session: RestartableSession, how: str) -> None:
    declare_stream(session.channel, "s")
    publish(session.channel, "s", *bodies(0, 9))
    publish_at_once(session.channel, "s", *bodies(10, 99))
    end(session, how)
    publish(session.channel, "s", *bodies(100, 101))
    consume(session.channel, "s", "first", prefetch=200)
    assert seen(session.channel, 102) == numbered(0, 101)
    assert session.channel.state("s") == (102, 0)


@pytest.mark.parametrize("how", ENDS)
def test_an_empty_stream_survives_a_stop_and_a_crash(session: RestartableSession, how: str) -> None:
    declare_stream(session.channel, "s", x_max_age="1h")
    end(session, how)
    with pytest.raises(Closed, match="inequivalent arg 'x-max-age'"):
        session.connection.channel().declare("s", durable=True, x_queue_type="stream")


def identity(channel: Channel, tag: str) -> str:
    """Return the identity that the stream's first delivery to a new consumer has."""
    consume(channel, "s", "first", tag, x_warren_show_stream_id=True)
    (message,) = channel.deliveries(1)
    assert list(message.headers) == ["x-warren-stream-id", "x-stream-offset"]
    return str(message.headers["x-warren-stream-id"])


@pytest.mark.parametrize("how", ENDS)
def test_a_stream_keeps_its_identity_until_it_is_deleted(session: RestartableSession, how: str) -> None:
    declare_stream(session.channel, "s")
    publish(session.channel, "s", b"0")
    before = identity(session.channel, "a")
    end(session, how)
    assert identity(session.channel, "a") == before
    session.channel.delete("s")
    declare_stream(session.channel, "s")
    publish(session.channel, "s", b"0")
    again = identity(session.channel, "b")
    assert again != before
    end(session, how)
    assert identity(session.channel, "a") == again


def test_a_stream_in_memory_that_is_declared_again_has_another_identity(timed: Channel) -> None:
    found = []
    for tag in ("a", "b"):
        declare_stream(timed, "s")
        publish(timed, "s", b"0")
        found.append(identity(timed, tag))
        timed.delete("s")
    assert found[0] != found[1]


def test_the_identity_replaces_that_of_a_stream_from_which_a_message_was_copied(timed: Channel) -> None:
    declare_stream(timed, "s")
    publish(timed, "s", b"0", headers={"n": 1, "x-warren-stream-id": "another"})
    consume(timed, "s", "first", "plain")
    (plain,) = timed.deliveries(1)
    assert plain.headers == {"n": 1, "x-warren-stream-id": "another", "x-stream-offset": 0}
    consume(timed, "s", "first", "asking", x_warren_show_stream_id=True)
    (asked,) = timed.deliveries(1)
    assert list(asked.headers)[-1] == "x-stream-offset"
    assert asked.headers.keys() == plain.headers.keys()
    assert asked.headers["x-warren-stream-id"] not in ("", "another")


def test_transient_messages_of_a_stream_survive_a_crash(session: RestartableSession) -> None:
    declare_stream(session.channel, "s")
    publish(session.channel, "s", b"0", delivery_mode=1)
    session.crash()
    consume(session.channel, "s", "first")
    assert seen(session.channel, 1) == numbered(0, 0)


def test_the_segments_of_a_deleted_stream_are_removed(session: RestartableSession) -> None:
    folder = session.broker.data_dir
    assert folder is not None
    declare_stream(session.channel, "s")
    publish(session.channel, "s", b"0")
    assert len(list(folder.glob("streams/*"))) == 1
    session.channel.delete("s")
    wait_until(lambda: not list(folder.glob("streams/*")), "its segments are removed")
    declare_stream(session.channel, "s")
    publish(session.channel, "s", b"0")
    consume(session.channel, "s", "first")
    assert seen(session.channel, 1) == numbered(0, 0)


def test_a_dead_letter_in_a_stream_survives_a_crash(session: RestartableSession) -> None:
    channel = session.channel
    declare_stream(channel, "s")
    channel.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="s")
    session.publish("q", b"0")
    message = channel.get("q")
    assert message is not None
    channel.reject(message.tag)
    consume(channel, "s", "first")
    assert seen(channel, 1) == numbered(0, 0)
    session.crash()
    consume(session.channel, "s", "first")
    assert seen(session.channel, 1) == numbered(0, 0)
    assert session.channel.ready("q") == 0


def test_a_committed_transaction_survives_a_crash(session: RestartableSession) -> None:
    declare_stream(session.channel, "s")
    channel = session.connection.channel()
    channel.call(Tx.Select(), Tx.SelectOk)
    for body in bodies(0, 49):
        channel.publish("s", body)
    channel.call(Tx.Commit(), Tx.CommitOk)
    session.crash()
    consume(session.channel, "s", "first")
    assert seen(session.channel, 50) == numbered(0, 49)


def stream_segments(session: RestartableSession) -> list[Path]:
    folder = session.broker.data_dir
    assert folder is not None
    return sorted(folder.glob("streams/*"))


def restart_damaged(session: RestartableSession, at: int, size: int) -> None:
    """Stop the broker cleanly, cut one of the segments of its only stream to `size` bytes, and start it again.

    :param size: less than 0 counts from the end.
    """
    session.connection.close()
    session.broker.stop()
    path = stream_segments(session)[at]
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    session.broker.start()
    session.connect()


def test_a_message_behind_a_chunk_that_was_cut_short_is_read(session: RestartableSession) -> None:
    """The chunk holds the stored offset of a consumer."""
    declare_stream(session.channel, "s")
    publish(session.channel, "s", *bodies(0, 2))
    consume(session.channel, "s", "first", "reader", x_stream_automatic_offset_tracking=True)
    for message in session.channel.deliveries(3):
        session.channel.ack(message.tag)
    restart_damaged(session, 0, -10)
    publish(session.channel, "s", *bodies(3, 5))
    session.restart()
    consume(session.channel, "s", "first")
    assert seen(session.channel, 6) == numbered(0, 5)


def test_a_consumer_passes_a_segment_without_content(session: RestartableSession) -> None:
    declare_stream(session.channel, "s", x_stream_max_segment_size_bytes=4096)
    publish(session.channel, "s", *(b"x" * 3000 for _ in range(4)))
    restart_damaged(session, 1, 33)
    consume(session.channel, "s", "first")
    assert [offset for offset, _ in seen(session.channel, 3)] == [0, 2, 3]


# Full and failing disks


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def stored(tmp_path: Path, disk: Disk) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data", files=disk) as broker:
        yield broker


def test_a_full_disk_blocks_publishers_and_loses_nothing(stored: InProcessBroker, disk: Disk) -> None:
    with Connection(stored.url) as connection, Connection(stored.url) as watching:
        channel = connection.channel()
        declare_stream(channel, "s")
        publish(channel, "s", b"0")
        reader = watching.channel()
        consume(reader, "s", "first")
        disk.full = True
        channel.confirm()
        channel.publish("s", b"1")
        wait_until(lambda: stored.alarm == b"low on disk", "the alarm is set")
        channel.publish("s", b"2")
        assert isinstance(connection.event(), ConnectionClass.Blocked)
        assert seen(reader, 1) == numbered(0, 0)
        assert reader.state("s") == (1, 0)
        disk.full = False
        assert channel.settled(2) == [True, True]
        assert seen(reader, 2) == numbered(1, 2)
        assert isinstance(connection.event(), ConnectionClass.Unblocked)


def test_messages_waiting_for_a_failed_disk_are_nacked_and_not_delivered(
    stored: InProcessBroker, disk: Disk
) -> None:
    connection = Connection(stored.url)
    channel = connection.channel()
    declare_stream(channel, "s")
    publish(channel, "s", b"0")
    consume(channel, "s", "first")
    disk.failing = True
    channel.confirm()
    channel.publish("s", b"1")
    assert channel.next_method(Basic.Nack).delivery_tag == 1
    assert seen(channel, 1) == numbered(0, 0)
    assert channel.delivered("s") == []
    connection.abort()


# Stored offsets


def follow(channel: Channel, tag: str, start: object = "first") -> None:
    """Consume from the offset stored for a tag, or from `start` if none is stored."""
    channel.qos(100)
    arguments: Any = {"x-stream-offset": start, "x-stream-automatic-offset-tracking": True}
    channel.call(Basic.Consume(queue="s", consumer_tag=tag, arguments=arguments), Basic.ConsumeOk)


@pytest.mark.parametrize("how", ENDS)
def test_a_consumer_continues_behind_its_acknowledged_messages(session: RestartableSession, how: str) -> None:
    declare_stream(session.channel, "s")
    publish(session.channel, "s", *bodies(0, 9))
    follow(session.channel, "auditor")
    messages = session.channel.deliveries(10)
    session.channel.ack(messages[3].tag, multiple=True)
    session.channel.ack(messages[7].tag)
    session.sync()
    end(session, how)
    # Messages behind the first unacknowledged one are delivered again.
    follow(session.channel, "auditor")
    assert seen(session.channel, 6) == numbered(4, 9)
    follow(session.channel, "another")
    assert seen(session.channel, 10) == numbered(0, 9)


def test_the_stored_offset_moves_when_a_gap_of_acknowledgements_closes(session: RestartableSession) -> None:
    declare_stream(session.channel, "s")
    publish(session.channel, "s", *bodies(0, 4))
    follow(session.channel, "auditor")
    for message in reversed(session.channel.deliveries(5)):
        session.channel.ack(message.tag)
    session.channel.cancel("auditor")
    publish(session.channel, "s", b"5")
    follow(session.channel, "auditor")
    assert seen(session.channel, 1) == numbered(5, 5)


def test_offset_tracking_needs_a_consumer_tag(session: RestartableSession) -> None:
    declare_stream(session.channel, "s")
    with pytest.raises(Closed, match="the offset is stored under the consumer tag, which has to be given"):
        follow(session.channel, "")


def test_a_negative_offset_counts_from_the_end(session: RestartableSession) -> None:
    declare_stream(session.channel, "s")
    publish(session.channel, "s", *bodies(0, 9))
    consume(session.channel, "s", -3, "a")
    assert seen(session.channel, 3) == numbered(7, 9)
    consume(session.channel, "s", -30, "b")
    assert seen(session.channel, 10) == numbered(0, 9)


# Retention


def declare_small_segments(channel: Channel, **arguments: object) -> None:
    declare_stream(channel, "s", x_stream_max_segment_size_bytes=4096, **arguments)


def kilobytes(first: int, last: int) -> list[bytes]:
    return [body.ljust(1000, b".") for body in bodies(first, last)]


def offsets(channel: Channel, start: object = "first") -> tuple[int, int]:
    """Return the first and the last offset of a stream."""
    count, _ = channel.state("s")
    tag = consume(channel, "s", start, prefetch=1000)
    found = [offset for offset, _ in seen(channel, count)]
    channel.cancel(tag)
    assert found == list(range(found[0], found[0] + count))
    return found[0], found[-1]


def size(folder: Path) -> int:
    """Return the bytes of all segments; one may be removed meanwhile."""
    found = 0
    for path in folder.glob("streams/*"):
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def test_max_length_bytes_removes_old_segments(session: RestartableSession) -> None:
    declare_small_segments(session.channel, x_max_length_bytes=20_000)
    publish(session.channel, "s", *kilobytes(0, 99))
    first, last = offsets(session.channel)
    assert last == 99
    assert 80 <= first <= 88
    folder = session.broker.data_dir
    assert folder is not None
    wait_until(lambda: size(folder) <= 20_000 + 4096, "the segments are removed")
    session.crash()
    assert offsets(session.channel) == (first, last)
    assert offsets(session.channel, 0) == (first, last)


class HeldSyncs(Disk):
    """A disk whose syncs a test can hold back."""

    def __init__(self) -> None:
        super().__init__()
        self.free = Event()
        self.free.set()
        self.waiting = False

    def sync(self, handle: int) -> None:
        self.waiting = not self.free.is_set()
        self.free.wait()
        super().sync(handle)


def test_max_length_bytes_applies_once_the_segments_are_on_disk(tmp_path: Path) -> None:
    """Segments that are not on disk when the first batch is released are removed with the second one."""
    disk = HeldSyncs()
    with InProcessBroker(tmp_path / "data", files=disk) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        bounds = {"x_max_length_bytes": 1_000_000, "x_stream_max_segment_size_bytes": 300_000}
        declare_stream(channel, "s", **bounds)
        channel.confirm()
        disk.free.clear()
        try:
            channel.publish("s", b"first")
            wait_until(lambda: disk.waiting, "the first is written")
            # Ten chunks, and two messages that fit in the last segment.
            for _ in range(10 * 26 + 2):
                channel.publish("s", bytes(10_000))
            assert channel.state("s") == (0, 0)
        finally:
            disk.free.set()
        channel.settled(263)
        assert channel.state("s")[0] <= 130


def test_max_age_removes_old_segments(session: RestartableSession) -> None:
    """A segment is removed once its last message is too old, without a publish."""
    channel = session.channel
    declare_small_segments(channel, x_max_age="1h")
    publish(channel, "s", *kilobytes(0, 9))
    session.broker.advance(3000)
    publish(channel, "s", *kilobytes(10, 19))
    assert offsets(channel) == (0, 19)
    session.broker.advance(1000)
    first, last = offsets(channel)
    assert last == 19
    assert 6 <= first <= 10
    session.broker.advance(10_000)
    first, last = offsets(channel)
    assert last == 19
    assert 15 <= first <= 18, "the last segment stays"


def test_a_consumer_overtaken_by_retention_continues_with_the_oldest_message(
    session: RestartableSession,
) -> None:
    channel = session.channel
    declare_small_segments(channel, x_max_length_bytes=20_000)
    publish(channel, "s", *kilobytes(0, 9))
    consume(channel, "s", "first", prefetch=2)
    held = channel.deliveries(2)
    # Far more than is read ahead and cached for consumers at the end.
    publish_at_once(channel, "s", *kilobytes(10, 4999))
    last = held[-1]
    found: list[int] = []
    while not found or found[-1] != 4999:
        channel.ack(last.tag, multiple=True)
        (last,) = channel.deliveries(1)
        found.append(offset_of(last))
    assert found == sorted(found)
    assert len(found) < 4000


# Streams in memory


@pytest.fixture
def memory(timed: Channel) -> Channel:
    declare_stream(timed, "s")
    return timed


def test_a_stream_in_memory_can_be_read_from_an_offset(memory: Channel) -> None:
    publish(memory, "s", *bodies(0, 9))
    consume(memory, "s", 4, "reader")
    assert seen(memory, 6) == numbered(4, 9)
    publish_at_once(memory, "s", *bodies(10, 50))
    assert seen(memory, 41) == numbered(10, 50)
    assert memory.state("s") == (51, 0)


def test_retention_and_deletion_apply_to_a_stream_in_memory(
    timed: Channel, inprocess: InProcessBroker
) -> None:
    declare_small_segments(timed, x_max_length_bytes=20_000)
    publish(timed, "s", *kilobytes(0, 99))
    first, last = offsets(timed)
    assert (80 <= first <= 88, last) == (True, 99)
    timed.delete("s")
    declare_stream(timed, "s")
    assert timed.state("s") == (0, 0)


def test_stream_times_use_the_brokers_clock(memory: Channel, inprocess: InProcessBroker) -> None:
    publish(memory, "s", b"0")
    inprocess.advance(3600)
    publish(memory, "s", b"1")
    now = inprocess.call(inprocess.clock.now)
    consume(memory, "s", datetime.fromtimestamp(int(now) - 1800, UTC), "a")
    assert seen(memory, 1) == numbered(1, 1)
    consume(memory, "s", "2h", "b")
    assert seen(memory, 2) == numbered(0, 1)


def test_a_policy_limits_an_existing_stream(timed: Channel, inprocess: InProcessBroker) -> None:
    declare_small_segments(timed)
    publish(timed, "s", *kilobytes(0, 49))
    broker = inprocess.broker
    assert broker is not None
    policies = broker.virtual_hosts.declarations_of("/").vhost.policies
    inprocess.call(lambda: policies.put(Policy("short", "s", {"max-length-bytes": 20_000}, "streams")))
    first, last = offsets(timed)
    assert (30 <= first <= 38, last) == (True, 49)
    inprocess.call(lambda: policies.put(Policy("short", "s", {"max-age": "1m"}, "streams")))
    inprocess.advance(62)
    assert offsets(timed)[0] > first
