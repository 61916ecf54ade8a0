"""Crash recovery of the log: finds the messages still in each queue, and damaged places."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import disk_error
from warren.broker.store.index.index_format import (
    EXPIRES,
    Describe,
    IndexRow,
    SegmentIndex,
    describe_opaque,
    index_path,
)
from warren.broker.store.index.index_reader import IndexReader
from warren.broker.store.index.index_store import IndexStore
from warren.broker.store.log.clean_stop import CLEAN, read_clean_stop, remove_clean_stop
from warren.broker.store.log.live_messages import LiveMessages
from warren.broker.store.log.record_format import BLOCK, FIRST_TRANSIENT_INCARNATION, POSITION_SHIFT
from warren.broker.store.log.segment import Segment
from warren.broker.store.log.segment_reader import Damage, segment_path
from warren.broker.store.read.record_reader import RecordReader
from warren.broker.store.sequence_ranges import NONE, merge_ranges, subtract_ranges

_SUFFIX: Final = ".log"


class RecoveredLevel:
    """Unacknowledged messages of one priority in one recovered queue: range of sequence numbers, count, bytes."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.first: i64 = 0
        """Lowest sequence number of these messages."""
        self.last: i64 = 0
        """Highest sequence number of these messages."""
        self.count: i64 = 0
        """Number of messages."""
        self.bodies: i64 = 0
        """Bytes of the message bodies."""
        self.expires = False
        """True if some of the messages may expire."""


class RecoveredQueue:
    """State of one queue as recovery found it in the log: its messages, delivery counts, highest sequence number."""

    def __init__(self, recovery: Recovery, incarnation: int) -> None:
        self.last_sequence: i64 = 0
        """Highest sequence number in any record of the queue. New messages must get higher ones."""
        self.delivered: i64 = 0
        """Highest sequence number that may have been delivered before a crash. Messages up to it become redelivered."""
        self.levels: dict[int, RecoveredLevel] = {}
        """The messages still in the queue, by priority."""
        self.counts: dict[int, int] = {}
        """Delivery counts (other than 0) of messages still in the queue, by their sequence number."""
        self._recovery = recovery
        self._incarnation = incarnation

    @property
    def messages(self) -> list[tuple[int, bytes, int]]:
        """All messages still in the queue, as (sequence number, payload, delivery count), in order."""
        found = sorted(self._recovery.messages(self._incarnation))
        return [(sequence, payload, self.counts.get(sequence, 0)) for sequence, payload in found]


class Recovery:
    """Result of `recover`: the segments of the log, the messages still in each known queue, and the damage found."""

    def __init__(self, folder: str, indexes: IndexStore) -> None:
        self.queues: dict[int, RecoveredQueue] = {}
        """State of the known queues, by incarnation (the number that names a queue in the log)."""
        self.damage: list[str] = []
        """Descriptions of the places that could not be read, one line each. The records there are lost."""
        self.clean = False
        """True if the last stop was clean. If it was not, any message may have been delivered already."""
        self.folder = folder
        self.indexes = indexes
        self.files = indexes.files
        self.identity = indexes.identity
        self.block = indexes.block
        self.unknown: set[int] = set()
        """Incarnations of queues in the log that are not among the known ones and were never seen to be deleted."""
        self.segments: list[Segment] = []
        """All segments, oldest first."""
        self.live: dict[int, LiveMessages] = {}
        """The messages still in each known queue, by incarnation (the number that names a queue in the log)."""
        self.next_segment = 1
        """Number of the next segment to be created."""

    def messages(self, incarnation: int) -> Iterator[tuple[int, bytes]]:
        """Yield (sequence number, payload) of each message still in a queue, segment by segment.

        :param incarnation: the number that names the queue in the log.
        """
        indexes = IndexReader(self.folder, self.files, self.indexes.rebuild)
        records = RecordReader(self.folder, self.files, self.identity, self.block)
        for extent in self.live[incarnation].extents:
            index = extent.segment.index
            assert index is not None
            for row in index.rows.get(incarnation, ()):
                for entry in indexes.entries(index, row, row.first, row.last):
                    if not extent.holds(entry[0]):
                        continue
                    position = int(extent.segment.number) << POSITION_SHIFT | entry[2]
                    payload = records.payloads(incarnation, [(entry[0], position)])[0]
                    if payload is not None:
                        yield entry[0], payload


