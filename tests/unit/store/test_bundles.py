"""Bundles: successive messages of one queue with the same head share a record, and are read one by one."""

from __future__ import annotations

import pytest

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from tests.unit.store.test_batched_reads import CountingDisk
from warren.broker.store.log.record_format import (
    ACK,
    BUNDLE,
    FAN_OUT,
    HEADER,
    MESSAGE,
    Record,
    expand_record,
    segment_seed,
    unpack_pairs,
)
from warren.broker.store.log.segment_reader import SegmentReader, segment_path
from warren.broker.store.log.write_buffer import BUNDLE_SIZE

HEAD = b"exchange, key"
OTHER = b"another key"


def records(disk: Disk, identity: int, block: int, number: int = 1) -> list[Record]:
    """Return the records of a segment."""
    path = segment_path("/disk/log", number)
    reader = SegmentReader(disk, path, number, segment_seed(identity, number), block)
    found = []
    while (record := reader.next()) is not None:
        found.append(record)
    assert reader.damage == []
    return found


def kinds(run: LogRun, block: int) -> list[tuple[int, int, int]]:
    """Close the run and return type, queue and first sequence of each record."""
    identity = run.recovery.identity
    return [
        (record.kind, record.incarnation, record.sequence) for record in records(run.close(), identity, block)
    ]


@pytest.mark.parametrize("block", [64, 256, 65536])
def test_successive_messages_share_a_record_and_come_back_one_by_one(block: int) -> None:
    run = LogRun(Disk(), block=block, segment_size=1 << 20)
    contents = {number: b"%d" % number * (number % 7) for number in range(1, 101)}
    for number, content in contents.items():
        run.log.append_message(run.queue(), number, HEAD, content)
    identity = run.recovery.identity
    disk = run.close()
    (bundle,) = records(disk, identity, block)
    assert (bundle.kind, bundle.incarnation, bundle.sequence) == (BUNDLE, 1, 1)
    assert [(one.kind, one.sequence, one.payload) for one in expand_record(bundle)] == [
        (MESSAGE, number, HEAD + content) for number, content in contents.items()
    ]
    assert bundle.payload.count(HEAD) == 1
    after = LogRun(disk, block=block)
    assert after.recovery.damage == []
    assert after.messages() == {number: HEAD + content for number, content in contents.items()}
    after.close()


