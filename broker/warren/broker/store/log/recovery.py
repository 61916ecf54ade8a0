"""Crash recovery of the log: finds the messages still in each queue, and damaged places."""

from __future__ import annotations

import contextlib
import os
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
from warren.broker.store.log.writer_jobs import CleanEnd
from warren.broker.store.manifest.manifest import FIRST_MANIFEST_VERSION, Manifest
from warren.broker.store.read.record_reader import RecordReader
from warren.broker.store.sequence_ranges import NONE, merge_ranges, subtract_ranges

_SUFFIX: Final = ".log"
_LISTED: Final = 8
"""Most ranges of lost messages that a report lists for each queue."""


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

    def __init__(self, folder: str, indexes: IndexStore, manifest: Manifest) -> None:
        self.manifest = manifest
        """The manifest of the data folder, with the segments that were found."""
        self.queues: dict[int, RecoveredQueue] = {}
        """State of the known queues, by incarnation (the number that names a queue in the log)."""
        self.damage: list[str] = []
        """Descriptions of the places that could not be read, one line each. The records there are lost."""
        self.recalled: dict[int, list[int]] = {}
        """Acknowledged messages whose acknowledgements are known from the index of lost records only.

        The log records them again. By incarnation, as ranges of sequence numbers: first, last, first, last, ...
        """
        self.recalled_counts: list[tuple[int, int]] = []
        """Messages whose delivery counts are known from the index of lost records only: (incarnation, sequence)."""
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

    def finish(self) -> None:
        """Write the manifest anew, finish removals that were cut short, and remove the mark of a clean stop.

        Call it before the log is made, and after the damage was reported: the next start finds it again until then.

        :raises StoreError: the disk cannot be read or written.
        """
        files, folder, manifest = self.files, self.folder, self.manifest
        try:
            for path in manifest.leftovers:
                files.unlink(path)
                files.sync_folder(os.path.dirname(path))
            manifest.begin()
            names = files.names(folder)
            known = {f"{segment.number:016d}.idx" for segment in self.segments}
            for name in names:
                if name.endswith(".idx") and name not in known:
                    files.unlink(f"{folder}/{name}")
            if CLEAN in names:
                remove_clean_stop(files, folder)
        except OSError as error:
            raise disk_error(f"write the manifest of the log in {folder}", error) from None

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
    """Read the log of a data folder, compare it with the manifest, and cut off an incompletely written end.

    :param known: the existing queues, each by its incarnation (its unique number in the log); records of other queues
        are ignored if their incarnation is less than `first_unknown`: those queues were deleted.
    :param first_unknown: lowest incarnation of which the definitions do not know whether its queue exists; by default
        they know all. Messages of such queues are recovered, too.
    :param block: size of a block in bytes.
    :param describe: returns priority, expiry and body size of an encoded message, for its index entry.
    :raises StoreError: the disk cannot be read or written.
    """
    indexes = IndexStore(folder.log, folder.files, folder.identity, block, describe)
    try:
        recovery = Recovery(folder.log, indexes, Manifest.load(folder))
        _LogScan(recovery, _QueueScans(recovery, known, first_unknown), folder.stored_version).run()
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

    def __init__(self, recovery: Recovery, queues: _QueueScans, version: int) -> None:
        self._result = recovery
        self._manifest = recovery.manifest
        self._version = version
        """Format version of the data folder as it was found."""
        self._reports: list[tuple[int, Damage]] = []
        """The damage found, each with the number of the segment."""
        self._end: Optional[CleanEnd] = None  # noqa: UP045
        """State of the log at the last stop; None if it was not clean, or the mark of it is damaged."""
        self._files = recovery.files
        self._indexes = recovery.indexes
        self._reader = IndexReader(recovery.folder, recovery.files, self._indexes.rebuild)
        self._queues = queues

    def run(self) -> None:
        result, files, manifest = self._result, self._files, self._manifest
        # Files that an earlier process created or removed must not change their state in a later power cut.
        files.sync_folder(result.folder)
        names = files.names(result.folder)
        self._end = end = self._read_clean_stop(CLEAN in names)
        numbers = sorted(int(name[: -len(_SUFFIX)]) for name in names if _is_segment(name))
        # No number is used twice: an index that outlived its segment must not be taken for that of another.
        used = [*map(_number_of, names), *manifest.log, manifest.marks.log[0]]
        result.next_segment = max(used, default=0) + 1
        for number in [number for number in numbers if number in manifest.removed_log]:
            manifest.leftovers += [segment_path(result.folder, number), index_path(result.folder, number)]
            numbers.remove(number)
        missing = self._find_missing(numbers)
        self._report_unknown(numbers)
        for number in sorted({*numbers, *missing}, reverse=True):
            if number in missing:
                self._report_missing(number)
            else:
                self._read_segment(number, number == numbers[-1])
        manifest.log = {int(segment.number): int(segment.size) for segment in result.segments}
        manifest.damaged_log = {int(segment.number) for segment in result.segments if segment.is_damaged}
        result.damage = manifest.damage + [
            place.text for _, place in sorted(self._reports, key=lambda item: (item[0], item[1].offset))
        ]
        result.clean = end is not None
        self._collect(end.delivered if end is not None else None)

    def _read_clean_stop(self, exists: bool) -> Optional[CleanEnd]:  # noqa: UP045
        """Return the state of the log at the last stop; None if that was not clean. Report a damaged mark of it.

        :param exists: True if the mark of a clean stop exists.
        """
        result, recorded = self._result, self._manifest.clean_check
        has_checksum = self._version >= FIRST_MANIFEST_VERSION
        fault = "missing"
        if exists:
            identity = result.identity
            found = read_clean_stop(self._files, result.folder, identity, has_checksum=has_checksum)
            if found is not None and recorded in (-1, found[1]):
                return found[0]
            fault = "damaged"
        if recorded >= 0 or (exists and not has_checksum):
            text = (
                f"log/{CLEAN}, the mark of a clean stop, is {fault}: all messages count as delivered before"
            )
            self._reports.append((0, Damage(0, text)))
        # Else the process was killed while it wrote the mark.
        return None

    def _find_missing(self, numbers: list[int]) -> set[int]:
        """Return the numbers of segments that must exist and do not.

        Without a usable manifest, report gaps between the numbers of the segments.

        :param numbers: the numbers of the existing segments, in order.
        """
        manifest, end = self._manifest, self._end
        expected = set(manifest.log)
        # The last segment of a clean stop may be one that nothing was written to.
        if end is not None and end.size:
            expected.add(end.segment)
        if manifest.marks.log[0] and not manifest.is_usable:
            expected.add(manifest.marks.log[0])
        missing = expected.difference(numbers)
        if not manifest.is_usable:
            self._reports += _missing_segments(sorted({*numbers, *missing}))
        return missing

    def _report_unknown(self, numbers: list[int]) -> None:
        """Report existing segments that the manifest does not name, unless a killed process had just begun them.

        :param numbers: the numbers of the existing segments, in order.
        """
        manifest = self._manifest
        if not manifest.is_usable:
            return
        stopped = self._end is not None or manifest.clean_check >= 0
        newest = max([*manifest.log, *manifest.removed_log], default=0)
        for number in numbers:
            if number not in manifest.log and (stopped or number < newest):
                text = f"segment {number} is not one that the log had at the last stop: its messages may come back"
                self._reports.append((number, Damage(0, text)))

    def _read_segment(self, number: int, is_last: bool) -> None:
        """Load or build the index of a segment, and add its messages. Report damage and a wrong size.

        :param is_last: True if no later segment exists.
        """
        path = segment_path(self._result.folder, number)
        size = self._files.size(path)
        recorded = self._manifest.log.get(number, 0)
        confirmed = self._confirmed_size(number)
        # A closed segment is whole. Of another one, only reading shows whether its tail is torn.
        may_be_torn = is_last and not recorded and self._end is None
        damage: list[Damage] = []
        former: Optional[SegmentIndex] = None  # noqa: UP045
        if recorded and size != recorded:
            former = self._indexes.load(number, recorded)
        index = self._indexes.load(number, size) if not may_be_torn else None
        end: i64 = 0
        if index is None:
            index, end, damage = self._build_index(number, may_be_torn, confirmed)
        if size < confirmed or (recorded and size > recorded):
            if former is not None:
                self._recall(former)
            segment = self._add_segment(number, index, True)
            lost = self._describe_lost(former)
            if damage and damage[-1].offset >= end:
                # It reports the damaged end already.
                damage[-1].text += lost
            else:
                least = "" if recorded or self._end is not None else "at least "
                text = f"segment {number} was {least}{confirmed} bytes long and is {size} now{lost}"
                damage.append(Damage(size, text))
        else:
            segment = self._add_segment(number, index, bool(damage))
        self._result.segments.insert(0, segment)
        self._reports += [(number, place) for place in damage]

    def _confirmed_size(self, number: int) -> int:
        """Return how many bytes of a segment are known to have been synced; 0 if that is not known."""
        marked = self._manifest.marks.log
        return max(
            self._manifest.log.get(number, 0),
            marked[1] if marked[0] == number else 0,
            self._end.size if self._end is not None and self._end.segment == number else 0,
        )

    def _report_missing(self, number: int) -> None:
        """Report a missing segment. If its index exists, apply its acknowledgements and report the lost messages."""
        recorded = self._confirmed_size(number)
        former = self._indexes.load(number, recorded) if recorded else None
        text = f"segment {number} is missing"
        if recorded:
            text += f": it was {recorded} bytes long"
        if former is not None:
            self._recall(former)
            text += self._describe_lost(former)
        elif recorded:
            text += "; messages that it acknowledged come back"
        self._reports.append((number, Damage(0, text)))

    def _recall(self, former: SegmentIndex) -> None:
        """Apply the acknowledgements and delivery counts of lost records, and have the log record them again.

        :param former: the segment's index, from before the loss.
        """
        self._add_acknowledgements(former)
        for incarnation, ranges in former.acks.items():
            if self._queues.get(incarnation) is not None:
                self._result.recalled.setdefault(incarnation, []).extend(ranges)
        self._result.recalled_counts += [(incarnation, sequence) for incarnation, sequence, _ in former.marks]

    def _describe_lost(self, former: Optional[SegmentIndex]) -> str:  # noqa: UP045
        """Return a text that names the lost messages of a segment; empty if they are not known.

        :param former: the segment's index, from before the loss. The messages that still exist were added already.
        """
        if former is None:
            return ""
        parts: list[str] = []
        for incarnation, rows in former.rows.items():
            queue = self._queues.get(incarnation)
            if queue is None:
                continue
            ranges: list[int] = []
            for row in rows:
                self._note_sequence(incarnation, int(row.last))
                if not row.is_transient:
                    ranges = merge_ranges(ranges + self._row_ranges(former, row))
            lost = subtract_ranges(subtract_ranges(ranges, queue.ended), queue.seen)
            if lost:
                parts.append(f"{_describe_ranges(lost)} of queue {incarnation}")
        return f"; lost: {'; '.join(parts)}" if parts else "; no message that a queue held is lost"

    def _row_ranges(self, index: SegmentIndex, row: IndexRow) -> list[int]:
        """Return the sequence numbers of the messages of an index row as ranges: first, last, first, last, ...

        If the entries cannot be read, these are the row's first and last message and all between.
        """
        if row.last - row.first + 1 == row.count:
            return [int(row.first), int(row.last)]
        try:
            return _ranges_of([entry[0] for entry in self._reader.entries(index, row, row.first, row.last)])
        except OSError:
            return [int(row.first), int(row.last)]

    def _build_index(
        self, number: int, may_be_torn: bool, confirmed: int
    ) -> tuple[SegmentIndex, int, list[Damage]]:
        """Build the index of a segment from its records.

        :param may_be_torn: True if a crash may have cut short the last write to the segment. All that follows the last
            intact record, and was not confirmed, is then cut off and not counted as damage.
        :param confirmed: the number of its bytes that are known to have been synced.
        :return: the index, the offset at which the last intact record ends, and the damaged places.
        """
        damage: list[Damage] = []
        index, end = self._indexes.build(number, damage)
        if may_be_torn:
            # Nothing behind it was ever confirmed.
            kept_end = max(end, confirmed)
            damage = [place for place in damage if place.offset < kept_end]
            if 0 < confirmed < end:
                # Repeated records are reported at offset 0. Those behind the mark replace nothing that was confirmed.
                damage = [place for place in damage if place.offset > 0]
            path = segment_path(self._result.folder, number)
            kept_end = min(kept_end, self._files.size(path))
            self._cut(path, kept_end)
            index.size = kept_end
        if index.count or damage:
            # So that the next start does not report the same damage. Without room it stays in memory.
            with contextlib.suppress(OSError):
                self._indexes.store(index)
        return index, end, damage

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

    def _add_segment(self, number: int, index: SegmentIndex, is_damaged: bool) -> Segment:
        """Add a segment's acknowledgements, delivery counts and live messages to the state of its queues.

        A message is live if it is acknowledged neither here nor in a newer segment, and no newer one holds a copy.
        """
        segment = Segment(number, index.size)
        segment.index = index
        segment.is_damaged = is_damaged or number in self._manifest.damaged_log
        self._add_acknowledgements(index)
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
        return segment

    def _add_acknowledgements(self, index: SegmentIndex) -> None:
        """Add the acknowledgements and delivery counts of a segment to the state of their queues."""
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


def _describe_ranges(ranges: list[int]) -> str:
    """Return ranges of sequence numbers (first, last, first, last, ...) as text; of many ranges only the first ones."""
    parts = []
    for at in range(0, min(len(ranges), 2 * _LISTED), 2):
        first, last = ranges[at], ranges[at + 1]
        parts.append(str(first) if first == last else f"{first} to {last}")
    if len(ranges) > 2 * _LISTED:
        count = sum(ranges[at + 1] - ranges[at] + 1 for at in range(2 * _LISTED, len(ranges), 2))
        parts.append(f"{count} more up to {ranges[-1]}")
    word = "message" if ranges[0] == ranges[-1] else "messages"
    return f"{word} {', '.join(parts[:-1])}{' and ' if len(parts) > 1 else ''}{parts[-1]}"


def _missing_segments(numbers: list[int]) -> list[tuple[int, Damage]]:
    """Return (number of the first missing segment, description) for each gap in the numbers of a log's segments.

    :param numbers: the numbers of the known segments, in order.
    """
    reports = []
    for before, after in pairwise(numbers):
        end = after - 1
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
