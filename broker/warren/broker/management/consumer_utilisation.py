"""Consumer utilisation: fraction of the time in which a queue could deliver a message to a consumer immediately.

It is 1.0 if some consumer could always take a message, and 0 if none ever could or there is none. It is sampled once a
second, because an exact value would need two clock readings for each message. https://www.rabbitmq.com/docs/consumers#capacity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from warren.broker.management.time_slices import run_in_slices

if TYPE_CHECKING:
    from warren.broker.connection.broker_node import BrokerNode
    from warren.broker.model.queue.queue import Queue

logger = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two samples of all queues that have consumers."""
STEP: Final = 64
"""Consumers whose queues are sampled in one step."""
WEIGHT: Final = 0.2
"""Weight of the newest sample in the moving average: after five seconds it shows two thirds of a change."""


class ConsumerUtilisation:
    """Moving average of the consumer utilisation of each queue of a broker, sampled once a second."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._averages: dict[Queue, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take samples."""
        self._task = self._node.loop.create_task(self._run(), name="warren-consumer-utilisation")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await run_in_slices(self.sample_in_steps())
            except Exception:
                logger.exception("event=statistics.sample_failed")

    def of(self, queue: Queue) -> float | int:
        """Return the utilisation of a queue, from 0 to 1.

        Before the first sample of the queue, it is 1 if a consumer could take a message now, else 0.
        """
        if not queue.consumers:
            return 0
        average = self._averages.get(queue)
        return round(_current(queue) if average is None else average, 6)

    def sample_in_steps(self) -> Generator[None, None, None]:
        """Take one sample of all queues that have consumers; yields after every STEP consumers, and after each channel."""
        averages: dict[Queue, float] = {}
        for connection in list(self._node.connections):
            for channel in list(connection.channels.values()):
                for index, consumer in enumerate(list(channel.subscriptions.values())):
                    queue = consumer.queue
                    if queue not in averages:
                        now = _current(queue)
                        before = self._averages.get(queue, now)
                        averages[queue] = before + WEIGHT * (now - before)
                    if index % STEP == STEP - 1:
                        yield
                yield
        self._averages = averages


def _current(queue: Queue) -> float:
    return 0.0 if queue.ready_consumers.first is None else 1.0
