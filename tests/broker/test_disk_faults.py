"""Failing and full disks: replies to clients, and confirmed messages that must not be lost."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Basic
from pamqp.commands import Connection as ConnectionClass

from tests.support.blocking_client import Connection
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.store.file_system.os_files import OsFiles


class Disk(OsFiles):
    """A file system that a test can let fail or fill up."""

    failing = False
    full = False

    def write(self, handle: int, data: bytes, offset: int) -> None:
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
        wait_until(lambda: stored.alarm == b"low on disk", "the alarm is set")
        channel.publish("q", b"3", delivery_mode=2)
        blocked = publishing.event()
        assert isinstance(blocked, ConnectionClass.Blocked)
        assert blocked.reason == "low on disk"
        # Connections that only consume are not blocked.
        assert other.drain("q") == [b"1", b"2", b"3"]
        channel.publish("q", b"4", delivery_mode=2)
        assert other.ready("q") == 0
        assert not channel.events
        disk.full = False
        assert isinstance(publishing.event(), ConnectionClass.Unblocked)
        channel.settled_until(4)
        assert other.drain("q") == [b"4"]
        assert not publishing.events


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
