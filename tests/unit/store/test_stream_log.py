"""Segments of a stream: reading by offset and time, crashes, flipped bits, full disks, retention."""

from __future__ import annotations

import pytest

from tests.unit.store.simulated_disk import Disk
from tests.unit.store.stream_run import STREAMS, StreamRun
from warren.broker.store.errors import StoreError
from warren.broker.store.stream.chunk_format import SEGMENT_HEADER, segment_name
from warren.broker.store.stream.chunk_reader import BY_TIME, READ_SIZE


def filled(count: int = 30, size: int = 1000, *, at_once: int = 1) -> StreamRun:
    """Return a stream with segments of 4096 bytes and one message a millisecond."""
    run = StreamRun(Disk())
    run.stream.segment_size = 4096
    for number in range(count):
        run.now += 1
        run.append(b"%04d" % number + b"." * (size - 4))
        if number % at_once == at_once - 1:
            run.sync_all()
    run.sync_all()
    return run


def numbers(found: dict[int, bytes]) -> list[int]:
    assert all(int(body[:4]) == offset for offset, body in found.items())
    return list(found)


def flip(disk: Disk, path: str, at: int) -> None:
    disk.files[path].content[at] ^= 1
    disk.files[path].synced[at] ^= 1


def test_a_stream_can_be_read_from_any_offset() -> None:
    run = filled(at_once=4)
    assert len(run.paths()) > 5
    for offset in range(30):
        assert numbers(run.read(target=offset)) == list(range(offset, 30))


def test_reading_by_time_begins_at_the_first_message_that_is_not_older() -> None:
    run = filled()
    for offset in range(30):
        assert numbers(run.read(BY_TIME, 1001 + offset)) == list(range(offset, 30))
    assert numbers(run.read(BY_TIME, 0)) == list(range(30))


def test_chunk_times_never_decrease_when_the_clock_is_set_back() -> None:
    run = filled(5)
    run.now -= 1_000_000
    run.append(b"0005")
    run.sync_all()
    assert numbers(run.read(BY_TIME, 1005)) == [4, 5]
    assert run.stream.timestamp == 1005


def test_the_sparse_index_finds_the_middle_of_a_long_segment() -> None:
    """Only the blocks from the indexed position on are read."""
    run = StreamRun(Disk())
    for number in range(40):
        run.append(b"%04d" % number + b"." * 50_000)
        run.sync_all()
    assert len(run.paths()) == 1
    reads: list[int] = []
    real = run.disk.read

    def read(path: str, offset: int, size: int) -> bytes:
        reads.append(offset)
        return real(path, offset, size)

    run.disk.read = read  # type: ignore[method-assign]
    assert numbers(run.read(target=35)) == list(range(35, 40))
    assert min(reads) > 30 * 50_000


def test_the_index_of_a_closed_segment_is_read_from_its_file() -> None:
    run = StreamRun(Disk())
    run.stream.segment_size = 1_000_000
    for number in range(40):
        run.append(b"%04d" % number + b"." * 50_000)
        run.sync_all()
    again = StreamRun(run.close())
    assert all(segment.sparse_index is None for segment in again.stream.segments[:-1])
    assert numbers(again.read(target=15)) == list(range(15, 40))
    assert again.stream.segments[0].index(again.disk).positions


def test_a_message_larger_than_a_block() -> None:
    run = StreamRun(Disk())
    large = b"x" * (3 * READ_SIZE)
    run.append(b"before", large, b"after")
    run.sync_all()
    again = StreamRun(run.close())
    assert again.read() == {0: b"before", 1: large, 2: b"after"}


@pytest.mark.parametrize("cut", [1, 20, 36, 400])
def test_a_torn_end_is_cut_off_and_its_offsets_are_reused(cut: int) -> None:
    run = filled(2)
    disk = run.kill_synced().forget_marks()
    (path,) = disk.paths(STREAMS)
    del disk.files[path].content[-cut:]
    again = StreamRun(disk)
    assert again.found.damage == []
    assert again.stream.next_offset == 1
    again.append(b"0001")
    again.sync_all()
    assert again.read()[1] == b"0001"


def test_a_torn_end_after_a_clean_stop_is_damage() -> None:
    disk = filled(2).close()
    (path,) = disk.paths(STREAMS)
    del disk.files[path].content[-1:]
    again = StreamRun(disk)
    assert len(again.found.damage) == 1
    assert again.found.damage[0].startswith("stream 1, segment 0, offset ")


def test_a_flipped_bit_loses_its_chunk_and_is_reported() -> None:
    run = filled()
    flip(run.disk, run.paths()[1], SEGMENT_HEADER + 100)
    found = run.read()
    lost = [number for number in range(30) if number not in found]
    assert len(lost) == 1
    assert run.damage == [f"messages {lost[0]} to {lost[0]} are damaged"]


def test_a_flipped_bit_in_a_header_loses_its_chunk_and_is_reported() -> None:
    run = filled()
    flip(run.disk, run.paths()[1], SEGMENT_HEADER + 12)
    assert len(run.read()) == 29
    assert len(run.damage) == 1
    assert run.damage[0].endswith("bytes are damaged")


