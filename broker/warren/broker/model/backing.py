"""Where a queue's ready messages wait, in the order of their sequence."""

from __future__ import annotations

import heapq
from collections import deque

from mypy_extensions import i64

from warren.broker.model.message import Message


class Backing:
    """FIFO by sequence. What comes back after a delivery returns to its place, which is always before what never left."""

    def __init__(self) -> None:
        self.fresh: deque[Message] = deque()
        self.returned: list[tuple[int, Message]] = []
        self.count: i64 = 0
        self.bytes: i64 = 0
        """Bodies only, as RabbitMQ counts for x-max-length-bytes."""

    def append(self, message: Message) -> None:
        self.fresh.append(message)
        self.count += 1
        self.bytes += message.body_size

    def put_back(self, message: Message) -> None:
        heapq.heappush(self.returned, (message.sequence, message))
        self.count += 1
        self.bytes += message.body_size

    def head(self) -> Message | None:
        if self.returned:
            return self.returned[0][1]
        if self.fresh:
            return self.fresh[0]
        return None

    def take(self) -> Message:
        """The head, removed; the caller knows that there is one."""
        message = heapq.heappop(self.returned)[1] if self.returned else self.fresh.popleft()
        self.count -= 1
        self.bytes -= message.body_size
        return message

    def take_expired(self, now: i64, limit: i64) -> list[Message]:
        """What is dead at the head, removed, at most so many; a time in milliseconds since 1970."""
        dead: list[Message] = []
        head = self.head()
        while head is not None and head.expires and head.expires <= now and len(dead) < limit:
            dead.append(self.take())
            head = self.head()
        return dead

    def next_expiry(self) -> i64:
        """When the head dies, in milliseconds since 1970; 0 if it does not."""
        head = self.head()
        return 0 if head is None else head.expires

    def clear(self) -> list[Message]:
        """All of them in order; none is left."""
        messages = [pair[1] for pair in sorted(self.returned)]
        messages.extend(self.fresh)
        self.fresh.clear()
        self.returned.clear()
        self.count = 0
        self.bytes = 0
        return messages
