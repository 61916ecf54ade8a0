"""Messages that a purge or a deletion has taken out of a queue: freed, and removed from the log, in slices."""

from __future__ import annotations

import time
from collections import deque
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.delta import Delta
from warren.broker.model.queue.paging import QueuePager

CHUNK: Final = 64
"""Messages that are discarded before the time is checked."""


class DiscardedMessages:
    """Parts of backing queues whose messages are discarded. The queue itself is empty from the start.

    :param pager: access to the log, in which each message is recorded to have left the queue; None if the log forgets
        the queue as a whole, because it is deleted.
    """

    def __init__(self, pager: Optional[QueuePager]) -> None:  # noqa: UP045
        self.pager = pager
        self.references: list[deque[Message]] = []
        """Further references to messages of the other parts; they are dropped first."""
        self.parts: list[deque[Message]] = []
        self.returned: list[list[tuple[int, Message]]] = []
        """Heaps of requeued messages."""
        self.delayed: list[list[tuple[int, int, Message]]] = []
        """Heaps of delayed messages."""
        self.dead_letters: list[deque[tuple[Message, str]]] = []
        """Dead letters that no target has accepted, with their reasons."""
        self.retries: list[list[tuple[float, int, Message]]] = []
        """Heaps of requeued messages that wait for their retry."""
        self.deltas: list[Delta] = []
        """Messages that are on disk only."""

    def step(self, end: float) -> bool:
        """Discard messages until `time.monotonic()` reaches `end`; return True if none is left."""
        while self.discard_chunk():
            if time.monotonic() >= end:
                return False
        return True

    def discard_chunk(self) -> bool:
        """Discard a few messages; return False if none was left."""
        left: i64 = CHUNK
        while left:
            left -= 1
            if self.references:
                reference = self.references[-1]
                if reference:
                    reference.popleft()
                else:
                    self.references.pop()
            elif self.parts:
                part = self.parts[0]
                if part:
                    self.discard(part.popleft())
                else:
                    self.parts.pop(0)
            elif self.returned:
                heap = self.returned[-1]
                if heap:
                    self.discard(heap.pop()[1])
                else:
                    self.returned.pop()
            elif self.delayed:
                times = self.delayed[-1]
                if times:
                    self.discard(times.pop()[2])
                else:
                    self.delayed.pop()
            elif self.dead_letters:
                letters = self.dead_letters[-1]
                if letters:
                    self.discard(letters.popleft()[0])
                else:
                    self.dead_letters.pop()
            elif self.retries:
                waiting = self.retries[-1]
                if waiting:
                    self.discard(waiting.pop()[2])
                else:
                    self.retries.pop()
            elif self.deltas:
                self.discard_from_delta(self.deltas[-1])
                return True
            else:
                return False
        return True

    def discard(self, message: Message) -> None:
        """Record in the log that a message has left the queue."""
        pager = self.pager
        if pager is not None and message.stored:
            pager.acknowledge(message)

    def discard_from_delta(self, delta: Delta) -> None:
        """Record in the log that the next messages of a delta, which are on disk only, have left the queue."""
        pager = self.pager
        if pager is None or not delta.count or not delta.acknowledge_next(pager):
            self.deltas.pop()
