"""Reads the log after a start: which messages of which queues are live, and what was damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import disk_error
from warren.broker.store.index.index_builder import Indexer
from warren.broker.store.index.index_format import (
    EXPIRES,
    Describe,
    Pages,
    Row,
    SegmentIndex,
    index_path,
    opaque,
)
from warren.broker.store.log.live_segments import Live, Segment
from warren.broker.store.log.record_format import BLOCK
from warren.broker.store.log.segment_reader import Damage, segment_path
from warren.broker.store.log.writer_thread import CLEAN
from warren.broker.store.read.message_fetch import PLACE, Fetch
from warren.broker.store.sequence_ranges import merge, without

_SUFFIX: Final = ".log"


class RecoveredLevel:
    """The live messages of a queue with one priority."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.first: i64 = 0
        self.last: i64 = 0
        self.count: i64 = 0
        self.bodies: i64 = 0
        self.expires = False
        """Some of them may expire."""


class RecoveredQueue:
    """What the log holds of one queue.

    `last_sequence` is the highest sequence that any record names: lower ones must not be used again. `delivered` is the last
    sequence that may have been delivered before a crash. `counts` are the delivery counts of live messages where they are
    not 0.
    """

    def __init__(self, recovery: Recovery, incarnation: int) -> None:
        self.last_sequence: i64 = 0
        self.delivered: i64 = 0
        self.levels: dict[int, RecoveredLevel] = {}
        self.counts: dict[int, int] = {}
        self._recovery = recovery
        self._incarnation = incarnation

    @property
    def messages(self) -> list[tuple[int, bytes, int]]:
        """(sequence, payload, delivery count) of all live messages, in order of their sequences."""
        found = sorted(self._recovery.messages(self._incarnation))
        return [(sequence, payload, self.counts.get(sequence, 0)) for sequence, payload in found]


class Recovery:
    """What `recover` found. `damage` has one line for each place that could not be read; what stood there is
    lost. After a stop that was not `clean` any message may have been delivered already."""

    def __init__(self, folder: str, indexer: Indexer) -> None:
        self.queues: dict[int, RecoveredQueue] = {}
        self.damage: list[str] = []
        self.clean = False
        self.folder = folder
        self.indexer = indexer
        self.files = indexer.files
        self.identity = indexer.identity
        self.block = indexer.block
        self.segments: list[Segment] = []
        self.live: dict[int, Live] = {}
        self.next_segment = 1

    def messages(self, incarnation: int) -> Iterator[tuple[int, bytes]]:
        """Sequence and payload of a queue's live messages, segment by segment."""
        pages = Pages(self.folder, self.files, self.indexer.rebuild)
        fetch = Fetch(self.folder, self.files, self.identity, self.block)
        for extent in self.live[incarnation].extents:
            index = extent.segment.index
            assert index is not None
            for row in index.rows.get(incarnation, ()):
                for entry in pages.entries(index, row, row.first, row.last):
                    if not extent.holds(entry[0]):
                        continue
                    place = int(extent.segment.number) << PLACE | entry[2]
                    payload = fetch.payloads(incarnation, [(entry[0], place)])[0]
                    if payload is not None:
                        yield entry[0], payload


def recover(
    folder: DataFolder, known: Collection[int], *, block: int = BLOCK, describe: Describe = opaque
) -> Recovery:
    """Read the log of a data folder; cut off a torn tail; remove the mark of a clean stop.

    :param known: the incarnations of the queues that there are; records of others are dead.
    :param describe: what the indexes of segments note of a message.
    :raises StoreError: the disk cannot be read or written.
    """
    indexer = Indexer(folder.log, folder.files, folder.identity, block, describe)
    recovery = Recovery(folder.log, indexer)
    try:
        _Reading(recovery, frozenset(known)).run()
    except OSError as error:
        raise disk_error(f"read the log in {folder.log}", error) from None
    return recovery


