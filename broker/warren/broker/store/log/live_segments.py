"""Which messages of which segment are live, what may be deleted, and what is worth copying forward.

An acknowledgement, and the delivery count, stand in the same segment as their message or in a later one. So a
segment without live messages may be deleted when it is the oldest: no acknowledgement in it speaks of a
message that outlives it. Were a later one deleted first, messages whose acknowledgements it held would come
back.
"""

from __future__ import annotations

from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.store.index.index_format import SegmentIndex

_GAP = 1 << 16
"""A run this far from an extent's last message begins a new extent: a bitmap costs a bit for each number left
out."""


FEW: Final = 8
"""Segments that may be held however little they hold."""


class Segment:
    """One file of the log.

    It may be unlinked once it holds nothing live, batch `batch` is on disk (the last that writes to it, or
    that holds the reason why its messages are gone) and change `change` of the definitions is committed.
    """

    def __init__(self, number: i64, size: i64) -> None:
        self.number = number
        self.size: i64 = size
        self.live: i64 = 0
        self.live_bytes: i64 = 0
        self.batch: i64 = 0
        self.change: i64 = 0
        self.index: Optional[SegmentIndex] = None  # noqa: UP045
        """Once nothing more is written to it, and somebody may want to read it."""


class Extent:
    """The live messages that one queue has in one segment, a bit each."""

    def __init__(self, segment: Segment, first: i64) -> None:
        self.segment = segment
        self.base: i64 = first & ~7
        self.last: i64 = first
        self.bits = bytearray()
        self.live: i64 = 0
        self.live_bytes: i64 = 0

    def holds(self, sequence: i64) -> bool:
        """Whether that message is live here."""
        if sequence < self.base or sequence > self.last:
            return False
        at: i64 = sequence - self.base
        return self.bits[at >> 3] & (1 << (at & 7)) != 0

    def add(self, first: i64, last: i64, size: i64) -> None:
        """The messages from `first` to `last`, `size` bytes together, are now live here."""
        low: i64 = first - self.base
        high: i64 = last - self.base
        start: i64 = low >> 3
        stop: i64 = high >> 3
        bits = self.bits
        if stop >= len(bits):
            bits.extend(bytes(stop + 1 - len(bits)))
        if start == stop:
            bits[start] |= (0xFF << (low & 7)) & (0xFF >> (7 - (high & 7)))
        else:
            bits[start] |= (0xFF << (low & 7)) & 0xFF
            bits[stop] |= 0xFF >> (7 - (high & 7))
            if stop > start + 1:
                bits[start + 1 : stop] = b"\xff" * (stop - start - 1)
        if last > self.last:
            self.last = last
        count: i64 = last - first + 1
        self.live += count
        self.live_bytes += size
        self.segment.live += count
        self.segment.live_bytes += size

    def clear(self, first: i64, last: i64) -> i64:
        """Those from `first` to `last` are dead; returns how many of them were live here."""
        if first < self.base:
            first = self.base
        if last > self.last:
            last = self.last
        if first > last:
            return 0
        low: i64 = first - self.base
        high: i64 = last - self.base
        start: i64 = low >> 3
        stop: i64 = high >> 3
        bits = self.bits
        if start == stop:
            count: i64 = self._clear_byte(start, (0xFF << (low & 7)) & (0xFF >> (7 - (high & 7))))
        else:
            count = self._clear_byte(start, (0xFF << (low & 7)) & 0xFF)
            count += self._clear_byte(stop, 0xFF >> (7 - (high & 7)))
            if stop > start + 1:
                count += int.from_bytes(bits[start + 1 : stop], "little").bit_count()
                bits[start + 1 : stop] = bytes(stop - start - 1)
        if count:
            # A message's own size is not kept; the mean of those that are left is near enough to decide by.
            size: i64 = self.live_bytes * count // self.live
            self.live -= count
            self.live_bytes -= size
            self.segment.live -= count
            self.segment.live_bytes -= size
        return count

    def _clear_byte(self, at: i64, mask: int) -> i64:
        held = self.bits[at]
        self.bits[at] = held & ~mask & 0xFF
        return (held & mask).bit_count()

    def sequences(self) -> list[int]:
        """The live messages, in order."""
        return [n for n in range(self.base, self.last + 1) if self.holds(n)]


