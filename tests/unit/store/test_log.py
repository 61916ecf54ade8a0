"""What the log promises while nothing goes wrong: group commit, fan-out, groups, the gate, the limits of disk use."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.store.disk import Disk
from tests.unit.store.node import Node
from warren.broker.store.log.compaction import MIN_SEGMENTS


def publish(node: Node, first: int, last: int, size: int = 50, queue: int = 1) -> None:
    for number in range(first, last + 1):
        node.log.append_message(node.queue(queue), number, b"%d:" % number, b"x" * size)


def acknowledge(node: Node, first: int, last: int, queue: int = 1) -> None:
    for number in range(first, last + 1):
        node.log.acknowledge(node.queue(queue), number)


def test_head_and_content_come_back_as_one_payload_in_order_of_the_sequence() -> None:
    node = Node(Disk())
    node.log.append_message(node.queue(), 7, b"head", b"content")
    node.log.append_message(node.queue(), 9, b"", b"")
    node.log.append_message(node.queue(), 10, b"only head", b"")
    after = Node(node.close())
    assert after.recovery.queues[1].messages == [(7, b"headcontent", 0), (9, b"", 0), (10, b"only head", 0)]
    assert after.recovery.queues[1].last_sequence == 10


def test_what_is_appended_in_one_turn_of_the_loop_is_synced_once() -> None:
    node = Node(Disk(), segment_size=1 << 20)
    publish(node, 1, 1000)
    assert node.log.batch == 1
    assert node.log.unwritten_bytes > 50_000
    node.sync()
    assert node.synced == [1]
    assert node.disk.syncs == 1
    assert node.log.unwritten_bytes == 0


def test_what_arrives_during_a_sync_is_the_next_batch() -> None:
    node = Node(Disk(), segment_size=1 << 20)
    node.disk.go_on.clear()
    publish(node, 1, 1)
    node.step()
    publish(node, 2, 500)
    for _ in range(5):
        node.step()
    assert node.log.batch == 2
    assert node.synced == []
    node.disk.go_on.set()
    node.settle()
    assert node.synced == [1, 2]


def test_a_batch_that_grows_too_large_is_closed() -> None:
    node = Node(Disk(), segment_size=1 << 20, batch_size=2000)
    publish(node, 1, 100)
    assert node.log.batch > 2
    node.settle()
    assert node.synced == list(range(1, node.log.batch))
    assert len(Node(node.kill()).messages()) == 100


def test_acknowledgements_alone_are_written_after_a_short_while() -> None:
    node = Node(Disk(), segment_size=1 << 20)
    publish(node, 1, 100)
    node.sync()
    size = node.disk.used()
    for number in [*range(1, 60, 2), *range(2, 60, 2)]:
        node.log.acknowledge(node.queue(), number)
    node.settle()
    assert node.disk.used() - size < 60, "sixty acknowledgements in turn are one range"
    assert set(Node(node.kill()).messages()) == set(range(60, 101))


def test_a_fan_out_is_stored_once_and_lives_until_its_last_target_has_let_go() -> None:
    node = Node(Disk(), (1, 2, 3), segment_size=1 << 20)
    body = b"y" * 10_000
    node.log.fan_out([(node.queue(1), 5), (node.queue(2), 1), (node.queue(3), 9)], b"head", body)
    node.log.acknowledge(node.queue(2), 1)
    node.settle()
    assert node.disk.used() < 10_600
    after = Node(node.kill(), (1, 2, 3))
    assert after.messages(1) == {5: b"head" + body}
    assert after.messages(2) == {}
    assert after.messages(3) == {9: b"head" + body}
    assert after.recovery.queues[2].last_sequence == 1


def test_a_group_is_one_record() -> None:
    node = Node(Disk(), (1, 2), segment_size=1 << 20)
    publish(node, 1, 2)
    node.log.begin_group()
    node.log.acknowledge(node.queue(1), 1)
    node.log.append_message(node.queue(2), 1, b"dead", b"letter")
    node.log.fan_out([(node.queue(1), 3), (node.queue(2), 2)], b"", b"both")
    node.log.record_delivery_count(node.queue(1), 2, 4)
    node.log.end_group()
    node.sync()
    after = Node(node.kill(), (1, 2))
    assert after.recovery.queues[1].messages == [(2, b"2:" + b"x" * 50, 4), (3, b"both", 0)]
    assert after.recovery.queues[2].messages == [(1, b"deadletter", 0), (2, b"both", 0)]


def test_an_empty_group_writes_nothing() -> None:
    node = Node(Disk())
    node.log.begin_group()
    node.log.end_group()
    assert node.log.is_synced


def test_the_highest_delivery_count_is_kept() -> None:
    node = Node(Disk())
    publish(node, 1, 2)
    for count in (1, 3, 2):
        node.log.record_delivery_count(node.queue(), 1, count)
    node.settle()
    node.log.record_delivery_count(node.queue(), 1, 4)
    after = Node(node.close())
    assert [count for _, _, count in after.recovery.queues[1].messages] == [4, 0]


def test_only_a_stop_by_close_is_clean() -> None:
    node = Node(Disk())
    assert not node.recovery.clean
    publish(node, 1, 1)
    clean = Node(node.close())
    assert clean.recovery.clean
    killed = Node(clean.kill())
    assert not killed.recovery.clean
    assert len(killed.messages()) == 1


def test_close_writes_what_was_still_collecting() -> None:
    node = Node(Disk())
    publish(node, 1, 10)
    acknowledge(node, 1, 4)
    after = Node(node.close())
    assert set(after.messages()) == set(range(5, 11))


def test_a_batch_counts_once_the_definitions_before_it_are_committed() -> None:
    node = Node(Disk())
    publish(node, 1, 1)
    node.sync()
    node.gate.submitted = 3
    publish(node, 2, 2)
    node.run_until(lambda: node.log.unwritten_bytes == 0)
    publish(node, 3, 3)
    node.run_until(lambda: node.log.unwritten_bytes == 0)
    assert node.synced == [1]
    node.gate.commit()
    assert node.synced == [1, 2, 3]


def test_records_of_queues_that_are_not_known_are_dead() -> None:
    node = Node(Disk(), (1, 2), segment_size=600)
    publish(node, 1, 40, queue=2)
    publish(node, 1, 1)
    node.sync()
    after = Node(node.kill(), (1,), segment_size=600)
    assert set(after.recovery.queues) == {1}
    after.run_until(lambda: len(after.disk.segments()) == 1)
    assert set(Node(after.kill()).messages()) == {1}


def test_a_sequence_is_remembered_as_long_as_any_record_names_it() -> None:
    node = Node(Disk())
    publish(node, 1, 5)
    acknowledge(node, 1, 5)
    node.settle()
    after = Node(node.kill())
    assert after.messages() == {}
    assert after.recovery.queues[1].last_sequence == 5


# Disk use


def test_a_queue_that_is_consumed_at_once_leaves_nothing_behind() -> None:
    node = Node(Disk(), segment_size=4096)
    for round_ in range(50):
        publish(node, round_ * 20 + 1, round_ * 20 + 20)
        node.sync()
        acknowledge(node, round_ * 20 + 1, round_ * 20 + 20)
    node.settle()
    node.run_until(lambda: len(node.disk.segments()) <= 2)
    assert node.disk.used() <= 2 * 4096 + 300


def test_segments_go_oldest_first() -> None:
    node = Node(Disk(), segment_size=2000, slack=1 << 20)
    publish(node, 1, 200)
    node.sync()
    held = node.disk.segments()
    acknowledge(node, 2, 200)
    node.settle()
    assert node.disk.segments() == held, "the oldest one still has a live message"
    acknowledge(node, 1, 1)
    node.settle()
    node.run_until(lambda: len(node.disk.segments()) == 1)


def test_a_few_live_messages_do_not_hold_the_disk() -> None:
    node = Node(Disk(), (1, 2), segment_size=4096, slack=8192)
    kept = {}
    for number in range(1, 2001):
        node.log.append_message(node.queue(1), number, b"", b"x" * 100)
        node.log.acknowledge(node.queue(1), number)
        if number % 100 == 1:
            kept[number] = b"stays %d" % number
            node.log.append_message(node.queue(2), number, b"", kept[number])
        if number % 50 == 0:
            node.sync()
    node.run_until(lambda: node.disk.used() < 2 * 20 * 60 + 8192 + 4096)
    after = Node(node.kill(), (1, 2))
    assert after.messages(2) == kept
    assert after.recovery.damage == []


def test_a_fan_out_is_copied_forward_for_the_targets_that_still_hold_it() -> None:
    node = Node(Disk(), (1, 2, 3), segment_size=2000, slack=2000)
    targets = [(node.queue(1), 1), (node.queue(2), 1), (node.queue(3), 1)]
    node.log.fan_out(targets, b"", b"for three")
    node.log.record_delivery_count(node.queue(3), 1, 2)
    node.settle()
    acknowledge(node, 1, 1, queue=1)
    for first in range(2, 400, 20):
        publish(node, first, first + 19, queue=1)
        acknowledge(node, first, first + 19, queue=1)
        node.sync()
    node.run_until(lambda: 1 not in node.disk.segments())
    node.settle()
    after = Node(node.kill(), (1, 2, 3))
    assert after.recovery.queues[2].messages == [(1, b"for three", 0)]
    assert after.recovery.queues[3].messages == [(1, b"for three", 2)]
    assert 1 not in after.messages(1)


def until_few_segments(node: Node) -> None:
    node.run_until(lambda: len(node.disk.segments()) <= MIN_SEGMENTS + 1)


def test_restarts_do_not_add_segments_for_ever() -> None:
    disk = Disk()
    for number in range(1, 20):
        node = Node(disk, segment_size=1 << 20)
        publish(node, number, number)
        node.sync()
        until_few_segments(node)
        disk = node.close() if number % 2 else node.kill_synced()
    assert set(Node(disk).messages()) == set(range(1, 20))


def test_the_messages_of_a_dropped_queue_go_when_its_deletion_is_committed() -> None:
    node = Node(Disk(), (1, 2), segment_size=600)
    publish(node, 1, 40, queue=2)
    node.sync()
    segments = node.disk.segments()
    node.gate.submitted = 1
    node.log.drop_queue(node.queue(2))
    publish(node, 1, 1)
    node.run_until(lambda: node.log.unwritten_bytes == 0)
    assert node.disk.segments()[: len(segments)] == segments, "after a crash the queue would be there again"
    node.gate.commit()
    node.run_until(lambda: len(node.disk.segments()) <= 2)
    assert set(Node(node.kill(), (1,)).messages()) == {1}


def test_appending_to_a_queue_and_dropping_it_in_one_batch() -> None:
    node = Node(Disk(), (1, 2))
    publish(node, 1, 5, queue=2)
    acknowledge(node, 1, 2, queue=2)
    node.log.drop_queue(node.queue(2))
    publish(node, 1, 1)
    node.settle()
    assert set(Node(node.close()).messages()) == {1}


def test_a_message_that_a_group_removes_in_the_batch_that_brought_it_holds_no_segment() -> None:
    node = Node(Disk(), (1, 2), segment_size=2000, slack=1 << 20)
    publish(node, 1, 1)
    node.log.begin_group()
    node.log.acknowledge(node.queue(1), 1)
    node.log.append_message(node.queue(2), 1, b"", b"dead letter")
    node.log.end_group()
    node.log.acknowledge(node.queue(2), 1)
    for first in range(2, 200, 20):
        publish(node, first, first + 19)
        acknowledge(node, first, first + 19)
        node.sync()
    node.run_until(lambda: 1 not in node.disk.segments())


def test_what_is_acknowledged_while_it_is_copied_forward_stays_gone() -> None:
    node = Node(Disk(), (1, 2), segment_size=3000, slack=3000, batch_size=300, ack_delay=60)
    for number in range(1, 101):
        publish(node, number, number, size=200, queue=1)
        publish(node, number, number, queue=2)
    node.sync()
    acknowledge(node, 1, 100, queue=1)
    publish(node, 101, 101)
    node.step()
    # The batch that makes the log wasteful is being written; these wait for the next one.
    acknowledge(node, 1, 50, queue=2)
    node.run_until(lambda: node.log.synced > 5 and 1 not in node.disk.segments())
    # When the segments of the acknowledgements are gone too, no copy may have been left behind.
    newest = node.disk.segments()[-1]
    for first in range(102, 1002, 20):
        publish(node, first, first + 19, size=200)
        acknowledge(node, first, first + 19)
        node.sync()
    node.run_until(lambda: node.disk.segments()[0] > newest)
    assert set(Node(node.close(), (1, 2)).messages(2)) == set(range(51, 101))


def test_a_segment_that_was_removed_does_not_come_back_once_the_log_was_read_without_it() -> None:
    for chance in range(10):
        node = Node(Disk(), segment_size=600)
        publish(node, 1, 20)
        acknowledge(node, 1, 5)
        node.sync()
        disk = node.kill()
        first = disk.segments()[0]
        # Removed, and the process killed before the folder was synced.
        del disk.nodes[f"/disk/log/{first:016d}.log"]
        after = Node(disk)
        disk = after.disk.cut_power(Random(chance))
        after.end()
        assert first not in disk.segments()


def test_a_segment_that_is_empty_before_all_of_it_was_read_does_not_end_compaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(Disk(), (1, 2), segment_size=1 << 20, slack=1 << 20, block=1 << 16)
    # Its first message is all that has to be copied; most of it has not been read then.
    publish(node, 1, 1, queue=2)
    for first in range(1, 4001, 500):
        publish(node, first, first + 499, size=1000)
        acknowledge(node, first, first + 499)
        node.sync()
    node.run_until(lambda: 1 not in node.disk.segments())
    node.settle()
    assert "log.read_failed" not in caplog.text
    assert set(Node(node.kill(), (1, 2), block=1 << 16).messages(2)) == {1}
