"""Comparison of the manifest and the marks with the files: missing, shortened and unknown segments are reported."""

from __future__ import annotations

import contextlib
import re
from random import Random

import pytest

from tests.support.tiers import cases
from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import LOG, Disk, FileState
from tests.unit.store.stream_run import STREAMS, StreamRun
from tests.unit.store.test_log import acknowledge, publish
from tests.unit.store.test_stream_log import filled, flip, numbers
from warren.broker.store.errors import StoreError
from warren.broker.store.manifest import manifest as manifest_module
from warren.broker.store.manifest.manifest_format import RECORD
from warren.broker.store.stream.chunk_format import SEGMENT_HEADER

MANIFEST = "/disk/manifest"
SYNCED = "/disk/synced"
HOLE = r"offset \d+: (\d+ bytes are not a record|message \d+ of queue \d is damaged)"
MISSING_MANIFEST = "the manifest is missing: it is written again from the segments that exist"


def end(run: LogRun, how: str) -> Disk:
    return run.close() if how == "stop" else run.kill_synced()


def remove(disk: Disk, path: str) -> None:
    del disk.files[path]
    disk._durable.pop(path, None)


def log_path(number: int) -> str:
    return f"{LOG}/{number:016d}.log"


def several(how: str) -> Disk:
    """Return the disk of a log with 40 messages in several segments, which were not indexed."""
    run = LogRun(Disk(), segment_size=600, slack=1 << 20, preallocate=0)
    publish(run, 1, 40)
    disk = end(run, how)
    assert len(disk.segments()) > 3
    return disk


# The log


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_only_segment_of_the_log_is_reported_as_missing(how: str) -> None:
    run = LogRun(Disk())
    publish(run, 1, 5)
    disk = end(run, how)
    (number,) = disk.segments()
    remove(disk, log_path(number))
    after = LogRun(disk)
    (line,) = after.recovery.damage
    assert re.fullmatch(
        r"segment 1 is missing: it was \d+ bytes long; messages that it acknowledged come back", line
    )
    assert after.messages() == {}
    # Its number is not used again, and the loss is reported once.
    publish(after, 6, 6)
    disk = end(after, how)
    assert disk.segments() == [2]
    assert LogRun(disk).recovery.damage == []


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("which", [0, 1, -1], ids=["oldest", "middle", "last"])
def test_each_of_several_segments_is_reported_as_missing(how: str, which: int) -> None:
    disk = several(how)
    gone = disk.segments()[which]
    remove(disk, log_path(gone))
    after = LogRun(disk, slack=1 << 20)
    (line,) = after.recovery.damage
    assert line.startswith(f"segment {gone} is missing")
    assert 20 < len(after.messages()) < 40
    assert LogRun(end(after, how)).recovery.damage == []


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_closed_segment_that_is_cut_between_two_records_is_reported(how: str) -> None:
    disk = several(how)
    number = disk.segments()[1]
    size = len(disk.segment(number).content)
    held = LogRun(disk.kill(), slack=1 << 20)
    everything = set(held.messages())
    rows = held.recovery.segments[1].index
    assert rows is not None
    held.kill()
    disk.is_dead = False
    for cut in cases(range(1, size, 5)):
        copy = disk.kill()
        disk.is_dead = False
        del copy.segment(number).content[size - cut :]
        after = LogRun(copy, slack=1 << 20)
        assert len(after.recovery.damage) == 1, cut
        assert f"segment {number}" in after.recovery.damage[0]
        assert set(after.messages()) < everything or cut < 2
        after.kill()


def test_confirmed_records_that_are_cut_off_the_last_segment_are_reported() -> None:
    run = LogRun(Disk(), segment_size=1 << 20, preallocate=0)
    sizes = []
    for number in range(1, 8):
        publish(run, number, number)
        run.sync()
        sizes.append(run.written)
    disk = run.kill()
    for size in cases(range(sizes[0], sizes[-1], 3)):
        copy = disk.kill()
        disk.is_dead = False
        del copy.segment(1).content[size:]
        after = LogRun(copy, segment_size=1 << 20)
        (line,) = after.recovery.damage
        assert line == f"segment 1 was at least {sizes[-1]} bytes long and is {size} now" or "offset" in line
        assert set(after.messages()) == {n for n, end_ in enumerate(sizes, 1) if end_ <= size}
        after.kill()


