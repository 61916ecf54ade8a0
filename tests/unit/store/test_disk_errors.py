"""Behaviour of the log when the disk is full or fails."""

from __future__ import annotations

import pytest

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from tests.unit.store.test_log import acknowledge, publish
from warren.broker.store.errors import StoreError
from warren.core.errors import ExitStatus


def test_after_a_failed_sync_nothing_is_confirmed_or_written() -> None:
    run = LogRun(Disk())
    publish(run, 1, 1)
    run.sync()
    run.disk.fail_syncs = True
    publish(run, 2, 2)
    run.run_until(lambda: run.log.failed)
    assert run.failures == ["cannot write the log in /disk/log: Input/output error"]
    run.disk.fail_syncs = False
    before = bytes(run.disk.segment(1).content)
    publish(run, 3, 3)
    acknowledge(run, 1, 1)
    for _ in range(20):
        run.step()
    after = run.close()
    assert run.synced == [1]
    assert bytes(after.segment(1).content) == before
    assert run.failures == ["cannot write the log in /disk/log: Input/output error"]
    assert not LogRun(after).recovery.clean


def test_after_a_failed_write_nothing_is_confirmed() -> None:
    run = LogRun(Disk())
    publish(run, 1, 1)
    run.sync()
    run.disk.fail_writes = True
    publish(run, 2, 2)
    run.run_until(lambda: run.log.failed)
    assert run.failures == ["cannot write the log in /disk/log: Input/output error"]
    assert set(LogRun(run.kill()).messages()) == {1}


def test_a_disk_failure_during_close_is_reported() -> None:
    run = LogRun(Disk())
    publish(run, 1, 1)
    run.sync()
    run.disk.fail_syncs = True
    run.close()
    assert run.log.failed
    assert run.failures == ["cannot mark the log as closed in /disk/log: Input/output error"]


def test_the_log_waits_for_a_full_disk_without_loss() -> None:
    run = LogRun(Disk(), segment_size=1 << 20)
    publish(run, 1, 10)
    run.sync()
    whole = run.written
    run.disk.free_bytes = 500
    publish(run, 11, 30)
    run.run_until(lambda: run.log.disk_full)
    publish(run, 31, 40)
    for _ in range(50):
        run.step()
    assert run.full == [True]
    assert run.synced == [1]
    assert len(run.disk.segment(1).content) == whole, "the written part of the batch is cut off again"
    assert run.log.unwritten_bytes > 0
    run.disk.free_bytes = None
    run.sync_all()
    assert run.full == [True, False]
    assert not run.log.disk_full
    assert run.synced == [1, 2, 3]
    assert set(LogRun(run.kill()).messages()) == set(range(1, 41))


def test_the_log_waits_for_room_for_a_new_segment() -> None:
    run = LogRun(Disk(), segment_size=600)
    publish(run, 1, 5)
    run.sync()
    run.disk.free_bytes = 0
    publish(run, 6, 40)
    run.run_until(lambda: run.log.disk_full)
    run.disk.free_bytes = None
    run.sync_all()
    after = LogRun(run.kill())
    assert set(after.messages()) == set(range(1, 41))
    assert after.recovery.damage == []


def test_acknowledgements_free_room_on_a_full_disk() -> None:
    run = LogRun(Disk(), segment_size=2000, slack=1 << 20)
    publish(run, 1, 100)
    run.sync()
    run.disk.free_bytes = 100
    publish(run, 101, 110)
    run.run_until(lambda: run.log.disk_full)
    acknowledge(run, 1, 90)
    run.run_until(lambda: not run.log.disk_full)
    run.sync_all()
    assert set(LogRun(run.kill()).messages()) == set(range(91, 111))


def test_a_dead_lettered_message_stays_until_its_group_is_written() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=600)
    publish(run, 1, 10)
    run.sync()
    run.disk.free_bytes = 0
    for number in range(1, 11):
        run.log.begin_group()
        run.log.acknowledge(run.queue(1), number)
        run.log.append_message(run.queue(2), number, b"", b"dead letter")
        run.log.end_group()
    run.run_until(lambda: run.log.disk_full)
    for _ in range(50):
        run.step()
    after = LogRun(run.kill(), (1, 2))
    assert set(after.messages(1)) | set(after.messages(2)) == set(range(1, 11))


def test_close_on_a_full_disk_raises_store_error() -> None:
    run = LogRun(Disk())
    publish(run, 1, 1)
    run.sync()
    run.disk.free_bytes = 0
    publish(run, 2, 3)
    run.run_until(lambda: run.log.disk_full)
    with pytest.raises(StoreError, match="no room left in /disk/log") as caught:
        run.loop.run_until_complete(run.log.close())
    assert caught.value.status is ExitStatus.IO
    after = LogRun(run.kill())
    assert set(after.messages()) == {1}
    assert not after.recovery.clean


def test_compaction_reports_and_abandons_unreadable_messages(caplog: pytest.LogCaptureFixture) -> None:
    run = LogRun(Disk(), (1, 2), segment_size=2000, slack=2000)
    publish(run, 1, 1, queue=2)
    run.log.append_message(run.queue(2), 2, b"", b"damaged")
    run.sync()
    content = run.disk.segment(1).content
    content[content.index(b"damaged")] ^= 1
    for first in range(1, 400, 20):
        publish(run, first, first + 19)
        acknowledge(run, first, first + 19)
        run.sync()
    run.run_until(lambda: 1 not in run.disk.segments())
    run.sync_all()
    assert "message 2 of queue 2 is damaged" in caplog.text
    assert "event=log.messages_lost segment=1 queue=2 messages=1 first=2 last=2" in caplog.text
    assert set(LogRun(run.kill(), (1, 2)).messages(2)) == {1}
