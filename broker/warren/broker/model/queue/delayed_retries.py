"""Delayed retries: messages that come back wait before they are ready again, longer each time.

For min(x-delayed-retry-min * returns, x-delayed-retry-max) milliseconds, as in RabbitMQ 4.3's quorum queues. Here every type
of queue can have them. `failed` are those whose channel or connection has ended, `returned` those that a client gave back.
After a restart of the broker the wait begins anew.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warren.broker.model.clock import Timer
    from warren.broker.model.message import Message
    from warren.broker.model.queue.queue import Queue

SLICE: Final = 500
"""How many become ready in one go before the loop gets its turn."""


class DelayedRetries:
    """The messages of one queue that wait."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: list[tuple[float, int, Message]] = []
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def applies(self, failed: bool) -> bool:
        """Whether a message waits that comes back in this way."""
        which = self._queue.arguments.delayed_retry
        return which == "all" or which == ("failed" if failed else "returned")

    def add(self, message: Message) -> None:
        """Have a message wait. If it dies before, it is looked at then."""
        arguments = self._queue.arguments
        delay = min(
            arguments.delayed_retry_min * max(1, int(message.delivery_count)), arguments.delayed_retry_max
        )
        due = self._queue.vhost.clock.now() + delay / 1000
        if message.expires:
            due = min(due, message.expires / 1000)
        heapq.heappush(self._waiting, (due, int(message.sequence), message))
        self._schedule()

    def stop(self) -> None:
        """The broker stops, or the queue is deleted: none becomes ready any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = self._queue.vhost.clock.call_at(self._waiting[0][0], self._release_due)

    def _release_due(self) -> None:
        self._timer = None
        queue = self._queue
        now = queue.vhost.clock.now() + 1e-6
        for _ in range(SLICE):
            if not self._waiting or self._waiting[0][0] > now:
                break
            queue.reinsert(heapq.heappop(self._waiting)[2])
        self._schedule()
        queue.after_requeue()