class Live:
    """The live messages of one queue, wherever in the log they are."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []

    def add(self, segment: Segment, runs: list[int], size: i64) -> None:
        """The messages of `runs` (first, last, first, last, ...), `size` bytes together, are live in
        `segment`."""
        at: i64 = 0
        count: i64 = 0
        while at < len(runs):
            count += runs[at + 1] - runs[at] + 1
            at += 2
        at = 0
        while at < len(runs):
            first: i64 = runs[at]
            last: i64 = runs[at + 1]
            part: i64 = size * (last - first + 1) // count
            size -= part
            count -= last - first + 1
            self._extent(segment, first).add(first, last, part)
            at += 2

    def _extent(self, segment: Segment, first: i64) -> Extent:
        for extent in reversed(self.extents):
            if extent.segment is segment and extent.base <= first <= extent.last + _GAP:
                return extent
        extent = Extent(segment, first)
        self.extents.append(extent)
        return extent

    def clear(self, runs: list[int], batch: i64) -> None:
        """The messages of `runs` are dead. A `batch` other than 0 has to be on disk before their segment may
        go."""
        if not runs:
            return
        first: i64 = runs[0]
        last: i64 = runs[-1]
        emptied = False
        for extent in self.extents:
            if extent.last < first or extent.base > last:
                continue
            gone: i64 = 0
            at: i64 = 0
            while at < len(runs):
                gone += extent.clear(runs[at], runs[at + 1])
                at += 2
            if gone:
                if batch > extent.segment.batch:
                    extent.segment.batch = batch
                if extent.live == 0:
                    emptied = True
        if emptied:
            self.extents = [extent for extent in self.extents if extent.live]

    def clear_all(self, change: i64) -> None:
        """All messages are dead, once change `change` of the definitions is committed."""
        for extent in self.extents:
            segment = extent.segment
            segment.live -= extent.live
            segment.live_bytes -= extent.live_bytes
            if change > segment.change:
                segment.change = change
        self.extents = []

    def take(self, segment: Segment, sequence: i64) -> bool:
        """Whether that message is live in that segment; from now on it is not, since it stands elsewhere."""
        for extent in self.extents:
            if extent.segment is segment and extent.clear(sequence, sequence):
                if extent.live == 0:
                    self.extents.remove(extent)
                return True
        return False


class Segments:
    """The segments of the log, oldest first; the last one is written to.

    :param slack: how many bytes the log may use beyond twice its live ones before it copies messages forward.
    :param segment_size: bytes after which a segment is closed.
    """

    def __init__(self, held: list[Segment], slack: i64, segment_size: i64) -> None:
        self.segment_size = segment_size
        self.held = held
        self.slack = slack
        self._unavoidable: i64 = 0
        self._round: i64 = 0
        """The segment that was written to when the round began; older ones are copied forward. 0: no
        round."""

    def size(self) -> i64:
        """Bytes on disk."""
        total: i64 = 0
        for segment in self.held:
            total += segment.size
        return total

    def live_bytes(self) -> i64:
        """About how many of them are of live messages."""
        total: i64 = 0
        for segment in self.held:
            total += segment.live_bytes
        return total

    def removable(self, synced: i64, committed: i64) -> list[Segment]:
        """Takes out and returns the oldest segments that nobody needs."""
        count = 0
        for segment in self.held[:-1]:
            if segment.live or segment.batch > synced or segment.change > committed:
                break
            count += 1
        removed = self.held[:count]
        if count:
            del self.held[:count]
        return removed

    def wasteful(self, synced: i64) -> Segment | None:
        """The oldest segment, if the log is so much larger than what is live in it that copying forward pays.

        What it costs is bounded: when it begins more than half of the log is dead, so a round that copies all
        live bytes frees more than it writes.
        """
        held = len(self.held)
        if held < 2:
            return None
        live = self.live_bytes()
        # Each start begins a new one: many that hold little are as wasteful.
        if self.size() <= 2 * live + self.slack and held <= FEW + 4 * live // self.segment_size:
            return None
        oldest = self.held[0]
        return oldest if oldest.live and oldest.batch <= synced else None


__all__ = ["Extent", "Live", "Segment", "Segments"]