def test_recovery_reports_damage_in_the_last_segment_and_keeps_the_rest() -> None:
    run = filled(3)
    disk = run.kill_synced()
    (path,) = disk.paths(STREAMS)
    flip(disk, path, SEGMENT_HEADER + 100)
    again = StreamRun(disk)
    assert again.found.damage == [
        f"stream 1, segment 0, offset {SEGMENT_HEADER}: messages 0 to 0 are damaged"
    ]
    assert numbers(again.read()) == [1, 2]
    assert again.stream.next_offset == 3


def test_a_segment_with_a_damaged_index_is_scanned() -> None:
    run = filled()
    disk = run.close()
    path = disk.paths(STREAMS)[1]
    flip(disk, path, len(disk.files[path].content) - 5)
    again = StreamRun(disk)
    assert [line.partition(": ")[2] for line in again.found.damage] == ["its end is damaged"]
    assert numbers(again.read()) == list(range(30))


def test_a_missing_stream_segment_leaves_the_others_readable() -> None:
    disk = filled().close()
    path = disk.paths(STREAMS)[2]
    del disk.files[path]
    again = StreamRun(disk)
    found = numbers(again.read())
    assert found[0] == 0
    assert found[-1] == 29
    assert len(found) < 30


def test_a_segment_without_a_whole_header_is_removed() -> None:
    run = filled(3)
    disk = run.kill_synced()
    handle = disk.open(f"{STREAMS}/{segment_name(1, 3)}")
    disk.write(handle, b"half of a hea", 0)
    again = StreamRun(disk)
    assert again.found.damage == []
    assert len(again.paths()) == 1
    again.append(b"0003")
    again.sync_all()
    assert numbers(again.read()) == [0, 1, 2, 3]


def test_segments_of_unknown_streams_are_removed() -> None:
    disk = filled(3).close()
    again = StreamRun(disk, ())
    again.run_until(lambda: again.paths() == [])


def test_files_of_a_deleted_stream_are_removed_once_its_deletion_is_committed() -> None:
    run = filled()
    run.gate.submitted += 1
    run.streams.drop(run.stream)
    run.step()
    assert run.paths()
    run.gate.commit()
    run.run_until(lambda: run.paths() == [])


def test_a_newer_format_version_is_refused() -> None:
    run = filled(3)
    disk = run.close()
    (path,) = disk.paths(STREAMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warren.broker.store.stream.stream_recovery.VERSION", 0)
        with pytest.raises(StoreError, match=r"has format version 1, but this broker reads versions up to 0"):
            StreamRun(disk)
    assert path in disk.files


def test_messages_appended_at_once_do_not_overfill_a_segment() -> None:
    run = filled(100, at_once=100)
    assert all(segment.end <= 4096 for segment in run.stream.segments)
    assert numbers(run.read()) == list(range(100))
    run.append(b"0100" + b"." * 9000)
    run.append(b"0101" + b"." * 996)
    run.sync_all()
    large, last = run.stream.segments[-2:]
    assert (large.first, large.end > 9000, last.first) == (100, True, 101)


def test_retention_removes_a_held_back_segment_later() -> None:
    """A segment stays until its successor is on disk; `apply_retention` returns that it held one back."""
    run = filled(2)
    run.stream.max_bytes = 4096
    for number in range(2, 40):
        run.append(b"%04d" % number + b"." * 996)
    assert run.stream.apply_retention(-1)
    assert run.stream.first == 0
    run.sync_all()
    assert not run.stream.apply_retention(-1)
    assert run.stream.first > 35


def test_an_emptied_segment_does_not_hold_back_older_ones() -> None:
    run = filled(30)
    disk = run.close()
    paths = disk.paths(STREAMS)
    harmed = disk.files[paths[len(paths) // 2]]
    harmed.content.clear()
    harmed.synced.clear()
    again = StreamRun(disk)
    again.stream.segment_size = 4096
    again.stream.max_bytes = 8192
    again.append(b"0030")
    again.sync_all()
    assert not again.stream.apply_retention(-1)
    assert again.stream.first > 20


def test_a_stream_waits_for_a_full_disk() -> None:
    run = filled(3)
    run.disk.free_bytes = 100
    run.append(b"0003" + b"." * 1000)
    run.run_until(lambda: run.full == [True])
    assert run.stream.committed == 3
    run.disk.free_bytes = None
    run.sync_all()
    assert run.full == [True, False]
    assert numbers(run.read()) == [0, 1, 2, 3]


def test_a_failed_sync_stops_a_stream() -> None:
    run = filled(3)
    run.disk.fail_syncs = True
    run.append(b"0003")
    run.run_until(lambda: bool(run.failures))
    assert run.stream.committed == 3


def test_stored_offsets_survive_the_removal_of_their_segments() -> None:
    run = filled(4)
    run.stream.store_offset(b"reader", 3)
    run.sync_all()
    for number in range(4, 30):
        run.append(b"%04d" % number + b"." * 1000)
        run.sync_all()
    run.stream.max_bytes = 8192
    run.stream.apply_retention(-1)
    assert run.stream.first > 20
    again = StreamRun(run.close())
    assert again.stream.offsets == {b"reader": 3}
    assert numbers(again.read()) == list(range(again.stream.first, 30))


def test_stream_messages_count_as_unwritten_until_they_are_on_disk() -> None:
    run = filled(1)
    assert run.log.unwritten_bytes == 0
    run.append(b"x" * 1000)
    assert run.log.unwritten_bytes > 1000
    run.sync_all()
    assert run.log.unwritten_bytes == 0
    run.append(b"y")
    run.streams.drop(run.stream)
    assert run.log.unwritten_bytes == 0
