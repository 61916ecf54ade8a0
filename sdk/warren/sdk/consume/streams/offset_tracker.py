"""Offset tracker: the offset up to which a reader has handled its stream without a gap."""

from __future__ import annotations

import heapq


class OffsetTracker:
    """Low-water mark of a reader that may handle several messages at a time: the lowest offset that is not handled.

    A message that was delivered has one of three states: in flight, handled, or released (it was not handled, and has to
    be delivered again).
    """

    def __init__(self) -> None:
        self._next: int | None = None
        """One more than the highest offset that was delivered; None before the first one."""
        self._open: list[int] = []
        """Heap of the offsets that are in flight or released, and of handled ones above the lowest of those."""
        self._handled: set[int] = set()
        """Handled offsets that are still in `_open`."""
        self._released: set[int] = set()

    @property
    def position(self) -> int | None:
        """The lowest offset that is not handled: the reader continues there. None if it is unknown, because nothing was
        delivered and no position was stored.
        """
        return self._open[0] if self._open else self._next

    def begin(self, position: int) -> None:
        """Continue at a stored position, unless more than that is handled already."""
        current = self.position
        if current is None or position > current:
            self._next = position
            self._open, self._handled, self._released = [], set(), set()

    def start(self, offset: int) -> bool:
        """Mark a delivered offset as in flight. Return False if it must not be handled, because it is in flight or was
        handled already.
        """
        if self._next is None or offset >= self._next:
            heapq.heappush(self._open, offset)
            self._next = offset + 1
            return True
        if offset in self._released:
            self._released.discard(offset)
            return True
        return False

    def handled(self, offset: int) -> None:
        """Mark an offset as handled."""
        position = self.position
        if position is None or offset < position:
            return
        self._released.discard(offset)
        self._handled.add(offset)
        while self._open and self._open[0] in self._handled:
            self._handled.discard(heapq.heappop(self._open))

    def release(self, offset: int) -> None:
        """Mark an offset in flight as not handled: it is handled when it is delivered again."""
        position = self.position
        if position is not None and offset >= position:
            self._released.add(offset)

    def pass_over(self, offset: int) -> None:
        """Mark the released offsets below a delivered one as handled: the stream does not have them any more, since a reader
        continues at the lowest offset that is not handled.
        """
        for gone in [released for released in self._released if released < offset]:
            self.handled(gone)