def test_damage_before_the_mark_is_no_torn_tail() -> None:
    run = LogRun(Disk(), segment_size=1 << 20)
    for number in range(1, 8):
        publish(run, number, number)
        run.sync()
    size, disk = run.written, run.kill()
    disk.segment(1).content[size - 60 : size] = bytes(60)
    after = LogRun(disk, segment_size=1 << 20)
    (line,) = after.recovery.damage
    assert line.startswith("segment 1, offset ")
    assert len(disk.segment(1).content) == size, "what was confirmed is not cut off"
    assert set(after.messages()) == {1, 2, 3, 4, 5, 6}


def test_a_segment_that_a_killed_process_had_just_begun_is_no_surprise() -> None:
    disk = several("kill")
    last = disk.segments()[-1]
    disk.files[log_path(last + 1)] = FileState(bytearray(b"half"), bytearray(b"half"))
    after = LogRun(disk, slack=1 << 20)
    assert after.recovery.damage == []
    assert len(after.messages()) == 40


def test_a_segment_that_comes_back_is_reported() -> None:
    run = LogRun(Disk(), segment_size=600)
    publish(run, 1, 40)
    run.sync_all()
    copy = bytes(run.disk.segment(1).content)
    acknowledge(run, 1, 40)
    run.sync_all()
    run.run_until(lambda: 1 not in run.disk.segments())
    # This start rewrites the manifest without the removal.
    disk = LogRun(run.close()).close()
    disk.files[log_path(1)] = FileState(bytearray(copy), bytearray(copy))
    after = LogRun(disk)
    assert after.recovery.damage == [
        "segment 1 is not one that the log had at the last stop: its messages may come back"
    ]


def test_a_removal_that_was_cut_short_is_finished() -> None:
    run = LogRun(Disk(), segment_size=600)
    publish(run, 1, 40)
    run.sync_all()
    copies = {number: bytes(run.disk.segment(number).content) for number in run.disk.segments()}
    acknowledge(run, 1, 40)
    run.sync_all()
    run.run_until(lambda: len(run.disk.segments()) == 1)
    disk = run.kill()
    gone = sorted(set(copies) - set(disk.segments()))
    assert len(gone) > 2
    for number in gone[1:]:
        disk.files[log_path(number)] = FileState(bytearray(copies[number]), bytearray(copies[number]))
    after = LogRun(disk)
    assert after.recovery.damage == []
    assert after.messages() == {}
    assert not set(gone) & set(disk.segments())


def test_a_damaged_segment_is_kept_under_another_name_when_it_is_deleted() -> None:
    run = LogRun(Disk(), segment_size=600)
    publish(run, 1, 40)
    disk = run.kill_synced()
    second = disk.segments()[1]
    damaged = disk.segment(second).content
    damaged[100:140] = bytes(40)
    kept = bytes(damaged)
    after = LogRun(disk, segment_size=600, slack=600)
    assert len(after.recovery.damage) == 1
    disk = after.close()
    # The next start does not read the segment again: it has an index.
    again = LogRun(disk, segment_size=600, slack=600)
    assert again.recovery.damage == []
    acknowledge(again, 1, 40)
    again.sync_all()
    again.run_until(lambda: second not in again.disk.segments())
    again.sync_all()
    assert bytes(again.disk.files[f"{log_path(second)}.damaged"].content) == kept


def test_acknowledgements_of_a_lost_segment_whose_index_exists_count_for_good() -> None:
    run = LogRun(Disk(), segment_size=600, slack=1 << 20, preallocate=0)
    publish(run, 1, 10)
    run.sync()
    before = len(run.disk.segments())
    for number in range(2, 9):
        acknowledge(run, number, number)
        publish(run, 20 + number, 20 + number)
        run.sync()
    publish(run, 40, 60)
    # This start indexes the segments.
    disk = LogRun(run.kill_synced(), slack=1 << 20).kill_synced()
    gone = disk.segments()[before]
    remove(disk, log_path(gone))
    after = LogRun(disk, slack=1 << 20)
    assert "lost" in after.recovery.damage[0]
    assert after.recovery.recalled
    found = set(after.messages())
    assert not found & set(range(2, 9))
    again = LogRun(after.kill_synced())
    assert set(again.messages()) == found


