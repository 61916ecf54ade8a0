"""Messages of one queue that begin alike and follow each other share a record, and nobody who reads them notices."""

from __future__ import annotations

import pytest

from tests.unit.store.disk import Disk
from tests.unit.store.node import Node
from tests.unit.store.test_fetch import CountingDisk
from warren.broker.store.log.record_format import (
    BUNDLE,
    FAN_OUT,
    HEADER,
    MESSAGE,
    Record,
    expand_record,
    segment_seed,
)
from warren.broker.store.log.segment_reader import SegmentReader, segment_path
from warren.broker.store.log.write_buffer import BUNDLE_SIZE

HEAD = b"exchange, key"
OTHER = b"another key"


def records(disk: Disk, identity: int, block: int, number: int = 1) -> list[Record]:
    """What stands in a segment."""
    path = segment_path("/disk/log", number)
    reader = SegmentReader(disk, path, number, segment_seed(identity, number), block)
    found = []
    while (record := reader.next()) is not None:
        found.append(record)
    assert reader.damage == []
    return found


def kinds(node: Node, block: int) -> list[tuple[int, int, int]]:
    """Type, queue and first sequence of each record, once all of them are written; the node is closed."""
    identity = node.recovery.identity
    return [
        (record.kind, record.incarnation, record.sequence)
        for record in records(node.close(), identity, block)
    ]


@pytest.mark.parametrize("block", [64, 256, 65536])
def test_messages_that_follow_each_other_are_one_record_and_come_back_one_by_one(block: int) -> None:
    node = Node(Disk(), block=block, segment_size=1 << 20)
    contents = {number: b"%d" % number * (number % 7) for number in range(1, 101)}
    for number, content in contents.items():
        node.log.append_message(node.queue(), number, HEAD, content)
    identity = node.recovery.identity
    disk = node.close()
    (bundle,) = records(disk, identity, block)
    assert (bundle.kind, bundle.incarnation, bundle.sequence) == (BUNDLE, 1, 1)
    assert [(one.kind, one.sequence, one.payload) for one in expand_record(bundle)] == [
        (MESSAGE, number, HEAD + content) for number, content in contents.items()
    ]
    assert bundle.payload.count(HEAD) == 1
    after = Node(disk, block=block)
    assert after.recovery.damage == []
    assert after.messages() == {number: HEAD + content for number, content in contents.items()}
    after.close()


