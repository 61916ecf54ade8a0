"""Finds a queue's messages in the log by their sequences, wherever compaction has put them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.errors import reason
from warren.broker.store.index.index_format import TRANSIENT, Pages
from warren.broker.store.log.live_segments import Extent
from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.log.recovery import Recovery
from warren.broker.store.read.message_fetch import PLACE, Fetch

Found = tuple[int, int, int, int, int, int]
"""Sequence, expiry, place, size of the body, priority, flags (TRANSIENT)."""

WINDOW: Final = 2048
"""Sequences that are looked at together."""


class Lookup:
    """Messages by sequence, for one log.

    If the disk cannot be read, the log has failed: nothing is found, and `failed` was called.

    :param settle: makes known what was appended for a queue.
    """

    def __init__(
        self, recovery: Recovery, settle: Callable[[QueueLog], None], failed: Callable[[str], None]
    ) -> None:
        self._folder = recovery.folder
        self._indexer = recovery.indexer
        self._pages = Pages(recovery.folder, recovery.files, recovery.indexer.rebuild)
        self._fetch = Fetch(recovery.folder, recovery.files, recovery.identity, recovery.block)
        self._settle = settle
        self._failed = failed
        self.copies: dict[int, bytes] = {}
        """The payloads of copies that are not written yet, by place, in the order of their places."""

    def written(self, place: i64) -> None:
        """The log is written up to there."""
        self._fetch.end = place
        copies = self.copies
        while copies:
            first = next(iter(copies))
            if first >= place:
                break
            del copies[first]

    def payloads(self, queue: QueueLog, wanted: list[tuple[int, int]]) -> list[Optional[bytes]]:  # noqa: UP045
        """The payload of each message (sequence, place; 0 if the place is not known); None for what is not there, intact.

        They have to be written.
        """
        self._settle(queue)
        try:
            return self._payloads(queue, wanted)
        except OSError as error:
            self._fail(error)
            return []

    def find(
        self, queue: QueueLog, lowest: i64, highest: i64, first: i64, last: i64
    ) -> tuple[list[Found], int]:
        """The next live messages with sequences from `first` to `last` and priorities from `lowest` to `highest` that stand
        in segments with an index, in order, and the sequence to go on with; none if there are none left."""
        self._settle(queue)
        try:
            return self._read(queue, lowest, highest, first, last)
        except OSError as error:
            self._fail(error)
            return [], int(last + 1)

    def locate(self, queue: QueueLog, sequence: i64) -> i64:
        """Where a live message stands; 0 if that is not known, because its segment has no index yet, or not live."""
        self._settle(queue)
        try:
            return self._locate(queue, sequence)
        except OSError as error:
            self._fail(error)
            return 0

    def _fail(self, error: OSError) -> None:
        self._failed(f"cannot read the log in {self._folder}: {reason(error)}")

    def _payloads(self, queue: QueueLog, wanted: list[tuple[int, int]]) -> list[Optional[bytes]]:  # noqa: UP045
        found = self._fetch.payloads(queue.incarnation, wanted)
        at: i64 = 0
        count: i64 = len(found)
        while at < count:
            if found[at] is None:
                found[at] = self._moved(queue, wanted[at][0], wanted[at][1])
            at += 1
        return found

    def _moved(self, queue: QueueLog, sequence: i64, before: i64) -> Optional[bytes]:  # noqa: UP045
        place = self._locate(queue, sequence)
        if not place:
            return None
        copy = self.copies.get(int(place))
        if copy is not None:
            return copy
        if place == before:
            return None
        return self._fetch.payloads(queue.incarnation, [(int(sequence), int(place))])[0]

    def _locate(self, queue: QueueLog, sequence: i64) -> i64:
        place: i64 = queue.moved.get(int(sequence), 0)
        if place:
            return place
        for extent in queue.live.extents:
            index = extent.segment.index
            if index is None or not extent.holds(sequence):
                continue
            for row in index.rows.get(int(queue.incarnation), ()):
                if row.first <= sequence <= row.last:
                    for entry in self._pages.entries(index, row, sequence, sequence):
                        return i64(extent.segment.number << PLACE | entry[2])
        return 0

    def _read(
        self, queue: QueueLog, lowest: i64, highest: i64, first: i64, last: i64
    ) -> tuple[list[Found], int]:
        while first <= last:
            stop: i64 = min(last, first + WINDOW - 1)
            following: i64 = last + 1
            sources = 0
            found: list[Found] = []
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
        found: list[Found],
    ) -> int:
        """What one segment has of it; returns how many sorted lists that is."""
        segment: i64 = extent.segment.number
        index = extent.segment.index
        if index is None:
            before: i64 = len(found)
            self._collect_moved(queue, extent, lowest, highest, first, last, found)
            return 2 if len(found) > before else 0
        sources = 0
        base: i64 = segment << PLACE
        for row in index.rows.get(int(queue.incarnation), ()):
            if row.priority < lowest or row.priority > highest or row.last < first or row.first > last:
                continue
            sources += 1
            for sequence, expires, offset, body, priority, flags, _ in self._pages.entries(
                index, row, first, last
            ):
                if extent.holds(sequence):
                    found.append((sequence, expires, int(base + offset), body, priority, flags & TRANSIENT))
        return sources

    def _collect_moved(
        self,
        queue: QueueLog,
        extent: Extent,
        lowest: i64,
        highest: i64,
        first: i64,
        last: i64,
        found: list[Found],
    ) -> None:
        """Copies in a segment that has no index yet."""
        for sequence, place in queue.moved.items():
            if place >> PLACE != extent.segment.number or not first <= sequence <= last:
                continue
            if not extent.holds(sequence):
                continue
            payload = self.copies.get(place)
            if payload is None:
                payload = self._fetch.payloads(queue.incarnation, [(sequence, place)])[0]
            if payload is None:
                continue
            priority, expires, body = self._indexer.describe(payload)
            if lowest <= priority <= highest:
                flags = TRANSIENT if sequence in queue.moved_transient else 0
                found.append((sequence, expires, place, body, priority, flags))


__all__ = ["Found", "Lookup"]
