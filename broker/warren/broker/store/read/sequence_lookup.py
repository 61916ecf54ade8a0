"""Lookup of a queue's messages by sequence number, in the segment where they were written or copied by compaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.errors import reason
from warren.broker.store.index.index_format import TRANSIENT
from warren.broker.store.index.index_reader import IndexReader
from warren.broker.store.log.live_messages import Extent
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.record_format import POSITION_SHIFT
from warren.broker.store.log.recovery import Recovery
from warren.broker.store.read.record_reader import RecordReader

StoredMessage = tuple[int, int, int, int, int, int]
"""Message in the log: (sequence number, expiry, log position, bytes of the body, priority, flags).

The expiry is in milliseconds since 1970, or 0. The flags are TRANSIENT or 0.
"""

WINDOW: Final = 2048
"""Size of the ranges of sequence numbers that `SequenceLookup.find` searches one after the other."""


class SequenceLookup:
    """Lookup of one log's messages by queue and sequence number.

    If the disk cannot be read, `on_failure` is called with the reason, and no message is returned.

    :param add_live: called before each search of a queue's messages, to include those appended since the last batch.
    """

    def __init__(
        self, recovery: Recovery, add_live: Callable[[QueueLog], None], on_failure: Callable[[str], None]
    ) -> None:
        self._folder = recovery.folder
        self._describe = recovery.indexes.describe
        self._indexes = IndexReader(recovery.folder, recovery.files, recovery.indexes.rebuild)
        self._records = RecordReader(recovery.folder, recovery.files, recovery.identity, recovery.block)
        self._add_live = add_live
        self._on_failure = on_failure
        self.unwritten_copies: dict[int, bytes] = {}
        """Messages that compaction has copied to the end of the log, by log position, until the copies are on disk."""

    def set_written_position(self, position: i64) -> None:
        """Set the log position up to which records are in the segment files. Messages before it are read from there."""
        self._records.end = position
        copies = self.unwritten_copies
        while copies:
            first = next(iter(copies))
            if first >= position:
                break
            del copies[first]

    def payloads(self, queue: QueueLog, wanted: list[tuple[int, int]]) -> list[Optional[bytes]]:  # noqa: UP045
        """Return the payload of each message; None for one that is not found or not intact.

        The messages must have been written to the log's files. If the disk fails, the list is empty.

        :param wanted: (sequence number, log position) of each message; position 0 if it is not known.
        """
        self._add_live(queue)
        try:
            return self._payloads(queue, wanted)
        except OSError as error:
            self._fail(error)
            return []

    def find(
        self, queue: QueueLog, lowest: i64, highest: i64, first: i64, last: i64
    ) -> tuple[list[StoredMessage], int]:
        """Return the next messages still in a queue, in order, and the sequence number at which to search next.

        `WINDOW` sequence numbers are searched at a time, up to the first window with a message. The list is empty if no
        message is left up to `last`. In segments without an index only the copies that compaction made are found.

        :param lowest: lowest priority of the messages.
        :param highest: highest priority of the messages.
        :param first: sequence number at which the search begins.
        :param last: sequence number at which it ends.
        """
        self._add_live(queue)
        try:
            return self._find(queue, lowest, highest, first, last)
        except OSError as error:
            self._fail(error)
            return [], int(last + 1)

    def locate(self, queue: QueueLog, sequence: i64) -> i64:
        """Return the log position of a message; 0 if it has left its queue, or its segment has no index yet."""
        self._add_live(queue)
        try:
            return self._locate(queue, sequence)
        except OSError as error:
            self._fail(error)
            return 0

    def _fail(self, error: OSError) -> None:
        self._on_failure(f"cannot read the log in {self._folder}: {reason(error)}")

    def _payloads(self, queue: QueueLog, wanted: list[tuple[int, int]]) -> list[Optional[bytes]]:  # noqa: UP045
        found = self._records.payloads(queue.incarnation, wanted)
        at: i64 = 0
        count: i64 = len(found)
        while at < count:
            if found[at] is None:
                found[at] = self._copied(queue, wanted[at][0], wanted[at][1])
            at += 1
        return found

    def _copied(self, queue: QueueLog, sequence: i64, before: i64) -> Optional[bytes]:  # noqa: UP045
        position = self._locate(queue, sequence)
        if not position:
            return None
        copy = self.unwritten_copies.get(int(position))
        if copy is not None:
            return copy
        if position == before:
            return None
        return self._records.payloads(queue.incarnation, [(int(sequence), int(position))])[0]

    def _locate(self, queue: QueueLog, sequence: i64) -> i64:
        position: i64 = queue.copies.get(int(sequence), 0)
        if position:
            return position
        for extent in queue.live.extents:
            index = extent.segment.index
            if index is None or not extent.holds(sequence):
                continue
            for row in index.rows.get(int(queue.incarnation), ()):
                if row.first <= sequence <= row.last:
                    for entry in self._indexes.entries(index, row, sequence, sequence):
                        return i64(extent.segment.number << POSITION_SHIFT | entry[2])
        return 0

    def _find(
        self, queue: QueueLog, lowest: i64, highest: i64, first: i64, last: i64
    ) -> tuple[list[StoredMessage], int]:
        while first <= last:
            stop: i64 = min(last, first + WINDOW - 1)
            following: i64 = last + 1
            sources = 0
            found: list[StoredMessage] = []
            for extent in queue.live.extents:
                if extent.last < first:
                    continue
                if extent.base > stop:
                    following = min(following, extent.base)
                    continue
                sources += self._collect(queue, extent, lowest, highest, first, stop, found)
            if found:
                if sources > 1:
                    found.sort()
                return found, int(stop + 1)
            first = stop + 1
            if not sources and following > first:
                first = following
        return [], int(last + 1)

    def _collect(
        self,
        queue: QueueLog,
        extent: Extent,
        lowest: i64,
        highest: i64,
        first: i64,
        last: i64,
        found: list[StoredMessage],
    ) -> int:
        """Append messages of one segment to `found`: those in the given ranges of priorities and sequence numbers.

        :return: number of index rows that were searched; the messages of each are in order. The caller sorts `found` if
            a search has more than one. Copies in a segment without an index are in no order and count as two.
        """
        segment: i64 = extent.segment.number
        index = extent.segment.index
        if index is None:
            before: i64 = len(found)
            self._collect_copies(queue, extent, lowest, highest, first, last, found)
            return 2 if len(found) > before else 0
        sources = 0
        base: i64 = segment << POSITION_SHIFT
        for row in index.rows.get(int(queue.incarnation), ()):
            if row.priority < lowest or row.priority > highest or row.last < first or row.first > last:
                continue
            sources += 1
            for sequence, expires, offset, body, priority, flags, _ in self._indexes.entries(
                index, row, first, last
            ):
                if extent.holds(sequence):
                    found.append((sequence, expires, int(base + offset), body, priority, flags & TRANSIENT))
        return sources

    def _collect_copies(
        self,
        queue: QueueLog,
        extent: Extent,
        lowest: i64,
        highest: i64,
        first: i64,
        last: i64,
        found: list[StoredMessage],
    ) -> None:
        """Append messages to `found` that compaction has copied to a segment without an index.

        Leave out those whose priority is not `lowest` to `highest` or whose sequence number is not `first` to `last`.
        """
        for sequence, position in queue.copies.items():
            if position >> POSITION_SHIFT != extent.segment.number or not first <= sequence <= last:
                continue
            if not extent.holds(sequence):
                continue
            payload = self.unwritten_copies.get(position)
            if payload is None:
                payload = self._records.payloads(queue.incarnation, [(sequence, position)])[0]
            if payload is None:
                continue
            priority, expires, body = self._describe(payload)
            if lowest <= priority <= highest:
                flags = TRANSIENT if sequence in queue.spilled_copies else 0
                found.append((sequence, expires, position, body, priority, flags))


__all__ = ["SequenceLookup", "StoredMessage"]