class _Queue:
    """What is known of a queue while the segments are read."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        """Acknowledged, as runs."""
        self.seen: list[int] = []
        """Found in newer segments, as runs."""
        self.marks: dict[int, int] = {}
        self.live = Live()


class _Reading:
    """Reads the indexes of the segments from the newest to the oldest, and makes those that are missing.

    An acknowledgement is never in an older segment than its message, so what is not acknowledged so far is live, and of
    two copies of a message the newer one.
    """

    def __init__(self, recovery: Recovery, known: frozenset[int]) -> None:
        self._to = recovery
        self._files = recovery.files
        self._indexer = recovery.indexer
        self._pages = Pages(recovery.folder, recovery.files, self._indexer.rebuild)
        self._queues: dict[int, _Queue] = {}
        for incarnation in known:
            self._queues[incarnation] = _Queue()
            recovery.queues[incarnation] = RecoveredQueue(recovery, incarnation)

    def run(self) -> None:
        to, files = self._to, self._files
        # What an earlier process made or unlinked must not change its mind in a later power cut.
        files.sync_folder(to.folder)
        names = files.names(to.folder)
        numbers = sorted(int(name[: -len(_SUFFIX)]) for name in names if _is_segment(name))
        last = numbers[-1] if numbers else 0
        end = self._clean_end() if CLEAN in names else None
        # The last segment of a clean stop may be one that nothing was written to.
        expected = 0 if end is None else end[0] if end[1] else end[0] - 1
        reports = _gaps([*numbers, expected] if expected > last else numbers, last)
        for number in reversed(numbers):
            size = files.size(segment_path(to.folder, number))
            if number == last and end is not None and end[0] == number and size < end[1]:
                text = f"segment {number} was {end[1]} bytes long and is {size} now"
                reports.append((number, Damage(size, text)))
            # A torn tail can be told only by reading it.
            index = self._indexer.stored(number, size) if number != last or end is not None else None
            if index is None:
                index, damage = self._build(number, number == last and end is None)
                reports += [(number, place) for place in damage]
            segment = Segment(number, index.size)
            segment.index = index
            to.segments.insert(0, segment)
            self._take(segment, index)
        # No number twice: an index that outlived its segment must not be taken for that of another.
        to.next_segment = max([last, *(_number(name) for name in names)]) + 1
        to.damage = [place.text for _, place in sorted(reports, key=lambda item: (item[0], item[1].offset))]
        to.clean = end is not None
        self._clear(set(names), numbers)
        self._collect(end[2] if end is not None else None)

    def _clean_end(self) -> tuple[int, int, dict[int, int]]:
        """The last segment and its size when the log was closed; up to where queues may have been delivered before."""
        path = f"{self._to.folder}/{CLEAN}"
        words = self._files.read(path, 0, self._files.size(path)).split()
        try:
            numbers = [int(word) for word in words]
            return numbers[0], numbers[1], dict(zip(numbers[2::2], numbers[3::2], strict=True))
        except (IndexError, ValueError):
            return 0, 0, {}

    def _build(self, number: int, torn: bool) -> tuple[SegmentIndex, list[Damage]]:
        """Read a segment that has no index; what `torn` says is cut off where the last intact record ends."""
        damage: list[Damage] = []
        index, end = self._indexer.build(number, damage)
        if torn:
            # Nobody was told that what stands behind the last intact record is on the disk.
            damage = [place for place in damage if place.offset < end]
            self._cut(segment_path(self._to.folder, number), end)
            index.size = end
        if index.count:
            # Without room it stays in memory.
            with contextlib.suppress(OSError):
                self._indexer.store(index)
        return index, damage

    def _cut(self, path: str, size: int) -> None:
        """Cut off a torn tail. Synced even if there is none: what was read may have been in the cache only,
        and a segment that gets a successor must be whole."""
        handle = self._files.open(path)
        try:
            if self._files.size(path) > size:
                self._files.truncate(handle, size)
            self._files.sync(handle)
        finally:
            self._files.close(handle)

    def _take(self, segment: Segment, index: SegmentIndex) -> None:
        """Note what is live in a segment, given all that is newer."""
        for incarnation, runs in index.acks.items():
            queue = self._queues.get(incarnation)
            if queue is not None:
                queue.ended = merge(queue.ended + runs)
                self._name(incarnation, runs[-1])
        for incarnation, sequence, count in index.marks:
            queue = self._queues.get(incarnation)
            if queue is not None:
                queue.marks[sequence] = max(count, queue.marks.get(sequence, 0))
                self._name(incarnation, sequence)
        for incarnation, rows in index.rows.items():
            queue = self._queues.get(incarnation)
            if queue is None:
                continue
            found: list[int] = []
            for row in rows:
                self._name(incarnation, int(row.last))
                if not row.transient:
                    found += self._row(segment, index, queue, row)
            queue.seen = merge(queue.seen + found)

    def _name(self, incarnation: int, sequence: i64) -> None:
        """A record names that sequence of a queue."""
        to = self._to.queues[incarnation]
        if sequence > to.last_sequence:
            to.last_sequence = sequence

    def _row(self, segment: Segment, index: SegmentIndex, queue: _Queue, row: Row) -> list[int]:
        """The live messages of a row; returns the runs of all that it has."""
        runs: list[int] = []
        if row.last - row.first + 1 == row.count:
            runs = [int(row.first), int(row.last)]
        else:
            runs = _runs([entry[0] for entry in self._pages.entries(index, row, row.first, row.last)])
        live = without(without(runs, queue.ended), queue.seen)
        if not live:
            return runs
        count: i64 = 0
        for at in range(0, len(live), 2):
            count += live[at + 1] - live[at] + 1
        bodies: i64 = row.bodies
        if count < row.count:
            bodies = 0
            for at in range(0, len(live), 2):
                for entry in self._pages.entries(index, row, live[at], live[at + 1]):
                    bodies += entry[3]
        queue.live.add(segment, live, int(row.bytes * count // row.count))
        levels = self._to.queues[row.incarnation].levels
        level = levels.get(row.priority)
        if level is None:
            level = levels[row.priority] = RecoveredLevel(row.priority)
            level.first, level.last = live[0], live[-1]
        level.first = min(level.first, live[0])
        level.last = max(level.last, live[-1])
        level.count += count
        level.bodies += bodies
        level.expires = level.expires or row.flags & EXPIRES != 0
        return runs

    def _clear(self, names: set[str], numbers: list[int]) -> None:
        """Remove the mark of a clean stop, and indexes whose segments are gone."""
        files, folder = self._files, self._to.folder
        if CLEAN in names:
            files.unlink(f"{folder}/{CLEAN}")
            files.sync_folder(folder)
        known = {index_path(folder, number) for number in numbers}
        for name in names:
            if name.endswith(".idx") and f"{folder}/{name}" not in known:
                files.unlink(f"{folder}/{name}")

    def _collect(self, delivered: Optional[dict[int, int]]) -> None:  # noqa: UP045
        for incarnation, queue in self._queues.items():
            to = self._to.queues[incarnation]
            to.counts = {
                sequence: count
                for sequence, count in queue.marks.items()
                if count and any(extent.holds(sequence) for extent in queue.live.extents)
            }
            to.delivered = to.last_sequence if delivered is None else delivered.get(incarnation, 0)
            # Oldest segment first, as they are appended to.
            queue.live.extents.reverse()
            self._to.live[incarnation] = queue.live


def _runs(sequences: list[int]) -> list[int]:
    runs: list[int] = []
    end: i64 = -2
    for sequence in sequences:
        if sequence == end + 1:
            runs[-1] = sequence
        else:
            runs.append(sequence)
            runs.append(sequence)
        end = sequence
    return runs


def _gaps(numbers: list[int], last: int) -> list[tuple[int, Damage]]:
    """What is missing between the segments that are there, and up to the one that should be the last."""
    reports = []
    for before, after in pairwise(numbers):
        end = after if after > last else after - 1
        if end > before:
            text = (
                f"segment {end} is missing"
                if end == before + 1
                else f"segments {before + 1} to {end} are missing"
            )
            reports.append((before + 1, Damage(0, text)))
    return reports


def _number(name: str) -> int:
    stem = name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0


def _is_segment(name: str) -> bool:
    return name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdigit()


__all__ = ["RecoveredLevel", "RecoveredQueue", "Recovery", "recover"]
