"""Failure of each write, sync and commit in turn: the broker keeps all that it has confirmed."""

from __future__ import annotations

import contextlib
import errno
import functools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock

import pytest

from tests.faults.chaos.fault_injection import (
    ClientSession,
    ExpectedState,
    FaultyDatabase,
    FaultyDisk,
    Refused,
    found,
)
from tests.support.blocking_client import Closed
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError
from warren.broker.store.log.log import Log
from warren.core.errors import ExitStatus

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

FULL_FOR = 3
"""Calls that a full disk refuses before there is room again."""


@contextmanager
def quick() -> Iterator[None]:
    """Make segments so small that they fill within the session, and retry on a full disk at once."""
    log = functools.partial(Log, segment_size=16_384, slack=16_384, retry=0.005)
    with (
        mock.patch("warren.broker.broker.Log", log),
        mock.patch("warren.broker.store.definitions.definitions_database._RETRY", 0.005),
    ):
        yield


class Case:
    """One client session with a broker on a faulty disk, and the content that the next broker finds."""

    def __init__(self, path: Path, disk: FaultyDisk, database: FaultyDatabase) -> None:
        self.path = path
        self.disk = disk
        self.database = database
        self.expected_state = ExpectedState()
        self.finished = False
        self.line = ""

    def run(self) -> Case:
        DataFolder.open(self.path).close()
        with quick(), self.database(), InProcessBroker(self.path, files=self.disk) as broker:
            running = broker.broker
            assert running is not None
            failure = running.failure
            assert failure is not None
            conversation = ClientSession(broker.url, self.expected_state)
            # A broker process would end now.
            hang_up = conversation.connection.raw.hang_up
            broker.call(lambda: failure.add_done_callback(lambda _: hang_up()))
            with contextlib.suppress(Refused, Closed, ConnectionError, TimeoutError):
                conversation.run()
                self.finished = True
            conversation.end()
            if not self.finished:
                wait_until(failure.done, "the broker reports the failure of its disk")
            if failure.done():
                self.line = failure.result()
            with contextlib.suppress(StoreError):
                broker.stop()
        return self

    def check(self, disk: Disk) -> None:
        """Check the messages that a new broker finds on the disk."""
        with InProcessBroker(self.path, files=disk) as broker:
            left = found(broker.url)
        assert set(self.expected_state.declared) <= set(left)
        self.expected_state.check(
            {queue: left.get(queue, []) for queue in ("plain", "source", "dead-letters", *left)}
        )


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Run the session on a disk without faults."""
    return Case(tmp_path_factory.mktemp("whole") / "data", FaultyDisk(Disk()), FaultyDatabase()).run()


def test_the_session_reaches_every_kind_of_call(calls: Case) -> None:
    assert calls.finished
    assert set(calls.disk.calls) >= {"open", "write", "sync", "unlink", "sync_folder"}
    assert calls.database.commits > 6
    calls.check(calls.disk.kill())


def not_started(error: StoreError) -> None:
    """Check the error of a broker that did not start: one line and status 74."""
    assert error.status is ExitStatus.IO
    assert "\n" not in str(error)


def test_the_broker_stops_at_the_first_failed_call(calls: Case, tmp_path: Path) -> None:
    lines = set()
    for first in range(1, len(calls.disk.calls) + 1):
        disk = FaultyDisk(Disk(), errno.EIO, first)
        try:
            case = Case(tmp_path / str(first), disk, FaultyDatabase()).run()
        except StoreError as error:
            not_started(error)
            continue
        assert "\n" not in case.line
        lines.add(case.line.partition(str(tmp_path))[0])
        # Data that was written and not synced may be on disk or not.
        case.check(disk.cut_power(Random(first)))
    assert "cannot write the log in " in lines


def test_the_broker_waits_for_each_call_without_room(
    calls: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = 0
    for first in range(1, len(calls.disk.calls) + 1):
        disk = FaultyDisk(Disk(), errno.ENOSPC, first, FULL_FOR)
        try:
            case = Case(tmp_path / str(first), disk, FaultyDatabase()).run()
        except StoreError as error:
            # A folder cannot be created without room. Later starts need none.
            not_started(error)
            refused += 1
            continue
        assert case.finished, f"call {first}, {disk.refused}: {case.line or 'no answer'}"
        assert not case.line
        case.check(disk.kill())
    assert refused < len(calls.disk.calls) / 2
    assert caplog.text.count("event=alarm.raised resource=disk") > len(calls.disk.calls) / 4


def test_the_broker_stops_at_the_first_failed_commit(calls: Case, tmp_path: Path) -> None:
    lines = []
    for first in range(1, calls.database.commits + 1):
        disk, database = FaultyDisk(Disk()), FaultyDatabase(sqlite3.SQLITE_IOERR, first)
        try:
            case = Case(tmp_path / str(first), disk, database).run()
        except StoreError as error:
            not_started(error)
            continue
        if case.line:
            assert case.line == "cannot write the definitions: disk I/O error"
            lines.append(case.line)
        case.check(disk.kill())
    assert len(lines) > calls.database.commits / 2


def test_the_broker_waits_for_each_commit_without_room(calls: Case, tmp_path: Path) -> None:
    for first in range(2, calls.database.commits + 1):
        disk, database = FaultyDisk(Disk()), FaultyDatabase(sqlite3.SQLITE_FULL, first, FULL_FOR)
        case = Case(tmp_path / str(first), disk, database).run()
        assert case.finished, f"commit {first}: {case.line or 'no answer'}"
        assert not case.line
        case.check(disk.kill())
