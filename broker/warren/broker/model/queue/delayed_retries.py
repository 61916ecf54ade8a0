"""Delayed retries: requeued messages wait before they are ready again, longer with each requeue.

The delay is min(x-delayed-retry-min * delivery count, x-delayed-retry-max) milliseconds, as for quorum queues in
RabbitMQ 4.3. Here classic queues can have it, too. A message is `failed` if its channel or connection ended or
basic.reject requeued it, `returned` if basic.nack or basic.recover did. After a restart of the broker the delay begins
anew.
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warren.broker.model.clock import Timer
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue


class DelayedRetries:
    """Requeued messages of one queue that wait for their delay to end."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: list[tuple[float, int, Message]] = []
        self._timer: Timer | None = None
        self.body_bytes = 0
        """Bytes of the bodies of the waiting messages."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[tuple[float, int, Message]]:
        """Heap of the waiting messages: (end of the delay by the broker's clock, sequence number, message)."""
        return self._waiting

    def applies(self, failed: bool) -> bool:
        """Return True if the queue's x-delayed-retry-type covers this kind of requeue.

        :param failed: True if the channel has ended, or basic.reject requeued the message.
        """
        which = self._queue.arguments.delayed_retry
        return which == "all" or which == ("failed" if failed else "returned")

    def add(self, message: Message) -> None:
        """Let a requeued message wait for its delay, and put it back into the queue then.

        If the message expires earlier, it is put back at that time, so that the queue can expire it.
        """
        arguments = self._queue.arguments
        delay = min(
            arguments.delayed_retry_min * max(1, int(message.delivery_count)), arguments.delayed_retry_max
        )
        due = self._queue.vhost.clock.now() + delay / 1000
        if message.expires:
            due = min(due, message.expires / 1000)
        heapq.heappush(self._waiting, (due, int(message.sequence), message))
        self.body_bytes += int(message.body_size)
        self._schedule()

    def stop(self) -> None:
        """Stop the timer and forget all waiting messages, because the broker stops."""
        self.take_all()

    def take_all(self) -> list[tuple[float, int, Message]]:
        """Stop the timer, and remove and return all waiting messages, as entries of `waiting`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken, self._waiting, self.body_bytes = self._waiting, [], 0
        return taken

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = self._queue.vhost.clock.call_at(self._waiting[0][0], self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        self._queue.hold()
        self._queue.vhost.bulk_work.run(self._queue, self._release_slice, self._end_release)

    def _release_slice(self, end: float) -> bool:
        """Put messages whose delay has ended back into the queue until a time; return True if none is left.

        :param end: the time by `time.monotonic()`.
        """
        queue = self._queue
        now = queue.vhost.clock.now() + 1e-6
        while self._waiting and self._waiting[0][0] <= now:
            message = heapq.heappop(self._waiting)[2]
            self.body_bytes -= int(message.body_size)
            queue.reinsert(message)
            if time.monotonic() >= end:
                return False
        return True

    def _end_release(self) -> None:
        """Resume deliveries, because all messages that were due are back, or putting them back has failed."""
        queue = self._queue
        try:
            if not queue.deleted:
                self._schedule()
                queue.after_requeue()
        finally:
            queue.release()
