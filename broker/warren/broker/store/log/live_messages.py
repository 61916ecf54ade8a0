"""Live messages of the log, which are those still in their queue: a bitmap for each queue and segment."""

from __future__ import annotations

from mypy_extensions import i64

from warren.broker.store.log.segment import Segment

_GAP = 1 << 16
"""Largest gap between two sequence numbers in one bitmap (`Extent`), which has a bit for each number in the gap, too.

Behind a larger gap a new bitmap is begun.
"""


class Extent:
    """Live messages of one queue in one segment, as a bitmap over their sequence numbers.

    If the numbers lie far apart, there are several extents for one queue and segment.
    """

    def __init__(self, segment: Segment, first: i64) -> None:
        self.segment = segment
        self.base: i64 = first & ~7
        """Sequence number that the first bit of the bitmap stands for."""
        self.last: i64 = first
        """Highest sequence number of a message that is or was live in this extent."""
        self.bits = bytearray()
        self.live: i64 = 0
        """Number of live messages (those still in their queue) in the extent."""
        self.live_bytes: i64 = 0
        """Approximate bytes that the log records of the live messages take."""

    def holds(self, sequence: i64) -> bool:
        """Return True if the message with this sequence number is live in the extent's segment."""
        if sequence < self.base or sequence > self.last:
            return False
        at: i64 = sequence - self.base
        return self.bits[at >> 3] & (1 << (at & 7)) != 0

    def add(self, first: i64, last: i64, size: i64) -> None:
        """Mark the messages with the sequence numbers `first` to `last` as live. Together they take `size` bytes."""
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

    def remove(self, first: i64, last: i64) -> i64:
        """Mark messages as no longer live, by their sequence numbers `first` to `last`. Return how many were live."""
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
            # Sizes of single messages are not kept; the mean of the live ones is good enough to decide on compaction.
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
        """Return the sequence numbers of the live messages, in order."""
        return [n for n in range(self.base, self.last + 1) if self.holds(n)]


class LiveMessages:
    """The live messages of one queue (those still in it) in all segments of the log."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        """The bitmaps of live messages, one or more for each segment that has any, the oldest segment first."""

    def add(self, segment: Segment, ranges: list[int], size: i64) -> None:
        """Mark messages as live (still in their queue) in a segment.

        :param ranges: their sequence numbers as ranges: first, last, first, last, ...
        :param size: bytes that they take together in the segment.
        """
        at: i64 = 0
        count: i64 = 0
        while at < len(ranges):
            count += ranges[at + 1] - ranges[at] + 1
            at += 2
        at = 0
        while at < len(ranges):
            first: i64 = ranges[at]
            last: i64 = ranges[at + 1]
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

    def remove(self, ranges: list[int], batch: i64) -> None:
        """Mark messages as no longer live, because they have left their queue.

        :param ranges: their sequence numbers as ranges: first, last, first, last, ...
        :param batch: number of the batch of records with their acknowledgements: the segments of the messages are not
            deleted before that batch is on disk. 0 if the segments need not wait for it.
        """
        if not ranges:
            return
        first: i64 = ranges[0]
        last: i64 = ranges[-1]
        emptied = False
        for extent in self.extents:
            if extent.last < first or extent.base > last:
                continue
            removed: i64 = 0
            at: i64 = 0
            while at < len(ranges):
                removed += extent.remove(ranges[at], ranges[at + 1])
                at += 2
            if removed:
                if batch > extent.segment.batch:
                    extent.segment.batch = batch
                if extent.live == 0:
                    emptied = True
        if emptied:
            self.extents = [extent for extent in self.extents if extent.live]

    def clear(self, change: i64) -> None:
        """Mark all messages of a deleted queue as no longer live.

        :param change: number of the change of the definitions database that deletes the queue: the segments of its
            messages are not deleted before this change is on disk.
        """
        for extent in self.extents:
            segment = extent.segment
            segment.live -= extent.live
            segment.live_bytes -= extent.live_bytes
            if change > segment.change:
                segment.change = change
        self.extents = []

    def take(self, segment: Segment, sequence: i64) -> bool:
        """Mark a message as no longer live in a segment, because it is copied to a newer one.

        Return True if it was live there, False if it was not.
        """
        for extent in self.extents:
            if extent.segment is segment and extent.remove(sequence, sequence):
                if extent.live == 0:
                    self.extents.remove(extent)
                return True
        return False


__all__ = ["Extent", "LiveMessages"]
