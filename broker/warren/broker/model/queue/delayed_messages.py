"""Backing queue of the internal queue of a delayed exchange: messages in the order in which their delays end."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.backing_queue import CONTENT_BYTES, MESSAGE_BYTES, BackingQueue
from warren.broker.model.queue.discarded_messages import DiscardedMessages

ENTRY_BYTES: Final = 120
"""Approximate bytes of memory that a message's entry in the heap takes."""
WAITING: Final = 1
"""Value of `Message.tag` for a message that is still in the internal queue of a delayed exchange."""


class DelayedMessages(BackingQueue):
    """Delayed messages in the order in which their delays end (`Message.expires`), then in that of their arrival.

    Contents can be paged out to disk; the order stays in memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_time: list[tuple[int, int, Message]] = []
        """Heap of the waiting messages: (end of the delay in milliseconds since 1970, sequence number, message)."""
        self.by_arrival: deque[Message] = deque()
        """Messages whose content may have to be paged out, in the order of arrival. Some may have left the queue."""

    def append(self, message: Message) -> None:
        size = message.body_size
        heapq.heappush(self.by_time, (message.expires, message.sequence, message))
        message.tag = WAITING
        self.count += 1
        self.bytes += size
        self.resident += 1
        self.resident_bytes += size
        if message.persistent:
            self.persistent += 1
            self.persistent_bytes += size
        self.by_arrival.append(message)

    def reinsert(self, message: Message) -> None:
        self.append(message)

    def head(self) -> Optional[Message]:  # noqa: UP045
        return self.by_time[0][2] if self.by_time else None

    def take(self) -> Optional[Message]:  # noqa: UP045
        while self.by_time:
            message = self.by_time[0][2]
            if not message.content and not self._load_content(message):
                return None
            heapq.heappop(self.by_time)
            if self._discard_if_damaged(message):
                continue
            message.tag = 0
            message.paging_out = False
            self.count -= 1
            self.bytes -= message.body_size
            self.resident -= 1
            self.resident_bytes -= message.body_size
            if message.persistent:
                self.persistent -= 1
                self.persistent_bytes -= message.body_size
            return message
        return None

    def _load_content(self, message: Message) -> bool:
        """Read the content of a message that was paged out. A damaged one stays empty.

        Return False if the disk cannot be read.
        """
        pager = self.pager
        assert pager is not None
        if not pager.load_contents([message]):
            return False
        if message.content:
            self.resident += 1
            self.resident_bytes += message.body_size
            self.disk_reads += 1
        return True

    def _discard_if_damaged(self, message: Message) -> bool:
        """Discard a message whose record in the log is damaged. Return True if it was."""
        if message.content:
            return False
        self._discard_damaged(message)
        return True

    def memory_bytes(self) -> i64:
        held: i64 = len(self.by_time)
        return held * (MESSAGE_BYTES + ENTRY_BYTES) + self.resident * CONTENT_BYTES + self.resident_bytes

    def set_lazy(self, lazy: bool) -> None:
        self.lazy = lazy

    def page_out(self, keep: i64, limit: i64) -> i64:
        if self.pager is None:
            return 0
        done: i64 = 0
        staying: i64 = self.resident - len(self.paging_out) - keep
        while staying > 0 and done < limit and self.by_arrival:
            message = self.by_arrival.popleft()
            if message.tag == WAITING and message.content:
                self._start_page_out(message)
                staying -= 1
            done += 1
        self.release_written()
        return done

    def restore(self, first: i64, last: i64, count: i64, bodies: i64, excluded: dict[int, bool]) -> None:
        pager = self.pager
        assert pager is not None
        following: i64 = first
        while following <= last:
            messages, following = pager.read_range(0, 255, following, last)
            for message in messages:
                if int(message.sequence) in excluded:
                    continue
                self.by_time.append((message.expires, message.sequence, message))
                message.tag = WAITING
                self.count += 1
                self.bytes += message.body_size
                self.persistent += 1
                self.persistent_bytes += message.body_size
        heapq.heapify(self.by_time)

    def take_all(self, discarded: DiscardedMessages) -> None:
        discarded.references.append(self.paging_out)
        discarded.references.append(self.by_arrival)
        discarded.delayed.append(self.by_time)
        self.paging_out = deque()
        self.by_arrival = deque()
        self.by_time = []
        self.clear()

    def message_objects(self) -> list[Message]:
        return [entry[2] for entry in self.by_time]

    def clear(self) -> None:
        for entry in self.by_time:
            entry[2].tag = 0
        self.by_time.clear()
        self.by_arrival.clear()
        self.paging_out.clear()
        self.count = 0
        self.bytes = 0
        self.resident = 0
        self.resident_bytes = 0
        self.persistent = 0
        self.persistent_bytes = 0
