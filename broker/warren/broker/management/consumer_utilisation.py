"""How much of the time a queue's consumers could take a message at once: sampled, once a second.

Counting it exactly would take the time twice a message. 1.0 is always (they are as fast as their queue), 0 never, or no
consumer at all. Source of the term: https://www.rabbitmq.com/docs/consumers#capacity.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warren.broker.connection.node import Node
    from warren.broker.model.queue.queue import Queue

INTERVAL: Final = 1.0
"""Seconds between two samples."""
WEIGHT: Final = 0.2
"""What the newest sample counts: a change shows by two thirds after five seconds."""


class Utilisation:
    """The moving averages of one broker's queues. Costs a look at each queue a second."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._averages: dict[Queue, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._node.loop.call_later(INTERVAL, self._sample)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def of(self, queue: Queue) -> float | int:
        """Between 0 and 1; a queue that has just got its first consumer has what stands now."""
        if not queue.consumers:
            return 0
        average = self._averages.get(queue)
        return round(_now(queue) if average is None else average, 6)

    def _sample(self) -> None:
        averages: dict[Queue, float] = {}
        for topology in self._node.vhosts.values():
            for queue in topology.vhost.queues.values():
                if queue.scheduler.consumers:
                    now = _now(queue)
                    before = self._averages.get(queue, now)
                    averages[queue] = before + WEIGHT * (now - before)
        self._averages = averages
        self.start()


def _now(queue: Queue) -> float:
    return 1.0 if queue.ready_consumers else 0.0