def test_a_record_that_was_written_over_another_one_is_reported() -> None:
    """All records are of one size, and only headers have the number of the message, so that the copy is intact."""
    run = LogRun(Disk(), block=65536, segment_size=1 << 20, preallocate=0)
    ends = []
    for number in range(1, 8):
        run.log.append_message(run.queue(), number, b"", b"x" * 50)
        run.sync()
        ends.append(run.written)
    disk = run.kill()
    content = disk.segment(1).content
    content[ends[3] : ends[4]] = content[ends[1] : ends[2]]
    after = LogRun(disk, block=65536)
    (line,) = after.recovery.damage
    assert line.startswith("segment 1 holds 1 messages twice")
    assert set(after.messages()) == {1, 2, 3, 4, 6, 7}


# Streams


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("which", [0, 2, -1], ids=["oldest", "middle", "last"])
def test_a_missing_segment_of_a_stream_is_reported_and_no_offset_is_used_twice(how: str, which: int) -> None:
    disk = end(filled(), how)
    paths = disk.paths(STREAMS)
    remove(disk, paths[which])
    again = StreamRun(disk)
    found = numbers(again.read())
    lost = [number for number in range(30) if number not in found]
    (line,) = again.found.damage
    which_messages = f"message {lost[0]} is" if len(lost) == 1 else f"messages {lost[0]} to {lost[-1]} are"
    assert line.startswith(f"stream 1: segment {lost[0]} is missing: {which_messages} lost")
    assert again.stream.next_offset == 30
    again.append(b"0030")
    once_more = StreamRun(end(again, how))
    assert once_more.found.damage == []
    assert 30 in once_more.read()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_only_segment_of_a_stream_is_reported_as_missing(how: str) -> None:
    disk = end(filled(3), how)
    (path,) = disk.paths(STREAMS)
    remove(disk, path)
    again = StreamRun(disk)
    assert again.found.damage == [
        "stream 1: segment 0 is missing: messages 0 to 2 are lost; the offsets that consumers stored last may be lost"
    ]
    # Nothing was written to it: the next start has to know the offsets, too.
    once_more = StreamRun(end(again, how))
    assert once_more.found.damage == []
    assert once_more.stream.next_offset == 3
    once_more.append(b"0003")
    once_more.sync_all()
    assert numbers(once_more.read()) == [3]


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("cut", [1, 36, 1040, 1041, 3000, 3150])
def test_confirmed_messages_that_are_cut_off_a_stream_are_reported(how: str, cut: int) -> None:
    disk = end(filled(3), how)
    (path,) = disk.paths(STREAMS)
    del disk.files[path].content[-cut:]
    again = StreamRun(disk)
    (line,) = again.found.damage
    assert re.search(r"messages? \d( to 2)? (is|are) lost$", line)
    assert again.stream.next_offset == 3
    left = numbers(again.read())
    assert left == list(range(len(left)))
    again.append(b"0003")
    once_more = StreamRun(end(again, how))
    assert numbers(once_more.read()) == [*left, 3]


def test_a_damaged_header_of_a_stream_segment_is_reported() -> None:
    disk = filled().close()
    path = disk.paths(STREAMS)[1]
    flip(disk, path, 20)
    again = StreamRun(disk)
    (line,) = again.found.damage
    assert line.endswith("offset 0: its header is damaged")
    assert numbers(again.read()) == list(range(30))


@pytest.mark.parametrize(("source", "target"), [(0, 1), (2, 0), (1, 2)])
def test_a_chunk_that_was_written_over_another_one_is_reported(source: int, target: int) -> None:
    """All chunks are of one size, so that the copy is intact."""
    disk = filled(9).kill_synced()
    path = disk.paths(STREAMS)[-1]
    content = disk.files[path].content
    size = (len(content) - SEGMENT_HEADER) // 3
    start = {number: SEGMENT_HEADER + number * size for number in range(3)}
    content[start[target] : start[target] + size] = content[start[source] : start[source] + size]
    again = StreamRun(disk)
    assert again.found.damage
    assert again.stream.next_offset == 9
    assert set(again.read()) == set(range(9)) - {6 + target}
    assert again.damage, "a consumer's read reports it, too"


