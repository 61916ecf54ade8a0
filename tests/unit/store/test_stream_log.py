"""A stream's segments: how they are found again, and what a crash, a flipped bit and a full disk leave of them."""

from __future__ import annotations

import pytest

from tests.unit.store.disk import Disk
from tests.unit.store.stream_node import STREAMS, StreamNode
from warren.broker.store.errors import StoreError
from warren.broker.store.stream.chunk_format import SEGMENT_HEADER, segment_name
from warren.broker.store.stream.chunk_reader import BLOCK, BY_TIME


def filled(count: int = 30, size: int = 1000, *, at_once: int = 1) -> StreamNode:
    """A stream of messages with segments of 4096 bytes, at one a millisecond."""
    node = StreamNode(Disk())
    node.stream.segment_size = 4096
    for number in range(count):
        node.now += 1
        node.append(b"%04d" % number + b"." * (size - 4))
        if number % at_once == at_once - 1:
            node.settle()
    node.settle()
    return node


def numbers(found: dict[int, bytes]) -> list[int]:
    assert all(int(body[:4]) == offset for offset, body in found.items())
    return list(found)


def flip(disk: Disk, path: str, at: int) -> None:
    disk.nodes[path].content[at] ^= 1
    disk.nodes[path].synced[at] ^= 1


def test_what_is_written_can_be_read_from_any_offset() -> None:
    node = filled(at_once=4)
    assert len(node.paths()) > 5
    for offset in range(30):
        assert numbers(node.read(target=offset)) == list(range(offset, 30))


def test_a_time_leads_to_the_first_message_that_is_not_older() -> None:
    node = filled()
    for offset in range(30):
        assert numbers(node.read(BY_TIME, 1001 + offset)) == list(range(offset, 30))
    assert numbers(node.read(BY_TIME, 0)) == list(range(30))


def test_a_clock_that_is_set_back_makes_no_message_older_than_the_one_before() -> None:
    node = filled(5)
    node.now -= 1_000_000
    node.append(b"0005")
    node.settle()
    assert numbers(node.read(BY_TIME, 1005)) == [4, 5]
    assert node.stream.timestamp == 1005


def test_a_long_segment_is_read_from_the_middle() -> None:
    """Its index leads near: what is read is no more than the blocks from there on."""
    node = StreamNode(Disk())
    for number in range(40):
        node.append(b"%04d" % number + b"." * 50_000)
        node.settle()
    assert len(node.paths()) == 1
    reads: list[int] = []
    real = node.disk.read

    def read(path: str, offset: int, size: int) -> bytes:
        reads.append(offset)
        return real(path, offset, size)

    node.disk.read = read  # type: ignore[method-assign]
    assert numbers(node.read(target=35)) == list(range(35, 40))
    assert min(reads) > 30 * 50_000


def test_the_index_of_a_closed_segment_is_on_the_disk() -> None:
    node = StreamNode(Disk())
    node.stream.segment_size = 1_000_000
    for number in range(40):
        node.append(b"%04d" % number + b"." * 50_000)
        node.settle()
    again = StreamNode(node.close())
    assert all(segment.sparse_index is None for segment in again.stream.segments[:-1])
    assert numbers(again.read(target=15)) == list(range(15, 40))
    assert again.stream.segments[0].index(again.disk).positions


def test_a_message_larger_than_a_block() -> None:
    node = StreamNode(Disk())
    large = b"x" * (3 * BLOCK)
    node.append(b"before", large, b"after")
    node.settle()
    again = StreamNode(node.close())
    assert again.read() == {0: b"before", 1: large, 2: b"after"}


@pytest.mark.parametrize("cut", [1, 20, 36, 400])
def test_a_torn_end_is_cut_off_and_its_offsets_are_given_again(cut: int) -> None:
    node = filled(2)
    disk = node.kill_synced()
    (path,) = (path for path in disk.nodes if path.startswith(STREAMS))
    del disk.nodes[path].content[-cut:]
    again = StreamNode(disk)
    assert again.found.damage == []
    assert again.stream.next_offset == 1
    again.append(b"0001")
    again.settle()
    assert again.read()[1] == b"0001"


def test_a_torn_end_after_a_clean_stop_is_damage() -> None:
    disk = filled(2).close()
    (path,) = (path for path in disk.nodes if path.startswith(STREAMS))
    del disk.nodes[path].content[-1:]
    again = StreamNode(disk)
    assert len(again.found.damage) == 1
    assert again.found.damage[0].startswith("stream 1, segment 0, offset ")


def test_a_flipped_bit_costs_its_chunk_and_is_reported() -> None:
    node = filled()
    flip(node.disk, node.paths()[1], SEGMENT_HEADER + 100)
    found = node.read()
    lost = [number for number in range(30) if number not in found]
    assert len(lost) == 1
    assert node.damage == [f"messages {lost[0]} to {lost[0]} are damaged"]


def test_a_flipped_bit_in_a_header_costs_its_chunk_and_is_reported() -> None:
    node = filled()
    flip(node.disk, node.paths()[1], SEGMENT_HEADER + 12)
    assert len(node.read()) == 29
    assert len(node.damage) == 1
    assert node.damage[0].endswith("bytes are damaged")


