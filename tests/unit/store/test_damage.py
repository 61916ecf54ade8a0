"""What recovery makes of a log that is torn, flipped, cut, or incomplete."""

from __future__ import annotations

import re
from random import Random

import pytest

from tests.unit.store.disk import Disk
from tests.unit.store.disk import Node as File
from tests.unit.store.node import Node
from warren.broker.store.log.record_format import MESSAGE, encode_record, segment_seed

SMALL = 256
PAYLOADS = {queue: {number: b"%d:%d:" % (queue, number) * 6 for number in range(1, 9)} for queue in (1, 2)}


def written(block: int = SMALL) -> Disk:
    """Two queues with eight messages each, in turn, every third acknowledged; all in one segment."""
    node = Node(Disk(), (1, 2), block=block, segment_size=1 << 20)
    for number in range(1, 9):
        for queue in (1, 2):
            payload = PAYLOADS[queue][number]
            node.log.append_message(node.queue(queue), number, payload[:5], payload[5:])
    for number in (3, 6):
        node.log.acknowledge(node.queue(1), number)
    node.sync()
    return node.kill()


def content(disk: Disk, number: int = 1) -> bytes:
    return bytes(disk.segment(number).content)


def with_content(disk: Disk, data: bytes, number: int = 1) -> Disk:
    copy = disk.kill()
    copy.nodes[f"/disk/log/{number:016d}.log"] = File(bytearray(data), bytearray(data))
    disk.off = False
    return copy


def recovered(disk: Disk, block: int = SMALL) -> tuple[dict[int, dict[int, bytes]], list[str]]:
    node = Node(disk, (1, 2), block=block, segment_size=1 << 20)
    found = {queue: node.messages(queue) for queue in (1, 2)}
    node.kill()
    return found, node.recovery.damage


LIVE = {1: {n: p for n, p in PAYLOADS[1].items() if n not in (3, 6)}, 2: PAYLOADS[2]}


@pytest.mark.parametrize("block", [64, SMALL, 65536])
def test_an_intact_log_gives_back_what_is_live(block: int) -> None:
    assert recovered(written(block), block) == (LIVE, [])


def test_a_tail_that_is_torn_at_any_byte_is_cut_off_and_loses_nothing_before_it() -> None:
    node = Node(Disk(), (1, 2), segment_size=1 << 20)
    for number in range(1, 5):
        node.log.append_message(node.queue(1), number, b"", PAYLOADS[1][number])
    node.sync()
    firm = len(node.disk.segment(1).content)
    node.log.append_message(node.queue(1), 5, b"", b"the last write" * 30)
    node.log.append_message(node.queue(2), 1, b"", b"and another")
    node.log.begin_group()
    node.log.acknowledge(node.queue(1), 1)
    node.log.append_message(node.queue(2), 2, b"", b"a dead letter")
    node.log.end_group()
    node.sync()
    disk = node.kill()
    whole = content(disk)
    for size in range(firm, len(whole) + 1):
        after = Node(with_content(disk, whole[:size]), (1, 2), segment_size=1 << 20)
        assert after.recovery.damage == []
        first, second = after.messages(1), after.messages(2)
        assert {number: first.get(number) for number in (2, 3, 4)} == {n: PAYLOADS[1][n] for n in (2, 3, 4)}
        assert (1 in first) is (2 not in second), "the group counts whole or not at all"
        assert set(second) <= {1, 2}
        # The log goes on behind the cut.
        after.log.append_message(after.queue(2), 100, b"", b"new")
        after.sync()
        again = Node(after.kill(), (1, 2), segment_size=1 << 20)
        assert again.recovery.damage == []
        assert again.messages(2) == {**second, 100: b"new"}
        assert again.messages(1) == first


def test_a_tail_of_zeros_or_of_noise_is_cut_off() -> None:
    disk = written()
    for tail in (bytes(1000), Random(1).randbytes(1000)):
        assert recovered(with_content(disk, content(disk) + tail)) == (LIVE, [])


@pytest.mark.parametrize("block", [64, SMALL, 65536])
def test_a_flipped_bit_costs_at_most_the_record_that_it_is_in_and_is_reported(block: int) -> None:
    disk = written(block)
    whole = content(disk)
    hit: set[tuple[int, int]] = set()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        found, damage = recovered(with_content(disk, bytes(flipped)), block)
        lost = {(q, n) for q in LIVE for n in LIVE[q]} - {(q, n) for q in found for n in found[q]}
        back = {(q, n) for q in found for n in found[q]} - {(q, n) for q in LIVE for n in LIVE[q]}
        assert len(lost) <= 1
        assert back in (set(), {(1, 3), (1, 6)}), "only a damaged acknowledgement brings messages back"
        assert not (lost and back)
        assert all(found[q][n] == PAYLOADS[q][n] for q in found for n in found[q])
        if lost:
            hit |= lost
            assert len(damage) == 1
            assert re.match(
                r"segment 1, offset \d+: (message \d+ of queue \d is damaged|\d+ bytes are no record)",
                damage[0],
            )
        assert len(damage) <= 1
    assert hit == {(q, n) for q in LIVE for n in LIVE[q]}


def test_damage_of_a_payload_is_reported_with_queue_and_sequence() -> None:
    disk = written(65536)
    whole = bytearray(content(disk))
    place = whole.index(PAYLOADS[2][4])
    whole[place] ^= 1
    found, damage = recovered(with_content(disk, bytes(whole)), 65536)
    assert damage == [f"segment 1, offset {place - 29}: message 4 of queue 2 is damaged"]
    assert found == {1: LIVE[1], 2: {n: p for n, p in LIVE[2].items() if n != 4}}