def test_a_damaged_index_of_a_stream_segment_is_reported_and_costs_nothing() -> None:
    disk = filled().close()
    path = disk.paths(STREAMS)[1]
    # The position of the chunk in its last entry, before the trailer.
    flip(disk, path, len(disk.files[path].content) - 36 - 6)
    again = StreamRun(disk)
    first = int(again.stream.segments[1].first)
    assert again.read(target=first + 1)[first + 1].startswith(b"%04d" % (first + 1))
    assert again.damage == ["the index is damaged: the segment is read from its beginning"]


def test_segments_of_many_streams_are_named_with_one_sync() -> None:
    run = StreamRun(Disk(), known=range(1, 101))
    streams = [run.streams.log(number, lambda: run.now) for number in range(2, 101)]
    before = run.disk.syncs
    for stream in streams:
        stream.append(b"", b"body")
    run.sync_all()
    assert run.disk.syncs - before <= len(streams) + 1
    before = run.disk.syncs
    for stream in streams:
        run.gate.submitted += 1
        run.streams.drop(stream)
    run.gate.commit()
    run.run_until(lambda: not run.paths())
    assert run.disk.syncs - before <= 2 + len(streams) // 10


# The manifest itself


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_missing_manifest_is_reported_and_written_again(how: str) -> None:
    disk = several(how)
    remove(disk, MANIFEST)
    after = LogRun(disk, slack=1 << 20)
    assert after.recovery.damage == [MISSING_MANIFEST]
    assert len(after.messages()) == 40
    disk = end(after, how)
    remove(disk, log_path(disk.segments()[0]))
    assert "is missing" in LogRun(disk).recovery.damage[0]


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_damage_anywhere_in_the_manifest_is_reported_and_costs_nothing(how: str) -> None:
    disk = several(how)
    whole = bytes(disk.files[MANIFEST].content)
    used = len(whole.rstrip(b"\0"))
    for at in cases(range(0, used, 11)):
        for data in (whole[:at] + bytes((whole[at] ^ 4,)) + whole[at + 1 :], whole[:at]):
            copy = disk.kill()
            disk.is_dead = False
            copy.files[MANIFEST] = FileState(bytearray(data), bytearray(data))
            after = LogRun(copy, slack=1 << 20)
            (line,) = after.recovery.damage
            assert "of the manifest are damaged" in line or "the manifest is damaged" in line
            assert len(after.messages()) == 40
            assert LogRun(after.kill()).recovery.damage == []


def test_the_manifest_of_an_older_folder_is_made_of_its_files() -> None:
    disk = several("stop")
    remove(disk, MANIFEST)
    remove(disk, SYNCED)
    after = LogRun(disk, slack=1 << 20, stored_version=2)
    assert after.recovery.damage == []
    disk = after.close()
    remove(disk, log_path(disk.segments()[0]))
    assert "segment 1 is missing" in LogRun(disk).recovery.damage[0]


@pytest.mark.parametrize("how", ["missing", "flipped", "cut"])
def test_lost_marks_are_noted(how: str) -> None:
    disk = several("kill")
    content = disk.files[SYNCED].content
    if how == "missing":
        remove(disk, SYNCED)
    elif how == "flipped":
        content[5] ^= 1
    else:
        del content[100:]
    after = LogRun(disk, slack=1 << 20)
    assert after.recovery.damage == []
    (note,) = after.recovery.manifest.notes
    assert "`synced`" in note
    again = LogRun(after.kill())
    assert again.recovery.manifest.notes == []


@pytest.mark.parametrize("damage", ["missing", "flipped", "empty"])
def test_a_damaged_mark_of_a_clean_stop_is_reported(damage: str) -> None:
    disk = several("stop")
    file = disk.files[f"{LOG}/clean"]
    if damage == "missing":
        remove(disk, f"{LOG}/clean")
    elif damage == "flipped":
        file.content[0] ^= 1
    else:
        file.content.clear()
    after = LogRun(disk, slack=1 << 20)
    (line,) = after.recovery.damage
    word = "missing" if damage == "missing" else "damaged"
    assert line == f"log/clean, the mark of a clean stop, is {word}: all messages count as delivered before"
    assert not after.recovery.clean
    assert len(after.messages()) == 40
    assert LogRun(after.kill()).recovery.damage == []


