"""Failing and full disks: replies to clients, and confirmed messages that must not be lost."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic, Tx
from pamqp.commands import Connection as ConnectionClass

from tests.support.blocking_client import Connection
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import eventually, wait_until
from tests.support.raw_client import RawClient
from warren.broker import Broker
from warren.broker.store.file_system.os_files import OsFiles
from warren.sdk import App, PublishTimeout, Queue, State


class Disk(OsFiles):
    """A file system that a test can let fail or fill up."""

    failing = False
    full = False

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        """Writes wait for it."""
        self.released.set()
        self.held = threading.Event()
        """Set when a write has waited for `released`."""

    def write(self, handle: int, data: bytes, offset: int) -> None:
        if not self.released.is_set():
            self.held.set()
            self.released.wait(60)
        if self.full:
            # Like a real disk, it writes a part of the data.
            super().write(handle, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(handle, data, offset)

    def sync(self, handle: int) -> None:
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(handle)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def stored(tmp_path: Path, disk: Disk) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data", files=disk) as broker:
        yield broker


def test_messages_waiting_for_a_failed_disk_are_nacked(stored: InProcessBroker, disk: Disk) -> None:
    with Connection(stored.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        channel.publish("q", b"safe", delivery_mode=2)
        channel.publish("q", b"transient")
        assert channel.settled(2) == [True, True]
        disk.failing = True
        # In one piece: once the alarm is raised, the broker reads nothing more from publishers.
        connection.raw.send_bytes(b"".join(channel.encoded("q", b"lost", delivery_mode=2) for _ in range(20)))
        refused = channel.next_method(Basic.Nack)
        while (refused.delivery_tag or 0) < 22:
            refused = channel.next_method(Basic.Nack)
        broker = stored.broker
        assert broker is not None
        failure = broker.failure
        assert failure is not None
        wait_until(failure.done, "the broker reports the failure")
        line = failure.result()
        assert line.startswith("cannot write the log in ")
        assert line.count("\n") == 0
        # Nothing is written to that file again.
        disk.failing = False
        another = Connection(stored.url)
        other = another.channel()
        other.confirm()
        other.publish("q", b"too late", delivery_mode=2)
        assert other.next_method(Basic.Nack).delivery_tag == 1
        another.abort()


def test_messages_confirmed_before_a_disk_failure_survive_it(
    stored: InProcessBroker, disk: Disk, tmp_path: Path
) -> None:
    with Connection(stored.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        for number in range(10):
            channel.publish("q", b"%d" % number, delivery_mode=2)
        assert channel.settled(10) == [True] * 10
        disk.failing = True
        channel.publish("q", b"refused", delivery_mode=2)
        channel.next_method(Basic.Nack)
    stored.stop()
    with InProcessBroker(tmp_path / "data") as again, Connection(again.url) as connection:
        channel = connection.channel()
        found = channel.drain("q")
        # A refused message may have reached the disk.
        assert found[:10] == [b"%d" % number for number in range(10)]
        assert found[10:] in ([], [b"refused"])


def test_a_broker_exits_with_74_and_one_line_when_its_disk_fails(broker: BrokerProcess) -> None:
    connection = Connection(broker.url)
    channel = connection.channel()
    channel.declare("q", durable=True)
    channel.confirm()
    channel.publish("q", b"safe", delivery_mode=2)
    assert channel.settled(1) == [True]
    # No file may grow beyond this: a larger write fails, as it would on a broken disk.
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (200_000, 200_000))
    channel.publish("q", b"x" * 300_000, delivery_mode=2)
    assert channel.next_method(Basic.Nack).delivery_tag == 2
    child, broker.child = broker.child, None
    assert child is not None
    assert child.wait() == 74
    error_lines = [line for line in child.errors.splitlines() if line.startswith("warren broker: ")]
    assert len(error_lines) == 1
    assert error_lines[0].startswith("warren broker: cannot write the log in ")
    with pytest.raises(ConnectionError):
        connection.read()
    connection.abort()
    broker.start()
    with Connection(broker.url) as connection:
        assert connection.channel().drain("q") == [b"safe"]


def test_a_full_disk_blocks_publishers_and_loses_nothing(stored: InProcessBroker, disk: Disk) -> None:
    publishing, consuming = Connection(stored.url), Connection(stored.url)
    with publishing, consuming:
        channel, other = publishing.channel(), consuming.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        channel.publish("q", b"1", delivery_mode=2)
        assert channel.settled(1) == [True]
        disk.full = True
        channel.publish("q", b"2", delivery_mode=2)
        blocked = publishing.event()
        assert isinstance(blocked, ConnectionClass.Blocked)
        assert blocked.reason == "low on disk"
        # Connections that only consume are not blocked.
        assert other.drain("q") == [b"1", b"2"]
        channel.publish("q", b"3", delivery_mode=2)
        channel.publish("q", b"4", delivery_mode=2)
        assert other.ready("q") == 0
        assert not channel.events
        disk.full = False
        assert isinstance(publishing.event(), ConnectionClass.Unblocked)
        channel.settled_until(4)
        assert other.drain("q") == [b"3", b"4"]
        assert not publishing.events


def test_a_publisher_that_waits_for_its_confirm_is_blocked_when_the_write_fails(
    stored: InProcessBroker, disk: Disk
) -> None:
    """The disk fills up faster than the watch of free space sees it, and the publisher publishes nothing more."""
    publishing, consuming = Connection(stored.url), Connection(stored.url)
    with publishing, consuming:
        channel, idle = publishing.channel(), publishing.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        disk.full = True
        channel.publish("q", b"1", delivery_mode=2)
        blocked = publishing.event()
        assert isinstance(blocked, ConnectionClass.Blocked)
        assert blocked.reason == "low on disk"
        assert not idle.events
        # A connection on which nobody waits for the disk is not blocked.
        assert consuming.channel().drain("q") == [b"1"]
        assert not consuming.events
        disk.full = False
        assert isinstance(publishing.event(), ConnectionClass.Unblocked)
        channel.settled_until(1)
        assert not publishing.events


def test_a_transaction_that_waits_for_its_commit_is_blocked_when_the_write_fails(
    stored: InProcessBroker, disk: Disk
) -> None:
    with RawClient(stored.url) as peer:
        peer.connect().open()
        peer.declare("q", durable=True)
        peer.call(Tx.Select(), 1, Tx.SelectOk)
        disk.full = True
        peer.publish("", "q", b"1", Basic.Properties(delivery_mode=2))
        peer.send(Tx.Commit())
        peer.expect(ConnectionClass.Blocked)
        disk.full = False
        peer.expect(ConnectionClass.Unblocked)
        peer.expect(Tx.CommitOk)


def test_a_publisher_is_blocked_although_the_watch_has_raised_the_alarm_before_the_write_fails(
    stored: InProcessBroker, disk: Disk
) -> None:
    """The publisher has published before the alarm, and waits for its confirm."""
    assert stored.broker is not None
    resources = stored.broker.resources
    with Connection(stored.url) as publishing:
        channel = publishing.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        stored.flush_definitions()  # the write that is held is that of the message
        disk.released.clear()
        channel.publish("q", b"1", delivery_mode=2)
        assert disk.held.wait(60)
        stored.call(lambda: setattr(resources, "disk_free_limit", 2**62))
        wait_until(lambda: stored.alarm == b"low on disk", "the alarm is set")
        disk.full = True
        disk.released.set()
        assert isinstance(publishing.event(), ConnectionClass.Blocked)
        disk.full = False
        channel.settled_until(1)
        # The watch still finds too little room.
        assert not publishing.events
        stored.call(lambda: setattr(resources, "disk_free_limit", 0))
        assert isinstance(publishing.event(), ConnectionClass.Unblocked)


async def test_an_app_whose_publish_waits_on_a_full_disk_is_blocked(tmp_path: Path, disk: Disk) -> None:
    async with Broker(data_dir=tmp_path / "data", files=disk) as broker, App(broker.url) as app:
        app_states: list[State] = []
        app.on_state(app_states.append)
        await app.declare_now(Queue("q", dead_letter_exchange=None))
        disk.full = True
        waiting = asyncio.create_task(app.publish(b"1", key="q", timeout=120))
        await eventually(lambda: app.state is State.BLOCKED, "the App is blocked")
        assert app.health().reason == "low on disk"
        with pytest.raises(PublishTimeout, match="low on disk"):
            await app.publish(b"2", key="q", timeout=0.05)
        disk.full = False
        await waiting
        await eventually(lambda: app.state is State.READY, "the App is ready")
        assert app_states == [State.BLOCKED, State.READY]


def test_messages_that_waited_for_room_survive_a_crash(stored: InProcessBroker, disk: Disk) -> None:
    with contextlib.closing(Connection(stored.url)) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        disk.full = True
        for number in range(5):
            channel.publish("q", b"%d" % number, delivery_mode=2)
        wait_until(lambda: stored.alarm == b"low on disk", "the alarm is set")
        disk.full = False
        channel.settled_until(5)
    stored.crash()
    with Connection(stored.url) as again:
        assert again.channel().drain("q") == [b"0", b"1", b"2", b"3", b"4"]