def test_what_does_not_follow_begins_a_record_of_its_own() -> None:
    node = Node(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    log, first, second = node.log, node.queue(1), node.queue(2)
    for number in (1, 2, 4, 5):
        log.append_message(first, number, HEAD, b"a gap after 2")
    log.append_message(first, 6, OTHER, b"begins differently")
    log.append_message(second, 7, OTHER, b"of another queue")
    log.fan_out([(first, 7), (second, 8)], HEAD, b"for both")
    log.append_message(second, 9, OTHER, b"behind the fan-out")
    log.append_message(second, 10, OTHER, b"and again")
    node.sync()
    log.append_message(second, 11, OTHER, b"of the next batch")
    assert kinds(node, 65536) == [
        (BUNDLE, 1, 1),
        (BUNDLE, 1, 4),
        (MESSAGE, 1, 6),
        (MESSAGE, 2, 7),
        (FAN_OUT, 1, 7),
        (BUNDLE, 2, 9),
        (MESSAGE, 2, 11),
    ]


def test_a_bundle_has_a_bound_and_a_large_message_has_its_own_record() -> None:
    node = Node(Disk(), block=65536, segment_size=1 << 20)
    for number in range(1, 1001):
        node.log.append_message(node.queue(), number, HEAD, b"x" * 100)
    for number in (1001, 1002):
        node.log.append_message(node.queue(), number, HEAD, bytes(BUNDLE_SIZE))
    node.log.append_message(node.queue(), 1003, HEAD, b"small again")
    identity, unwritten = node.recovery.identity, node.log.unwritten_bytes
    node.sync()
    assert node.log.unwritten_bytes == 0
    found = records(node.close(), identity, 65536)
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
    node = Node(Disk(), block=65536, segment_size=1000)
    for number in range(1, 201):
        node.log.append_message(node.queue(), number, HEAD, b"x" * 50)
    node.settle()
    sizes = [len(node.disk.segment(number).content) for number in node.disk.segments()]
    assert len(sizes) > 10
    assert max(sizes) <= 1000 + 8
    after = Node(node.close(), block=65536)
    assert after.messages() == dict.fromkeys(range(1, 201), HEAD + b"x" * 50)
    after.close()


@pytest.mark.parametrize("at", range(0, 600, 7))
def test_a_flipped_bit_costs_one_bundle_and_is_reported(at: int) -> None:
    node = Node(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    for queue in (1, 2, 1):
        before = len(node.synced) * 10
        for number in range(before + 1, before + 11):
            node.log.append_message(node.queue(queue), number, HEAD, b"%d:" % number)
        node.sync()
    disk = node.close()
    content = disk.segment(1).content
    content[at % len(content)] ^= 1
    after = Node(disk, (1, 2), block=65536)
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
    node = Node(Disk(), block=65536, segment_size=1 << 20)
    for number in range(5, 8):
        node.log.append_message(node.queue(), number, HEAD, b"%d:" % number)
    disk = node.close()
    content = disk.segment(1).content
    content[content.index(b"6:")] ^= 1
    after = Node(disk, block=65536)
    assert after.recovery.damage == [
        "segment 1, offset 8: a bundle of messages of queue 1 from message 5 is damaged"
    ]
    after.close()


def test_a_bundle_that_is_torn_counts_not_at_all() -> None:
    node = Node(Disk(), segment_size=1 << 20)
    for number in range(1, 4):
        node.log.append_message(node.queue(), number, HEAD, b"firm")
    node.sync()
    firm = node.written
    for number in range(4, 20):
        node.log.append_message(node.queue(), number, HEAD, b"torn")
    node.sync()
    written, disk = node.written, node.kill()
    whole = bytes(disk.segment(1).content[:written])
    for size in range(firm, len(whole)):
        disk.segment(1).content[:] = whole[:size]
        after = Node(disk.kill(), segment_size=1 << 20)
        disk.off = False
        assert after.recovery.damage == []
        assert sorted(after.messages()) == [1, 2, 3]
        after.kill()


def test_bundled_messages_are_found_by_their_places_and_read_together() -> None:
    disk = CountingDisk()
    node = Node(disk, block=65536, segment_size=1 << 20)
    count = 3000
    contents = {number: b"%d:" % number + b"x" * 100 for number in range(1, count + 1)}
    places = [
        (number, int(node.log.append_message(node.queue(), number, HEAD, contents[number])))
        for number in range(1, count + 1)
    ]
    node.settle()
    assert len({place for _, place in places}) < count / 50
    disk.bytes_read = 0
    payloads = node.log.lookup.payloads(node.queue(), places)
    assert payloads == [HEAD + content for content in contents.values()]
    written = sum(len(disk.segment(number).content) for number in disk.segments())
    assert disk.bytes_read < 4 * written
    # One by one, last first; and none that does not stand there.
    for number, place in reversed(places[-300:]):
        assert node.log.lookup.payloads(node.queue(), [(number, place)]) == [HEAD + contents[number]]
    assert node.log.lookup.payloads(node.queue(), [(count + 1, places[-1][1])]) == [None]
    node.close()


def test_what_is_left_of_a_bundle_is_copied_forward() -> None:
    node = Node(Disk(), segment_size=4096, slack=4096)
    log, queue = node.log, node.queue()
    live = {}
    for number in range(1, 4001):
        content = b"%d:" % number + b"x" * 40
        log.append_message(queue, number, HEAD, content)
        if number % 100:
            log.acknowledge(queue, number)
        else:
            live[number] = HEAD + content
        if number % 500 == 0:
            node.sync()
    node.settle()
    node.run_until(lambda: node.log.is_synced and len(node.disk.segments()) < 20)
    after = Node(node.close(), segment_size=4096, slack=4096)
    assert after.recovery.damage == []
    assert after.messages() == live
    after.close()


def test_a_fan_out_and_a_spill_stand_behind_the_bundle_that_was_open() -> None:
    node = Node(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    log, queue = node.log, node.queue(1)
    for number in (1, 2, 3):
        log.append_message(queue, number, HEAD, b"bundled")
    both = int(log.fan_out([(queue, 4), (node.queue(2), 1)], b"for ", b"both"))
    for number in (5, 6):
        log.append_message(queue, number, HEAD, b"bundled")
    spilled = int(log.spill(queue, 7, b"spil", b"led"))
    node.settle()
    assert log.lookup.payloads(queue, [(4, both), (7, spilled)]) == [b"for both", b"spilled"]
    node.close()


def test_bundles_close_a_batch_that_has_become_large() -> None:
    node = Node(Disk(), block=65536, segment_size=1 << 24, batch_size=100_000)
    node.disk.go_on.clear()
    for number in range(1, 10_001):
        node.log.append_message(node.queue(), number, HEAD, b"x" * 50)
    # 54 bytes each.
    assert node.log.batch == pytest.approx(540_000 / 100_000, abs=1.5)
    node.disk.go_on.set()
    node.settle()
    node.close()


def test_a_bundled_message_counts_as_what_its_copy_will_cost_before_and_after_a_start() -> None:
    node = Node(Disk(), block=65536, segment_size=1 << 20)
    long_head = HEAD * 20
    for number in range(1, 101):
        node.log.append_message(node.queue(), number, long_head, b"x" * 10)
    node.settle()
    extents = node.queue().live.extents
    assert sum(extent.live_bytes for extent in extents) == 100 * (HEADER + len(long_head) + 10)
    after = Node(node.close(), block=65536)
    extents = after.recovery.live[1].extents
    assert sum(extent.live_bytes for extent in extents) == 100 * (HEADER + len(long_head) + 10)
    after.close()


def test_copying_what_is_left_of_bundles_makes_the_log_no_larger() -> None:
    """A copy is a record of its own, many times as long as what a bundle needs for a message."""
    node = Node(Disk(), segment_size=1 << 16, slack=1 << 16, block=65536)
    log, queue = node.log, node.queue()
    long_head = HEAD * 20
    for number in range(1, 20_001):
        log.append_message(queue, number, long_head, b"%d" % number)
        if number % 500 == 0:
            node.sync()
    for number in range(1, 20_001):
        if number % 10:
            log.acknowledge(queue, number)
    node.settle()

    def size() -> int:
        return sum(len(node.disk.segment(number).content) for number in node.disk.segments())

    before = most = size()
    for _ in range(2000):
        node.step()
        most = max(most, size())
    node.settle()
    assert most <= before + (1 << 17)
    after = Node(node.close(), block=65536, slack=1 << 30)
    assert sorted(after.messages()) == list(range(10, 20_001, 10))
    after.close()
