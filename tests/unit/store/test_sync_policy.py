"""Sync policies of the log: batch, always, off."""

from __future__ import annotations

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from tests.unit.store.test_log import acknowledge, publish
from warren.broker.store.log.group_commit import Sync


def test_sync_off_never_syncs_and_survives_a_killed_process() -> None:
    run = LogRun(Disk(), segment_size=600, sync=Sync.OFF)
    before = run.disk.syncs
    publish(run, 1, 40)
    run.sync_all()
    assert run.synced, "written batches count"
    assert run.disk.syncs == before
    assert set(LogRun(run.kill()).messages()) == set(range(1, 41))


def test_sync_always_writes_acknowledgements_at_once() -> None:
    run = LogRun(Disk(), sync=Sync.ALWAYS, ack_delay=60.0)
    publish(run, 1, 3)
    run.sync()
    acknowledge(run, 1, 2)
    run.sync_all()
    assert set(LogRun(run.kill()).messages()) == {3}


def test_sync_batch_delays_acknowledgements() -> None:
    run = LogRun(Disk(), ack_delay=60.0)
    publish(run, 1, 3)
    run.sync()
    acknowledge(run, 1, 2)
    for _ in range(20):
        run.step()
    assert set(LogRun(run.kill()).messages()) == {1, 2, 3}


def test_spilled_messages_are_written_and_not_synced() -> None:
    run = LogRun(Disk())
    before = run.disk.syncs
    position = run.log.spill(run.queue(), 1, b"head", b"content")
    run.sync_all()
    assert run.disk.syncs == before
    assert run.log.lookup.payloads(run.queue(), [(1, position)]) == [b"headcontent"]
    publish(run, 2, 2)
    run.sync_all()
    assert set(LogRun(run.kill()).messages()) == {2}
