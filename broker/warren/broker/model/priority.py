"""A priority queue's ready messages: one FIFO a level, and the highest level that has any is always next.

Strictly so, as RabbitMQ's code has it (rabbit_priority_queue); lower levels can starve. https://www.rabbitmq.com/docs/priority
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.broker.model.backing import Backing
from warren.broker.model.message import Message


class PriorityBacking(Backing):
    """Levels 0 to `highest`; a message above it counts as of the highest."""

    def __init__(self, highest: i64) -> None:
        super().__init__()
        self.highest = highest
        self.levels: list[Backing] = [Backing() for _ in range(highest + 1)]

    def level(self, message: Message) -> Backing:
        return self.levels[min(message.priority, self.highest)]

    def append(self, message: Message) -> None:
        self.level(message).append(message)
        self.count += 1
        self.bytes += message.body_size

    def put_back(self, message: Message) -> None:
        self.level(message).put_back(message)
        self.count += 1
        self.bytes += message.body_size

    def head(self) -> Message | None:
        for level in reversed(self.levels):
            if level.count:
                return level.head()
        return None

    def take(self) -> Message:
        for level in reversed(self.levels):
            if level.count:
                break
        message = level.take()
        self.count -= 1
        self.bytes -= message.body_size
        return message

    def take_expired(self, now: i64, limit: i64) -> list[Message]:
        """Each level has a head of its own."""
        dead: list[Message] = []
        for level in reversed(self.levels):
            if level.count:
                dead.extend(level.take_expired(now, limit - len(dead)))
        for message in dead:
            self.count -= 1
            self.bytes -= message.body_size
        return dead

    def next_expiry(self) -> i64:
        soonest: i64 = 0
        for level in self.levels:
            expires = level.next_expiry()
            if expires and (not soonest or expires < soonest):
                soonest = expires
        return soonest

    def clear(self) -> list[Message]:
        messages: list[Message] = []
        for level in reversed(self.levels):
            messages.extend(level.clear())
        self.count = 0
        self.bytes = 0
        return messages