def test_reading_goes_on_behind_a_hole_of_several_blocks() -> None:
    disk = written(64)
    whole = content(disk)
    found, damage = recovered(with_content(disk, whole[:200] + bytes(300) + whole[500:]), 64)
    assert damage
    assert all(found[q][n] == PAYLOADS[q][n] for q in found for n in found[q])
    assert 8 in found[1]
    assert 8 in found[2]


def three_segments() -> Disk:
    node = Node(Disk(), (1, 2), segment_size=600, slack=1 << 20)
    for number in range(1, 25):
        node.log.append_message(node.queue(1 + number % 2), number, b"", b"%d" % number * 30)
    node.sync()
    disk = node.kill()
    assert len(disk.segments()) >= 3
    return disk


def numbers(node: Node) -> set[int]:
    return set(node.messages(1)) | set(node.messages(2))


def test_a_missing_segment_is_reported_and_survived() -> None:
    disk = three_segments()
    gone = disk.segments()[1]
    del disk.nodes[f"/disk/log/{gone:016d}.log"]
    node = Node(disk, (1, 2))
    assert node.recovery.damage == [f"segment {gone} is missing"]
    assert {1, 24} <= numbers(node)
    assert node.messages(1)[24] == b"24" * 30


def test_several_missing_segments_are_one_line() -> None:
    # The next start has cut the end of the last one.
    disk = Node(three_segments(), (1, 2), slack=1 << 20).kill()
    first, *middle, last = disk.segments()
    for number in middle:
        del disk.nodes[f"/disk/log/{number:016d}.log"]
    stray = 9_999_999_999_999_999
    disk.nodes[f"/disk/log/{stray}.log"] = File()
    node = Node(disk, (1, 2))
    assert node.recovery.damage == [
        f"segments {first + 1} to {last - 1} are missing",
        f"segments {last + 1} to {stray - 1} are missing",
    ]


def test_a_last_segment_that_is_missing_since_a_clean_stop_is_reported() -> None:
    disk = three_segments()
    disk = Node(disk, (1, 2)).close()
    last = disk.segments()[-1]
    del disk.nodes[f"/disk/log/{last:016d}.log"]
    node = Node(disk, (1, 2))
    assert node.recovery.damage == [f"segment {last} is missing"]


def test_a_segment_that_was_cut_short_is_reported_and_survived() -> None:
    disk = three_segments()
    number = disk.segments()[1]
    file = disk.segment(number)
    del file.content[len(file.content) - 40 :]
    node = Node(disk, (1, 2))
    (line,) = node.recovery.damage
    assert re.match(rf"segment {number}, offset \d+: message \d+ of queue \d is cut short", line)
    assert len(numbers(node)) == 23


def test_an_empty_segment_file_is_survived() -> None:
    disk = three_segments()
    disk.segment(disk.segments()[1]).content.clear()
    node = Node(disk, (1, 2))
    assert {1, 24} <= numbers(node)


def test_a_last_segment_that_was_whole_at_a_clean_stop_has_no_torn_tail() -> None:
    node = Node(Disk(), (1, 2), segment_size=1 << 20)
    node.log.append_message(node.queue(1), 1, b"fir", b"st")
    node.log.append_message(node.queue(1), 2, b"sec", b"ond")
    disk = node.close()
    disk.segment(1).content[-1] ^= 1
    after = Node(disk, (1, 2), segment_size=1 << 20)
    assert after.recovery.clean
    assert len(after.recovery.damage) == 1
    assert "message 2 of queue 1 is damaged" in after.recovery.damage[0]
    # Nothing is written behind a place that cannot be read.
    after.log.append_message(after.queue(1), 3, b"", b"third")
    disk = after.close()
    assert disk.segments() == [1, 2]
    assert Node(disk, (1, 2)).messages(1) == {1: b"first", 3: b"third"}


def test_a_last_segment_that_has_shrunk_since_a_clean_stop_is_reported() -> None:
    node = Node(Disk(), (1,), segment_size=1 << 20)
    for number in (1, 2):
        node.log.append_message(node.queue(1), number, b"%d" % number, b"x" * 19)
    disk = node.close()
    size = len(content(disk))
    del disk.segment(1).content[size - 49 :]
    after = Node(disk, (1,))
    assert after.recovery.damage == [f"segment 1 was {size} bytes long and is {size - 49} now"]
    assert set(after.messages(1)) == {1}


def test_another_folders_records_are_no_records_here() -> None:
    disk = written()
    other = with_content(Disk(), content(disk), number=2)
    found, damage = recovered(other)
    assert found == {1: {}, 2: {}}
    assert damage == []


def test_a_body_that_looks_like_records_is_not_taken_for_them() -> None:
    forged = b"".join(
        encode_record(MESSAGE, 2, number, b"forged", segment_seed(12345, 1)) for number in range(1, 4)
    )
    node = Node(Disk(), (1, 2), block=65536, segment_size=1 << 20)
    node.log.append_message(node.queue(1), 1, b"be", b"fore")
    node.log.append_message(node.queue(1), 2, b"", forged)
    node.log.append_message(node.queue(1), 3, b"be", b"hind")
    node.sync()
    disk = node.kill()
    whole = bytearray(content(disk))
    whole[8 + 29 + 6 + 1] ^= 0xFF  # the length in the header of message 2
    found, damage = recovered(with_content(disk, bytes(whole)), 65536)
    assert found == {1: {1: b"before", 3: b"behind"}, 2: {}}
    assert len(damage) == 1
