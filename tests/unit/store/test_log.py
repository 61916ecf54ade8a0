"""Behaviour of the log without faults: group commit, fan-out, groups, the gate, limits of disk use."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.log.compaction import MIN_SEGMENTS


def publish(run: LogRun, first: int, last: int, size: int = 50, queue: int = 1) -> None:
    for number in range(first, last + 1):
        run.log.append_message(run.queue(queue), number, b"%d:" % number, b"x" * size)


def acknowledge(run: LogRun, first: int, last: int, queue: int = 1) -> None:
    for number in range(first, last + 1):
        run.log.acknowledge(run.queue(queue), number)


def test_head_and_content_come_back_as_one_payload_in_order_of_the_sequence() -> None:
    run = LogRun(Disk())
    run.log.append_message(run.queue(), 7, b"head", b"content")
    run.log.append_message(run.queue(), 9, b"", b"")
    run.log.append_message(run.queue(), 10, b"only head", b"")
    after = LogRun(run.close())
    assert after.recovery.queues[1].messages == [(7, b"headcontent", 0), (9, b"", 0), (10, b"only head", 0)]
    assert after.recovery.queues[1].last_sequence == 10


def test_records_appended_in_one_turn_of_the_loop_are_synced_once() -> None:
    run = LogRun(Disk(), segment_size=1 << 20)
    publish(run, 1, 1)
    run.sync()
    before = run.disk.syncs
    publish(run, 2, 1000)
    assert run.log.batch == 2
    assert run.log.unwritten_bytes > 50_000
    run.sync()
    assert run.synced == [1, 2]
    assert run.disk.syncs == before + 1
    assert run.log.unwritten_bytes == 0


def test_records_appended_during_a_sync_form_the_next_batch() -> None:
    run = LogRun(Disk(), segment_size=1 << 20)
    run.disk.syncs_allowed.clear()
    publish(run, 1, 1)
    run.step()
    publish(run, 2, 500)
    for _ in range(5):
        run.step()
    assert run.log.batch == 2
    assert run.synced == []
    run.disk.syncs_allowed.set()
    run.sync_all()
    assert run.synced == [1, 2]


def test_a_batch_that_grows_too_large_is_closed() -> None:
    run = LogRun(Disk(), segment_size=1 << 20, batch_size=2000)
    publish(run, 1, 100)
    assert run.log.batch > 2
    run.sync_all()
    assert run.synced == list(range(1, run.log.batch))
    assert len(LogRun(run.kill()).messages()) == 100


def test_acknowledgements_without_messages_are_written_after_the_ack_delay() -> None:
    run = LogRun(Disk(), segment_size=1 << 20)
    publish(run, 1, 100)
    run.sync()
    size = run.disk.used()
    for number in [*range(1, 60, 2), *range(2, 60, 2)]:
        run.log.acknowledge(run.queue(), number)
    run.sync_all()
    assert run.disk.used() - size < 60, "sixty acknowledgements in turn are one range"
    assert set(LogRun(run.kill()).messages()) == set(range(60, 101))


def test_a_fan_out_is_stored_once_and_lives_until_its_last_target_acknowledges_it() -> None:
    run = LogRun(Disk(), (1, 2, 3), segment_size=1 << 20)
    body = b"y" * 10_000
    run.log.fan_out([(run.queue(1), 5), (run.queue(2), 1), (run.queue(3), 9)], b"head", body)
    run.log.acknowledge(run.queue(2), 1)
    run.sync_all()
    assert run.disk.used() < 10_600
    after = LogRun(run.kill(), (1, 2, 3))
    assert after.messages(1) == {5: b"head" + body}
    assert after.messages(2) == {}
    assert after.messages(3) == {9: b"head" + body}
    assert after.recovery.queues[2].last_sequence == 1


def test_a_group_is_one_record() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=1 << 20)
    publish(run, 1, 2)
    run.log.begin_group()
    run.log.acknowledge(run.queue(1), 1)
    run.log.append_message(run.queue(2), 1, b"dead", b"letter")
    run.log.fan_out([(run.queue(1), 3), (run.queue(2), 2)], b"", b"both")
    run.log.record_delivery_count(run.queue(1), 2, 4)
    run.log.end_group()
    run.sync()
    after = LogRun(run.kill(), (1, 2))
    assert after.recovery.queues[1].messages == [(2, b"2:" + b"x" * 50, 4), (3, b"both", 0)]
    assert after.recovery.queues[2].messages == [(1, b"deadletter", 0), (2, b"both", 0)]


def test_a_group_is_one_record_although_it_is_suspended() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=1 << 20)
    publish(run, 1, 1)
    run.log.begin_group()
    run.log.append_message(run.queue(2), 1, b"first", b" part")
    run.log.acknowledge(run.queue(1), 1)
    group = run.log.suspend_group()
    # Meanwhile records are appended at once, without the group.
    publish(run, 2, 2)
    run.sync_all()
    assert group.count == 1
    assert run.log.is_synced
    run.log.begin_group(group)
    run.log.append_message(run.queue(2), 2, b"second", b" part")
    run.log.end_group()
    run.sync()
    after = LogRun(run.kill(), (1, 2))
    assert set(after.messages(1)) == {2}
    assert after.messages(2) == {1: b"first part", 2: b"second part"}


def test_an_empty_group_writes_nothing() -> None:
    run = LogRun(Disk())
    run.log.begin_group()
    run.log.end_group()
    assert run.log.is_synced


def test_the_highest_delivery_count_is_kept() -> None:
    run = LogRun(Disk())
    publish(run, 1, 2)
    for count in (1, 3, 2):
        run.log.record_delivery_count(run.queue(), 1, count)
    run.sync_all()
    run.log.record_delivery_count(run.queue(), 1, 4)
    after = LogRun(run.close())
    assert [count for _, _, count in after.recovery.queues[1].messages] == [4, 0]


def test_only_a_stop_by_close_is_clean() -> None:
    run = LogRun(Disk())
    assert not run.recovery.clean
    publish(run, 1, 1)
    clean = LogRun(run.close())
    assert clean.recovery.clean
    killed = LogRun(clean.kill())
    assert not killed.recovery.clean
    assert len(killed.messages()) == 1


def test_close_writes_the_batch_that_was_collecting() -> None:
    run = LogRun(Disk())
    publish(run, 1, 10)
    acknowledge(run, 1, 4)
    after = LogRun(run.close())
    assert set(after.messages()) == set(range(5, 11))


def test_a_batch_counts_once_the_definitions_before_it_are_committed() -> None:
    run = LogRun(Disk())
    publish(run, 1, 1)
    run.sync()
    run.gate.submitted = 3
    publish(run, 2, 2)
    run.run_until(lambda: run.log.unwritten_bytes == 0)
    publish(run, 3, 3)
    run.run_until(lambda: run.log.unwritten_bytes == 0)
    assert run.synced == [1]
    run.gate.commit()
    assert run.synced == [1, 2, 3]


def test_a_batch_does_not_wait_for_deletions_of_definitions() -> None:
    run = LogRun(Disk())
    run.gate.submitted = 3
    run.gate.last_is_addition = False
    publish(run, 1, 1)
    run.run_until(lambda: run.synced == [1])


def test_records_of_unknown_queues_are_dead() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=600)
    publish(run, 1, 40, queue=2)
    publish(run, 1, 1)
    run.sync()
    after = LogRun(run.kill(), (1,), segment_size=600)
    assert set(after.recovery.queues) == {1}
    after.run_until(lambda: len(after.disk.segments()) == 1)
    assert set(LogRun(after.kill()).messages()) == {1}


def test_recovery_returns_the_highest_sequence_that_any_record_names() -> None:
    run = LogRun(Disk())
    publish(run, 1, 5)
    acknowledge(run, 1, 5)
    run.sync_all()
    after = LogRun(run.kill())
    assert after.messages() == {}
    assert after.recovery.queues[1].last_sequence == 5


# Disk use


def test_a_queue_that_is_consumed_at_once_leaves_no_old_segments() -> None:
    run = LogRun(Disk(), segment_size=4096)
    for round_ in range(50):
        publish(run, round_ * 20 + 1, round_ * 20 + 20)
        run.sync()
        acknowledge(run, round_ * 20 + 1, round_ * 20 + 20)
    run.sync_all()
    run.run_until(lambda: len(run.disk.segments()) <= 2)
    assert run.disk.used() <= 2 * 4096 + 300


def test_segments_are_deleted_oldest_first() -> None:
    run = LogRun(Disk(), segment_size=2000, slack=1 << 20)
    publish(run, 1, 200)
    run.sync()
    held = run.disk.segments()
    acknowledge(run, 2, 200)
    run.sync_all()
    assert run.disk.segments() == held, "the oldest segment still has a live message"
    acknowledge(run, 1, 1)
    run.sync_all()
    run.run_until(lambda: len(run.disk.segments()) == 1)


def test_compaction_frees_segments_that_hold_a_few_live_messages() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=4096, slack=8192)
    kept = {}
    for number in range(1, 2001):
        run.log.append_message(run.queue(1), number, b"", b"x" * 100)
        run.log.acknowledge(run.queue(1), number)
        if number % 100 == 1:
            kept[number] = b"stays %d" % number
            run.log.append_message(run.queue(2), number, b"", kept[number])
        if number % 50 == 0:
            run.sync()
    run.run_until(lambda: run.disk.used() < 2 * 20 * 60 + 8192 + 4096)
    after = LogRun(run.kill(), (1, 2))
    assert after.messages(2) == kept
    assert after.recovery.damage == []


def test_compaction_copies_a_fan_out_for_the_targets_that_still_hold_it() -> None:
    run = LogRun(Disk(), (1, 2, 3), segment_size=2000, slack=2000)
    targets = [(run.queue(1), 1), (run.queue(2), 1), (run.queue(3), 1)]
    run.log.fan_out(targets, b"", b"for three")
    run.log.record_delivery_count(run.queue(3), 1, 2)
    run.sync_all()
    acknowledge(run, 1, 1, queue=1)
    for first in range(2, 400, 20):
        publish(run, first, first + 19, queue=1)
        acknowledge(run, first, first + 19, queue=1)
        run.sync()
    run.run_until(lambda: 1 not in run.disk.segments())
    run.sync_all()
    after = LogRun(run.kill(), (1, 2, 3))
    assert after.recovery.queues[2].messages == [(1, b"for three", 0)]
    assert after.recovery.queues[3].messages == [(1, b"for three", 2)]
    assert 1 not in after.messages(1)


def until_few_segments(run: LogRun) -> None:
    run.run_until(lambda: len(run.disk.segments()) <= MIN_SEGMENTS + 1)


def test_restarts_do_not_accumulate_segments() -> None:
    disk = Disk()
    for number in range(1, 20):
        run = LogRun(disk, segment_size=1 << 20)
        publish(run, number, number)
        run.sync()
        until_few_segments(run)
        disk = run.close() if number % 2 else run.kill_synced()
    assert set(LogRun(disk).messages()) == set(range(1, 20))


def test_segments_of_a_deleted_queue_are_freed_once_its_deletion_is_committed() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=600)
    publish(run, 1, 40, queue=2)
    run.sync()
    segments = run.disk.segments()
    run.gate.submitted = 1
    run.log.drop_queue(run.queue(2))
    publish(run, 1, 1)
    run.run_until(lambda: run.log.unwritten_bytes == 0)
    assert run.disk.segments()[: len(segments)] == segments, "after a crash the queue would be there again"
    run.gate.commit()
    run.run_until(lambda: len(run.disk.segments()) <= 2)
    assert set(LogRun(run.kill(), (1,)).messages()) == {1}


def test_appending_to_a_queue_and_dropping_it_in_one_batch() -> None:
    run = LogRun(Disk(), (1, 2))
    publish(run, 1, 5, queue=2)
    acknowledge(run, 1, 2, queue=2)
    run.log.drop_queue(run.queue(2))
    publish(run, 1, 1)
    run.sync_all()
    assert set(LogRun(run.close()).messages()) == {1}


def test_a_message_that_a_group_acknowledges_in_its_own_batch_keeps_no_segment() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=2000, slack=1 << 20)
    publish(run, 1, 1)
    run.log.begin_group()
    run.log.acknowledge(run.queue(1), 1)
    run.log.append_message(run.queue(2), 1, b"", b"dead letter")
    run.log.end_group()
    run.log.acknowledge(run.queue(2), 1)
    for first in range(2, 200, 20):
        publish(run, first, first + 19)
        acknowledge(run, first, first + 19)
        run.sync()
    run.run_until(lambda: 1 not in run.disk.segments())


def test_messages_acknowledged_during_compaction_do_not_come_back() -> None:
    run = LogRun(Disk(), (1, 2), segment_size=3000, slack=3000, batch_size=300, ack_delay=60)
    for number in range(1, 101):
        publish(run, number, number, size=200, queue=1)
        publish(run, number, number, queue=2)
    run.sync()
    acknowledge(run, 1, 100, queue=1)
    publish(run, 101, 101)
    run.step()
    # The batch that makes the log wasteful is being written; these wait for the next one.
    acknowledge(run, 1, 50, queue=2)
    run.run_until(lambda: run.log.synced > 5 and 1 not in run.disk.segments())
    # When the segments of the acknowledgements are gone too, no copy may have been left behind.
    newest = run.disk.segments()[-1]
    for first in range(102, 1002, 20):
        publish(run, first, first + 19, size=200)
        acknowledge(run, first, first + 19)
        run.sync()
    run.run_until(lambda: run.disk.segments()[0] > newest)
    assert set(LogRun(run.close(), (1, 2)).messages(2)) == set(range(51, 101))


def test_a_deleted_segment_does_not_come_back_after_a_start_without_it() -> None:
    for chance in range(10):
        run = LogRun(Disk(), segment_size=600)
        publish(run, 1, 20)
        acknowledge(run, 1, 5)
        run.sync()
        disk = run.kill()
        first = disk.segments()[0]
        # Removed, and the process killed before the folder was synced.
        del disk.files[f"/disk/log/{first:016d}.log"]
        after = LogRun(disk)
        disk = after.disk.cut_power(Random(chance))
        after.end()
        assert first not in disk.segments()


def test_a_segment_without_live_messages_before_it_is_read_whole_does_not_end_compaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = LogRun(Disk(), (1, 2), segment_size=1 << 20, slack=1 << 20, block=1 << 16)
    # Its first message is all that has to be copied; most of it has not been read then.
    publish(run, 1, 1, queue=2)
    for first in range(1, 4001, 500):
        publish(run, first, first + 499, size=1000)
        acknowledge(run, first, first + 499)
        run.sync()
    run.run_until(lambda: 1 not in run.disk.segments())
    run.sync_all()
    assert "log.read_failed" not in caplog.text
    assert set(LogRun(run.kill(), (1, 2), block=1 << 16).messages(2)) == {1}


class FullDescriptorTable(Disk):
    """A disk of a process that at times has no file descriptor left to read a file."""

    exhausted = False

    def read(self, path: str, offset: int, size: int) -> bytes:
        if self.exhausted:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().read(path, offset, size)


def test_compaction_and_indexes_go_on_when_there_are_descriptors_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FullDescriptorTable()
    run = LogRun(disk, (1, 2), segment_size=2000, slack=2000)
    disk.exhausted = True
    publish(run, 1, 1, queue=2)
    published = 0

    def fill() -> None:
        nonlocal published
        publish(run, published + 1, published + 50)
        acknowledge(run, published + 1, published + 50)
        published += 50
        run.sync()

    while not ("log.read_failed" in caplog.text and "index.build_failed" in caplog.text):
        fill()
    disk.exhausted = False
    for _ in range(20):
        fill()
    run.sync_all()
    assert run.disk.segments()[0] > 1
    assert set(LogRun(run.kill(), (1, 2)).messages(2)) == {1}
