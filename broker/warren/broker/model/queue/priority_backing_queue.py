"""Backing queue of a priority queue: one FIFO for each priority.

The next message is always one of the highest priority that has messages, as in RabbitMQ (rabbit_priority_queue). Lower
priorities can starve. See https://www.rabbitmq.com/docs/priority.
"""

from __future__ import annotations

from typing import Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.backing_queue import ANY, BackingQueue
from warren.broker.model.queue.discarded_messages import DiscardedMessages
from warren.broker.model.queue.paging import QueuePager


class PriorityBackingQueue(BackingQueue):
    """Ready messages of a priority queue. Each priority from 0 to `highest` has a FIFO of its own, called level.

    A message with a higher priority counts as `highest`. Each level pages its messages out to disk separately.
    """

    def __init__(self, highest: i64) -> None:
        super().__init__()
        self.top = highest
        self.levels: list[BackingQueue] = [
            BackingQueue(level, level if level < highest else ANY) for level in range(highest + 1)
        ]

    def attach_pager(self, pager: QueuePager) -> None:
        self.pager = pager
        for level in self.levels:
            level.pager = pager

    def level(self, priority: i64) -> BackingQueue:
        return self.levels[min(priority, self.top)]

    def append(self, message: Message) -> None:
        self.level(message.priority).append(message)
        self.count += 1
        self.bytes += message.body_size

    def reinsert(self, message: Message) -> None:
        self.level(message.priority).reinsert(message)
        self.count += 1
        self.bytes += message.body_size

    def head(self) -> Optional[Message]:  # noqa: UP045
        for level in reversed(self.levels):
            if level.count:
                return level.head()
        return None

    def take(self) -> Optional[Message]:  # noqa: UP045
        for level in reversed(self.levels):
            if level.count:
                message = level.take()
                if message is not None:
                    self._add_up()
                    return message
                if level.count:
                    # The disk cannot be read. A lower level must not take its turn.
                    break
        self._add_up()
        return None

    def remove(self, priority: i64, sequence: i64, place: i64 = -1) -> Optional[Message]:  # noqa: UP045
        message = self.level(priority).remove(priority, sequence, place)
        self._add_up()
        return message

    def take_expired(self, now: i64, limit: i64) -> list[Message]:
        """Remove and return the expired messages, the highest priority first, until the next one is not expired.

        :param now: the time in milliseconds since 1970.
        :param limit: the number of messages to remove at most.
        """
        expired: list[Message] = []
        for level in reversed(self.levels):
            if level.count:
                expired.extend(level.take_expired(now, limit - len(expired)))
                if level.count:
                    break
        self._add_up()
        return expired

    def next_expiry(self) -> i64:
        for level in reversed(self.levels):
            if level.count:
                return level.next_expiry()
        return 0

    def resident_totals(self) -> tuple[int, int]:
        figures = [level.resident_totals() for level in self.levels]
        return sum(count for count, _ in figures), sum(size for _, size in figures)

    def persistent_totals(self) -> tuple[int, int]:
        figures = [level.persistent_totals() for level in self.levels]
        return sum(count for count, _ in figures), sum(size for _, size in figures)

    def disk_reads_total(self) -> int:
        return sum(level.disk_reads_total() for level in self.levels)

    def memory_bytes(self) -> i64:
        total: i64 = 0
        for level in self.levels:
            total += level.memory_bytes()
        return total

    def set_lazy(self, lazy: bool) -> None:
        self.lazy = lazy
        for level in self.levels:
            level.set_lazy(lazy)

    def set_delta_keep(self, count: i64) -> None:
        for level in self.levels:
            level.set_delta_keep(count)

    def page_out(self, keep: i64, limit: i64) -> i64:
        """Page message contents out to disk until `keep` are left in memory, the lowest priority first.

        Then move messages whose content is on disk to the delta (those on disk only), where they take no memory. Return
        the number of messages that were paged out or moved, at most `limit`.
        """
        held: i64 = 0
        for level in self.levels:
            held += level.resident
        done: i64 = 0
        for level in self.levels:
            others: i64 = held - level.resident
            before: i64 = level.resident
            stays: i64 = keep - others if keep > others else 0
            done += level.page_out(stays, limit - done)
            held -= before - level.resident
            if done >= limit:
                break
        self._add_up()
        return done

    def has_pending_writes(self) -> bool:
        return any(level.paging_out for level in self.levels)

    def release_written(self) -> None:
        for level in self.levels:
            if level.paging_out:
                level.release_written()

    def restore_level(
        self, level: BackingQueue, first: i64, last: i64, count: i64, bodies: i64, excluded: dict[int, bool]
    ) -> None:
        level.restore(first, last, count, bodies, excluded)
        self._add_up()

    def take_all(self, discarded: DiscardedMessages) -> None:
        for level in self.levels:
            level.take_all(discarded)
        self._add_up()

    def message_objects(self) -> list[Message]:
        messages: list[Message] = []
        for level in reversed(self.levels):
            messages.extend(level.message_objects())
        return messages

    def clear(self) -> None:
        for level in self.levels:
            level.clear()
        self._add_up()

    def _add_up(self) -> None:
        """Recompute number and bytes of the messages as the sums over all priorities.

        The backing queues of the priorities change them on their own, for example when they discard a damaged message.
        """
        count: i64 = 0
        size: i64 = 0
        for level in self.levels:
            count += level.count
            size += level.bytes
        self.count = count
        self.bytes = size