def test_damage_in_the_last_segment_is_reported_at_the_start_and_the_rest_is_kept() -> None:
    node = filled(3)
    disk = node.kill_synced()
    (path,) = (path for path in disk.nodes if path.startswith(STREAMS))
    flip(disk, path, SEGMENT_HEADER + 100)
    again = StreamNode(disk)
    assert again.found.damage == [
        f"stream 1, segment 0, offset {SEGMENT_HEADER}: messages 0 to 0 are damaged"
    ]
    assert numbers(again.read()) == [1, 2]
    assert again.stream.next_offset == 3


def test_a_segment_whose_index_is_damaged_is_read_through() -> None:
    node = filled()
    disk = node.close()
    path = sorted(path for path in disk.nodes if path.startswith(STREAMS))[1]
    flip(disk, path, len(disk.nodes[path].content) - 5)
    again = StreamNode(disk)
    assert [line.partition(": ")[2] for line in again.found.damage] == ["its end is damaged"]
    assert numbers(again.read()) == list(range(30))


def test_a_missing_segment_leaves_the_others() -> None:
    disk = filled().close()
    path = sorted(path for path in disk.nodes if path.startswith(STREAMS))[2]
    del disk.nodes[path]
    again = StreamNode(disk)
    found = numbers(again.read())
    assert found[0] == 0
    assert found[-1] == 29
    assert len(found) < 30


def test_a_segment_that_was_only_begun_goes() -> None:
    node = filled(3)
    disk = node.kill_synced()
    handle = disk.open(f"{STREAMS}/{segment_name(1, 3)}")
    disk.write(handle, b"half of a hea", 0)
    again = StreamNode(disk)
    assert again.found.damage == []
    assert len(again.paths()) == 1
    again.append(b"0003")
    again.settle()
    assert numbers(again.read()) == [0, 1, 2, 3]


def test_segments_of_no_stream_are_removed() -> None:
    disk = filled(3).close()
    again = StreamNode(disk, ())
    again.run_until(lambda: again.paths() == [])


def test_the_files_of_a_deleted_stream_go_after_its_definition() -> None:
    node = filled()
    node.gate.submitted += 1
    node.streams.drop(node.stream)
    node.step()
    assert node.paths()
    node.gate.commit()
    node.run_until(lambda: node.paths() == [])


def test_a_format_of_the_future_is_refused() -> None:
    node = filled(3)
    disk = node.close()
    (path,) = (path for path in disk.nodes if path.startswith(STREAMS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warren.broker.store.stream.stream_recovery.VERSION", 0)
        with pytest.raises(StoreError, match=r"has format version 1, this broker knows 0"):
            StreamNode(disk)
    assert path in disk.nodes


def test_what_is_appended_at_once_does_not_make_a_segment_larger() -> None:
    node = filled(100, at_once=100)
    assert all(segment.end <= 4096 for segment in node.stream.segments)
    assert numbers(node.read()) == list(range(100))
    node.append(b"0100" + b"." * 9000)
    node.append(b"0101" + b"." * 996)
    node.settle()
    large, last = node.stream.segments[-2:]
    assert (large.first, large.end > 9000, last.first) == (100, True, 101)


def test_what_cannot_go_yet_goes_with_a_later_look() -> None:
    """No segment goes before something behind it is on the disk, and the log says that it has held one back."""
    node = filled(2)
    node.stream.max_bytes = 4096
    for number in range(2, 40):
        node.append(b"%04d" % number + b"." * 996)
    assert node.stream.retain(-1)
    assert node.stream.first == 0
    node.settle()
    assert not node.stream.retain(-1)
    assert node.stream.first > 35


def test_a_segment_of_which_nothing_is_left_holds_back_none_before_it() -> None:
    node = filled(30)
    disk = node.close()
    paths = sorted(path for path in disk.nodes if path.startswith(STREAMS))
    harmed = disk.nodes[paths[len(paths) // 2]]
    harmed.content.clear()
    harmed.synced.clear()
    again = StreamNode(disk)
    again.stream.segment_size = 4096
    again.stream.max_bytes = 8192
    again.append(b"0030")
    again.settle()
    assert not again.stream.retain(-1)
    assert again.stream.first > 20


def test_a_full_disk_is_waited_for() -> None:
    node = filled(3)
    node.disk.room = 100
    node.append(b"0003" + b"." * 1000)
    node.run_until(lambda: node.full == [True])
    assert node.stream.committed == 3
    node.disk.room = None
    node.settle()
    assert node.full == [True, False]
    assert numbers(node.read()) == [0, 1, 2, 3]


def test_a_failed_sync_ends_it() -> None:
    node = filled(3)
    node.disk.fail_syncs = True
    node.append(b"0003")
    node.run_until(lambda: bool(node.failures))
    assert node.stream.committed == 3


def test_stored_offsets_outlive_the_segments_that_they_were_stored_in() -> None:
    node = filled(4)
    node.stream.store_offset(b"reader", 3)
    node.settle()
    for number in range(4, 30):
        node.append(b"%04d" % number + b"." * 1000)
        node.settle()
    node.stream.max_bytes = 8192
    node.stream.retain(-1)
    assert node.stream.first > 20
    again = StreamNode(node.close())
    assert again.stream.offsets == {b"reader": 3}
    assert numbers(again.read()) == list(range(again.stream.first, 30))


def test_what_is_appended_counts_as_unwritten_until_it_is_on_the_disk() -> None:
    node = filled(1)
    assert node.log.unwritten_bytes == 0
    node.append(b"x" * 1000)
    assert node.log.unwritten_bytes > 1000
    node.settle()
    assert node.log.unwritten_bytes == 0
    node.append(b"y")
    node.streams.drop(node.stream)
    assert node.log.unwritten_bytes == 0