def recover(
    folder: DataFolder,
    known: Collection[int],
    *,
    first_unknown: int = FIRST_TRANSIENT_INCARNATION,
    block: int = BLOCK,
    describe: Describe = describe_opaque,
) -> Recovery:
    """Read the log of a data folder, cut off an incompletely written end, and remove the mark of a clean stop.

    :param known: the existing queues, each by its incarnation (its unique number in the log); records of other queues
        are ignored if their incarnation is less than `first_unknown`: those queues were deleted.
    :param first_unknown: lowest incarnation of which the definitions do not know whether its queue exists; by default
        they know all. Messages of such queues are recovered, too.
    :param block: size of a block in bytes.
    :param describe: returns priority, expiry and body size of an encoded message, for its index entry.
    :raises StoreError: the disk cannot be read or written.
    """
    indexes = IndexStore(folder.log, folder.files, folder.identity, block, describe)
    recovery = Recovery(folder.log, indexes)
    try:
        _LogScan(recovery, _QueueScans(recovery, known, first_unknown)).run()
    except OSError as error:
        raise disk_error(f"read the log in {folder.log}", error) from None
    return recovery


class _QueueScan:
    """Messages of one queue in the segments read so far: held there, acknowledged there, still in the queue."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        """Messages that newer segments acknowledge, as ranges of sequence numbers: first, last, first, last, ..."""
        self.seen: list[int] = []
        """Messages that newer segments hold, as ranges of sequence numbers: first, last, first, last, ..."""
        self.marks: dict[int, int] = {}
        """Delivery counts of messages, by their sequence number."""
        self.live = LiveMessages()


class _QueueScans:
    """Scans of the queues whose messages are recovered: the known ones, and those never seen to be deleted."""

    def __init__(self, recovery: Recovery, known: Collection[int], first_unknown: int) -> None:
        self.scans: dict[int, _QueueScan] = {}
        self._recovery = recovery
        self._first_unknown = first_unknown
        for incarnation in known:
            self._add(incarnation)

    def get(self, incarnation: int) -> Optional[_QueueScan]:  # noqa: UP045
        """Return the scan of a queue; None if its messages are not recovered, because it was deleted."""
        scan = self.scans.get(incarnation)
        if scan is None and self._first_unknown <= incarnation < FIRST_TRANSIENT_INCARNATION:
            self._recovery.unknown.add(incarnation)
            scan = self._add(incarnation)
        return scan

    def _add(self, incarnation: int) -> _QueueScan:
        scan = self.scans[incarnation] = _QueueScan()
        self._recovery.queues[incarnation] = RecoveredQueue(self._recovery, incarnation)
        return scan


class _LogScan:
    """Scan of the indexes of a log's segments, from the newest to the oldest. Missing indexes are built.

    An acknowledgement is in the segment of its message or in a newer one. So a message is live if neither its own nor a
    newer segment acknowledges it. If compaction has left two copies of a message, the one in the newer segment counts.
    """

    def __init__(self, recovery: Recovery, queues: _QueueScans) -> None:
        self._result = recovery
        self._files = recovery.files
        self._indexes = recovery.indexes
        self._reader = IndexReader(recovery.folder, recovery.files, self._indexes.rebuild)
        self._queues = queues

    def run(self) -> None:
        result, files = self._result, self._files
        # Files that an earlier process created or removed must not change their state in a later power cut.
        files.sync_folder(result.folder)
        names = files.names(result.folder)
        numbers = sorted(int(name[: -len(_SUFFIX)]) for name in names if _is_segment(name))
        last = numbers[-1] if numbers else 0
        end = read_clean_stop(files, result.folder) if CLEAN in names else None
        # The last segment of a clean stop may be one that nothing was written to.
        expected = 0 if end is None else end.segment if end.size else end.segment - 1
        reports = _missing_segments([*numbers, expected] if expected > last else numbers, last)
        for number in reversed(numbers):
            size = files.size(segment_path(result.folder, number))
            if number == last and end is not None and end.segment == number and size < end.size:
                text = f"segment {number} was {end.size} bytes long and is {size} now"
                reports.append((number, Damage(size, text)))
            # Only reading the segment shows whether its tail is torn.
            index = self._indexes.load(number, size) if number != last or end is not None else None
            if index is None:
                index, damage = self._build_index(number, number == last and end is None)
                reports += [(number, place) for place in damage]
            segment = Segment(number, index.size)
            segment.index = index
            result.segments.insert(0, segment)
            self._add_segment(segment, index)
        # No number is used twice: an index that outlived its segment must not be taken for that of another.
        result.next_segment = max([last, *(_number_of(name) for name in names)]) + 1
        result.damage = [
            place.text for _, place in sorted(reports, key=lambda item: (item[0], item[1].offset))
        ]
        result.clean = end is not None
        if not result.unknown:
            # Else it must first be decided what becomes of them, and the folder may be refused as it is.
            self._remove_stale(set(names), numbers)
        self._collect(end.delivered if end is not None else None)

    def _build_index(self, number: int, may_be_torn: bool) -> tuple[SegmentIndex, list[Damage]]:
        """Build the index of segment `number` from its records, and return it with the damaged places.

        :param may_be_torn: True if a crash may have cut short the last write to the segment. All that follows the last
            intact record is then cut off and not counted as damage.
        """
        damage: list[Damage] = []
        index, end = self._indexes.build(number, damage)
        if may_be_torn:
            # Nothing behind the last intact record was ever confirmed.
            damage = [place for place in damage if place.offset < end]
            self._cut(segment_path(self._result.folder, number), end)
            index.size = end
        if index.count:
            # Without room it stays in memory.
            with contextlib.suppress(OSError):
                self._indexes.store(index)
        return index, damage

    def _cut(self, path: str, size: int) -> None:
        """Cut a segment's file to `size` bytes, where its incompletely written end begins, and sync it.

        Sync even if nothing is cut: what was read may have been in the page cache only, and a segment must be whole on
        disk before the next one is begun.
        """
        handle = self._files.open(path)
        try:
            if self._files.size(path) > size:
                self._files.truncate(handle, size)
            self._files.sync(handle)
        finally:
            self._files.close(handle)

    def _add_segment(self, segment: Segment, index: SegmentIndex) -> None:
        """Add a segment's acknowledgements, delivery counts and live messages to the state of its queues.

        A message is live if it is acknowledged neither here nor in a newer segment, and no newer one holds a copy.
        """
        for incarnation, ranges in index.acks.items():
            queue = self._queues.get(incarnation)
            if queue is not None:
                queue.ended = merge_ranges(queue.ended + ranges)
                self._note_sequence(incarnation, ranges[-1])
        for incarnation, sequence, count in index.marks:
            queue = self._queues.get(incarnation)
            if queue is not None:
                queue.marks[sequence] = max(count, queue.marks.get(sequence, 0))
                self._note_sequence(incarnation, sequence)
        for incarnation, rows in index.rows.items():
            queue = self._queues.get(incarnation)
            if queue is None:
                continue
            found: list[int] = []
            for row in rows:
                self._note_sequence(incarnation, int(row.last))
                if not row.is_transient:
                    found += self._add_row(segment, index, queue, row)
            queue.seen = merge_ranges(queue.seen + found)

    def _note_sequence(self, incarnation: int, sequence: i64) -> None:
        """Raise the highest known sequence number of a queue to one that was found in a record.

        :param incarnation: the number that names the queue in the log.
        """
        queue = self._result.queues[incarnation]
        if sequence > queue.last_sequence:
            queue.last_sequence = sequence

    def _add_row(self, segment: Segment, index: SegmentIndex, queue: _QueueScan, row: IndexRow) -> list[int]:
        """Add the live messages of an index row (one queue's messages of one priority in the segment) to the result.

        :return: the sequence numbers of all messages of the row, live or not, as ranges: first, last, first, last, ...
        """
        ranges: list[int] = []
        if row.last - row.first + 1 == row.count:
            ranges = [int(row.first), int(row.last)]
        else:
            ranges = _ranges_of([entry[0] for entry in self._reader.entries(index, row, row.first, row.last)])
        live = subtract_ranges(subtract_ranges(ranges, queue.ended), queue.seen)
        if not live:
            return ranges
        count: i64 = 0
        for at in range(0, len(live), 2):
            count += live[at + 1] - live[at] + 1
        bodies: i64 = row.bodies
        if count < row.count:
            bodies = 0
            for at in range(0, len(live), 2):
                for entry in self._reader.entries(index, row, live[at], live[at + 1]):
                    bodies += entry[3]
        queue.live.add(segment, live, int(row.bytes * count // row.count))
        levels = self._result.queues[row.incarnation].levels
        level = levels.get(row.priority)
        if level is None:
            level = levels[row.priority] = RecoveredLevel(row.priority)
            level.first, level.last = live[0], live[-1]
        level.first = min(level.first, live[0])
        level.last = max(level.last, live[-1])
        level.count += count
        level.bodies += bodies
        level.expires = level.expires or row.flags & EXPIRES != 0
        return ranges

    def _remove_stale(self, names: set[str], numbers: list[int]) -> None:
        """Remove the mark of a clean stop, and the index files whose segments are deleted.

        :param names: the files in the log's folder.
        :param numbers: the existing segments.
        """
        files, folder = self._files, self._result.folder
        if CLEAN in names:
            remove_clean_stop(files, folder)
        known = {index_path(folder, number) for number in numbers}
        for name in names:
            if name.endswith(".idx") and f"{folder}/{name}" not in known:
                files.unlink(f"{folder}/{name}")

    def _collect(self, delivered: Optional[dict[int, int]]) -> None:  # noqa: UP045
        """Store each queue's messages, delivery counts and highest delivered sequence number in the result.

        :param delivered: the highest sequence number that may have been delivered before an earlier crash, by the
            queue's number in the log, as stored at a clean stop; None after a crash, when any may have been delivered.
        """
        for incarnation, queue in self._queues.scans.items():
            result = self._result.queues[incarnation]
            result.counts = {
                sequence: count
                for sequence, count in queue.marks.items()
                if count and any(extent.holds(sequence) for extent in queue.live.extents)
            }
            result.delivered = result.last_sequence if delivered is None else delivered.get(incarnation, 0)
            # Oldest segment first: the log appends to this list.
            queue.live.extents.reverse()
            self._result.live[incarnation] = queue.live


def _ranges_of(sequences: list[int]) -> list[int]:
    """Return ordered sequence numbers as ranges, in a flat list: first, last, first, last, ..."""
    ranges: list[int] = []
    end: i64 = NONE
    for sequence in sequences:
        if sequence == end + 1:
            ranges[-1] = sequence
        else:
            ranges.append(sequence)
            ranges.append(sequence)
        end = sequence
    return ranges


def _missing_segments(numbers: list[int], last: int) -> list[tuple[int, Damage]]:
    """Return (number of the first missing segment, description) for each gap in the numbers of a log's segments.

    :param numbers: the numbers of the existing segments, in order. If a clean stop recorded a last segment that is
        missing, the number of that one follows.
    :param last: the number of the last segment that exists.
    """
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


def _number_of(name: str) -> int:
    """Return the number before the first dot of a file's name (that of a segment or index); 0 if there is none."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0


def _is_segment(name: str) -> bool:
    return name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdigit()


__all__ = ["RecoveredLevel", "RecoveredQueue", "Recovery", "recover"]