def test_messages_that_do_not_continue_a_bundle_begin_a_new_record() -> None:
    run = LogRun(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    log, first, second = run.log, run.queue(1), run.queue(2)
    for number in (1, 2, 4, 5):
        log.append_message(first, number, HEAD, b"a gap after 2")
    log.append_message(first, 6, OTHER, b"begins differently")
    log.append_message(second, 7, OTHER, b"of another queue")
    log.fan_out([(first, 7), (second, 8)], HEAD, b"for both")
    log.append_message(second, 9, OTHER, b"behind the fan-out")
    log.append_message(second, 10, OTHER, b"and again")
    run.sync()
    log.append_message(second, 11, OTHER, b"of the next batch")
    assert kinds(run, 65536) == [
        (BUNDLE, 1, 1),
        (BUNDLE, 1, 4),
        (MESSAGE, 1, 6),
        (MESSAGE, 2, 7),
        (FAN_OUT, 1, 7),
        (BUNDLE, 2, 9),
        (MESSAGE, 2, 11),
    ]


def test_bundles_are_bounded_and_a_large_message_has_its_own_record() -> None:
    run = LogRun(Disk(), block=65536, segment_size=1 << 20)
    for number in range(1, 1001):
        run.log.append_message(run.queue(), number, HEAD, b"x" * 100)
    for number in (1001, 1002):
        run.log.append_message(run.queue(), number, HEAD, bytes(BUNDLE_SIZE))
    run.log.append_message(run.queue(), 1003, HEAD, b"small again")
    identity, unwritten = run.recovery.identity, run.log.unwritten_bytes
    run.sync()
    assert run.log.unwritten_bytes == 0
    found = records(run.close(), identity, 65536)
    assert sum(HEADER + len(record.payload) for record in found) == unwritten
    bundles = [record for record in found if record.kind == BUNDLE]
    assert all(HEADER + len(record.payload) <= BUNDLE_SIZE for record in bundles)
    assert len(bundles) < 1000 * 104 / BUNDLE_SIZE + 2
    assert [(record.kind, record.sequence) for record in found[-3:]] == [
        (MESSAGE, 1001),
        (MESSAGE, 1002),
        (MESSAGE, 1003),
    ]


def test_a_bundle_stays_within_its_segment() -> None:
    run = LogRun(Disk(), block=65536, segment_size=1000)
    for number in range(1, 201):
        run.log.append_message(run.queue(), number, HEAD, b"x" * 50)
    run.sync_all()
    sizes = [len(run.disk.segment(number).content) for number in run.disk.segments()]
    assert len(sizes) > 10
    assert max(sizes) <= 1000 + 8
    after = LogRun(run.close(), block=65536)
    assert after.messages() == dict.fromkeys(range(1, 201), HEAD + b"x" * 50)
    after.close()


@pytest.mark.parametrize("at", range(0, 600, 7))
def test_a_flipped_bit_loses_one_bundle_and_is_reported(at: int) -> None:
    run = LogRun(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    for queue in (1, 2, 1):
        before = len(run.synced) * 10
        for number in range(before + 1, before + 11):
            run.log.append_message(run.queue(queue), number, HEAD, b"%d:" % number)
        run.sync()
    disk = run.close()
    content = disk.segment(1).content
    content[at % len(content)] ^= 1
    after = LogRun(disk, (1, 2), block=65536)
    found = sorted([*after.messages(1).items(), *after.messages(2).items()])
    numbers = [number for number, _ in found]
    bundles = [set(range(first, first + 10)) for first in (1, 11, 21)]
    hit = [bundle for bundle in bundles if not bundle <= set(numbers)]
    assert len(hit) <= 1
    assert len(after.recovery.damage) == len(hit)
    for bundle in hit:
        assert not bundle & set(numbers)
    assert all(payload == HEAD + b"%d:" % number for number, payload in found)
    after.close()


def test_damage_of_a_bundle_is_reported_with_queue_and_first_message() -> None:
    run = LogRun(Disk(), block=65536, segment_size=1 << 20)
    for number in range(5, 8):
        run.log.append_message(run.queue(), number, HEAD, b"%d:" % number)
    disk = run.close()
    content = disk.segment(1).content
    content[content.index(b"6:")] ^= 1
    after = LogRun(disk, block=65536)
    assert after.recovery.damage == [
        "segment 1, offset 8: a bundle of messages of queue 1 from message 5 is damaged"
    ]
    after.close()


def test_a_torn_bundle_is_dropped_whole() -> None:
    run = LogRun(Disk(), segment_size=1 << 20)
    for number in range(1, 4):
        run.log.append_message(run.queue(), number, HEAD, b"firm")
    run.sync()
    firm = run.written
    for number in range(4, 20):
        run.log.append_message(run.queue(), number, HEAD, b"torn")
    run.sync()
    written, disk = run.written, run.kill()
    whole = bytes(disk.segment(1).content[:written])
    for size in range(firm, len(whole)):
        disk.segment(1).content[:] = whole[:size]
        after = LogRun(disk.kill().forget_marks(), segment_size=1 << 20)
        disk.is_dead = False
        assert after.recovery.damage == []
        assert sorted(after.messages()) == [1, 2, 3]
        after.kill()


def test_bundled_messages_are_read_by_position_with_few_reads() -> None:
    disk = CountingDisk()
    run = LogRun(disk, block=65536, segment_size=1 << 20)
    count = 3000
    contents = {number: b"%d:" % number + b"x" * 100 for number in range(1, count + 1)}
    positions = [
        (number, int(run.log.append_message(run.queue(), number, HEAD, contents[number])))
        for number in range(1, count + 1)
    ]
    run.sync_all()
    assert len({position for _, position in positions}) < count / 50
    disk.bytes_read = 0
    payloads = run.log.lookup.payloads(run.queue(), positions)
    assert payloads == [HEAD + content for content in contents.values()]
    written = sum(len(disk.segment(number).content) for number in disk.segments())
    assert disk.bytes_read < 4 * written
    # One by one, last first; and one at a position where it does not stand.
    for number, position in reversed(positions[-300:]):
        assert run.log.lookup.payloads(run.queue(), [(number, position)]) == [HEAD + contents[number]]
    assert run.log.lookup.payloads(run.queue(), [(count + 1, positions[-1][1])]) == [None]
    run.close()


def test_compaction_copies_the_live_messages_of_a_bundle() -> None:
    run = LogRun(Disk(), segment_size=4096, slack=4096)
    log, queue = run.log, run.queue()
    live = {}
    for number in range(1, 4001):
        content = b"%d:" % number + b"x" * 40
        log.append_message(queue, number, HEAD, content)
        if number % 100:
            log.acknowledge(queue, number)
        else:
            live[number] = HEAD + content
        if number % 500 == 0:
            run.sync()
    run.sync_all()
    run.run_until(lambda: run.log.is_synced and len(run.disk.segments()) < 20)
    after = LogRun(run.close(), segment_size=4096, slack=4096)
    assert after.recovery.damage == []
    assert after.messages() == live
    after.close()


def test_a_fan_out_or_a_spill_finishes_the_open_bundle() -> None:
    run = LogRun(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    log, queue = run.log, run.queue(1)
    for number in (1, 2, 3):
        log.append_message(queue, number, HEAD, b"bundled")
    both = int(log.fan_out([(queue, 4), (run.queue(2), 1)], b"for ", b"both"))
    for number in (5, 6):
        log.append_message(queue, number, HEAD, b"bundled")
    spilled = int(log.spill(queue, 7, b"spil", b"led"))
    run.sync_all()
    assert log.lookup.payloads(queue, [(4, both), (7, spilled)]) == [b"for both", b"spilled"]
    run.close()


def test_bundles_count_towards_the_batch_size() -> None:
    run = LogRun(Disk(), block=65536, segment_size=1 << 24, batch_size=100_000)
    run.disk.syncs_allowed.clear()
    for number in range(1, 10_001):
        run.log.append_message(run.queue(), number, HEAD, b"x" * 50)
    # 54 bytes each.
    assert run.log.batch == pytest.approx(540_000 / 100_000, abs=1.5)
    run.disk.syncs_allowed.set()
    run.sync_all()
    run.close()


def test_a_bundled_message_counts_with_the_size_of_its_copy_before_and_after_a_start() -> None:
    run = LogRun(Disk(), block=65536, segment_size=1 << 20)
    long_head = HEAD * 20
    for number in range(1, 101):
        run.log.append_message(run.queue(), number, long_head, b"x" * 10)
    run.sync_all()
    extents = run.queue().live.extents
    assert sum(extent.live_bytes for extent in extents) == 100 * (HEADER + len(long_head) + 10)
    after = LogRun(run.close(), block=65536)
    extents = after.recovery.live[1].extents
    assert sum(extent.live_bytes for extent in extents) == 100 * (HEADER + len(long_head) + 10)
    after.close()


def test_compacting_bundles_does_not_enlarge_the_log() -> None:
    """A copy is a record of its own, many times as long as a message's share of a bundle."""
    run = LogRun(Disk(), segment_size=1 << 16, slack=1 << 16, block=65536)
    log, queue = run.log, run.queue()
    long_head = HEAD * 20
    for number in range(1, 20_001):
        log.append_message(queue, number, long_head, b"%d" % number)
        if number % 500 == 0:
            run.sync()
    for number in range(1, 20_001):
        if number % 10:
            log.acknowledge(queue, number)
    run.sync_all()

    def size() -> int:
        return sum(len(run.disk.segment(number).content) for number in run.disk.segments())

    before = most = size()
    for _ in range(2000):
        run.step()
        most = max(most, size())
    run.sync_all()
    assert most <= before + (1 << 17)
    after = LogRun(run.close(), block=65536, slack=1 << 30)
    assert sorted(after.messages()) == list(range(10, 20_001, 10))
    after.close()


def test_acknowledgements_in_a_group_are_one_entry_for_each_queue() -> None:
    run = LogRun(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    for number in range(1, 10):
        run.log.append_message(run.queue(), number, HEAD, b"x")
    run.log.begin_group()
    for number in (4, 5, 6, 1, 2, 8):
        run.log.acknowledge(run.queue(), number)
        run.log.append_message(run.queue(2), number, OTHER, b"moved")
    assert run.log.group_size() > 6 * len(OTHER + b"moved")
    run.log.end_group()
    identity = run.recovery.identity
    disk = run.close()
    group = records(disk, identity, 65536)[-1]
    entries = expand_record(group)
    assert [one.kind for one in entries] == [MESSAGE] * 6 + [ACK]
    assert unpack_pairs(entries[-1].payload) == [1, 2, 4, 6, 8, 8]
    after = LogRun(disk, (1, 2), block=65536)
    assert sorted(after.messages(1)) == [3, 7, 9]
    assert sorted(after.messages(2)) == [1, 2, 4, 5, 6, 8]