def test_the_manifest_is_rewritten_when_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "MIN_REWRITTEN", 20)
    run = LogRun(Disk(), segment_size=600)
    for number in range(1, 1500):
        publish(run, number, number)
        run.sync()
        acknowledge(run, number, number)
    run.sync_all()
    assert len(run.disk.files[MANIFEST].content.rstrip(b"\0")) < 60 * RECORD
    after = LogRun(run.kill())
    assert after.recovery.damage == []


def test_segments_are_removed_from_a_full_disk_without_room_for_the_manifest() -> None:
    run = LogRun(Disk(), segment_size=600)
    publish(run, 1, 40)
    run.sync_all()
    run.disk.free_bytes = 0
    # As if its preallocated room were used up.
    run.recovery.manifest._size = 0
    acknowledge(run, 1, 30)
    run.run_until(lambda: len(run.disk.segments()) < 3)
    run.disk.free_bytes = None
    run.sync_all()
    after = LogRun(run.kill())
    assert after.recovery.damage == []
    assert set(after.messages()) == set(range(31, 41))


def test_a_start_on_a_full_disk_waits_with_the_manifest() -> None:
    disk = several("kill")
    remove(disk, MANIFEST)
    disk.free_bytes = 0
    after = LogRun(disk, slack=1 << 20)
    publish(after, 41, 41)
    after.run_until(lambda: after.full == [True])
    disk.free_bytes = None
    after.sync_all()
    assert set(LogRun(after.kill()).messages()) == set(range(1, 42))


# Power failures


class PowerDisk(Disk):
    """A disk whose power fails at a given file operation."""

    def __init__(self, disk: Disk, left: int) -> None:
        super().__init__()
        self.__dict__.update(disk.__dict__)
        self.left = left

    def _count(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left < 0:
                self.is_dead = True

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self._count()
        super().write(handle, data, offset)

    def sync(self, handle: int) -> None:
        self._count()
        super().sync(handle)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def rename(self, path: str, target: str) -> None:
        self._count()
        super().rename(path, target)

    def sync_folder(self, folder: str) -> None:
        self._count()
        super().sync_folder(folder)


class PowerRun:
    """A run on a disk whose power fails: new segments of log and stream, removals, and a clean stop."""

    def __init__(self, disk: PowerDisk) -> None:
        self.disk = disk
        self.run: StreamRun | None = None
        self.confirmed: set[int] = set()
        self.acknowledged: set[int] = set()
        self.next_offset = 6

    def work(self) -> None:
        """Work until the power fails.

        :raises Exception: it failed during the start.
        """
        self.run = run = StreamRun(self.disk, (1, 2), segment_size=600)
        run.stream.segment_size = 4096
        queue = run.log.queue(2)
        for number in range(1, 40):
            run.log.append_message(queue, number, b"", b"%d" % number * 20)
            if number % 3 == 0:
                run.append(b"%04d" % run.stream.next_offset + b"." * 996)
            self._wait(run)
            if run.log.failed:
                return
            self.confirmed.add(number)
            self.next_offset = int(run.stream.next_offset)
            if number > 5:
                self.acknowledged.add(number - 5)
                run.log.acknowledge(queue, number - 5)
            run.stream.apply_retention(run.now - 4 if number > 20 else -1)
            run.now += 1
        run.loop.run_until_complete(run.log.close())

    def _wait(self, run: StreamRun) -> None:
        batch = run.log.batch
        run.run_until(lambda: run.log.synced >= batch or run.log.failed)


def test_a_power_failure_at_any_call_reports_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start, new segments of the log and of a stream, removals, rewritings of the manifest, and a clean stop."""
    monkeypatch.setattr(manifest_module, "MIN_REWRITTEN", 6)
    for left in cases(range(0, 400, 3)):
        disk = PowerDisk(filled(6).close(), left)
        power = PowerRun(disk)
        with contextlib.suppress(StoreError):
            power.work()
        after = disk.cut_power(Random(left))
        disk.kill()
        if power.run is not None:
            power.run.end()
        again = StreamRun(after, (1, 2))
        # A hole in the last batch cannot be told from damage.
        reports = [line for line in again.recovery.damage if not re.search(HOLE, line)]
        assert reports == again.found.damage == [], left
        assert power.confirmed - power.acknowledged <= set(again.messages(2)) <= set(range(1, 40)), left
        assert again.stream.next_offset >= power.next_offset
        again.kill()
