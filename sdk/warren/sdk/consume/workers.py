"""Workers of one queue: so many deliveries at a time, in the order of the queue, or of each key."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.keyed_ordering import KeyedOrdering
from warren.sdk.logger import log
from warren.sdk.transport.data_channel import DataChannel


class Settlement(Enum):
    """How a delivery ends."""

    ACK = "ack"
    REQUEUE = "requeue"
    """By the handler's own choice: this counts as a failed delivery."""
    RELEASE = "release"
    """Not handled, or not to its end: nobody's fault."""
    REJECT = "reject"


OPERATIONS: Final = {
    Settlement.ACK: "ack",
    Settlement.REQUEUE: "reject",
    Settlement.RELEASE: "nack",
    Settlement.REJECT: "reject",
}
"""The AMQP method that each is."""


@dataclass(slots=True)
class ConsumerStatistics:
    """Counts since the App started; `running` and `waiting` are handlers and prefetched deliveries now.

    `tripped` counts how often its circuit breaker opened, `stale` deliveries of a channel that was lost before they were
    settled: the broker delivers them again. `redelivered` are those that it may have delivered before.
    """

    delivered: int = 0
    acknowledged: int = 0
    requeued: int = 0
    rejected: int = 0
    stale: int = 0
    redelivered: int = 0
    tripped: int = 0
    running: int = 0
    waiting: int = 0


class Job(NamedTuple):
    """A delivery and the channel that it can be settled on."""

    channel: DataChannel
    delivery_tag: int
    delivery: Delivery


Process = Callable[[Delivery, int], Awaitable[Settlement]]


class Workers:
    """Tasks that take deliveries, work on them, and say how they ended.

    :param process: does the work of one delivery; its cancellation returns it.
    :param key: deliveries of one key are worked on one at a time, in their order.
    :param end: is told how each ended.
    :param statistics: where running and stale ones are counted.
    :param over: whether a cancellation comes from outside, because the whole program ends.
    """

    def __init__(
        self,
        queue: str,
        concurrency: int,
        process: Process,
        key: Callable[[Delivery], Hashable] | None,
        end: Callable[[Job, Settlement], None],
        statistics: ConsumerStatistics,
        over: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._concurrency = concurrency
        self._process = process
        self._end = end
        self._statistics = statistics
        self._jobs: deque[Job] = deque()
        self._lanes: KeyedOrdering[Job] | None = (
            None if key is None else KeyedOrdering(lambda job: key(job.delivery))
        )
        self._parked: deque[asyncio.Future[None]] = deque()
        """Workers that have nothing to do."""
        self._over = over
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """How many have not started."""
        return len(self._jobs) + (0 if self._lanes is None else len(self._lanes))

    def start(self) -> None:
        for _ in range(self._concurrency):
            self._hire()

    def take(self, job: Job) -> None:
        if self._lanes is None or self._lanes.admit(job):
            self._ready(job)

    def withdraw(self) -> list[Job]:
        """Take out all that have not started."""
        jobs = list(self._jobs)
        self._jobs.clear()
        if self._lanes is not None:
            behind = list(self._lanes.drain())
            for job in jobs:
                self._lanes.release(job)
            jobs += behind
        return jobs

    async def stop(self, grace: float) -> None:
        """Wait until nothing runs, at most `grace` seconds, then cancel what does."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hire(self) -> None:
        task = asyncio.create_task(self._work(), name=f"worker {self._queue}")
        self._tasks.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        """Whatever a handler did to the task that it ran in, its queue has as many workers as before."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._stopping and not self._over():
            log.error("a worker ended, another takes its place: queue=%s", self._queue, exc_info=error)
            self._hire()

    def _ready(self, job: Job) -> None:
        self._jobs.append(job)
        while self._parked:
            worker = self._parked.popleft()
            if not worker.done():
                worker.set_result(None)
                break

    async def _next(self) -> Job:
        while not self._jobs:
            parked = asyncio.get_running_loop().create_future()
            self._parked.append(parked)
            await parked
        return self._jobs.popleft()

    async def _work(self) -> None:
        # A handler may take its cancellation for something else: the worker ends with it nevertheless.
        statistics = self._statistics
        task = asyncio.current_task()
        assert task is not None
        # A cancellation that a handler left behind would otherwise strike the next message.
        while not self._stopping and not task.cancelling():
            job = await self._next()
            if not job.channel.usable:
                statistics.stale += 1
                self._follow(job)
                continue
            statistics.running += 1
            if statistics.running == 1:
                self._idle.clear()
            settlement = Settlement.RELEASE
            try:
                settlement = await self._process(job.delivery, job.delivery_tag)
            except asyncio.CancelledError:
                if not self._stopping and not self._over():
                    # The handler has cancelled its own task: again and again, if the message came back.
                    log.exception(
                        "delivery failed: queue=%s message_id=%s", self._queue, job.delivery.message_id
                    )
                    settlement = Settlement.REJECT
                raise
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException:
                # Failures end in `process`; whatever is left must not cost the queue its worker.
                log.exception("delivery failed: queue=%s message_id=%s", self._queue, job.delivery.message_id)
                settlement = Settlement.REJECT
            finally:
                statistics.running -= 1
                if not statistics.running:
                    self._idle.set()
                self._end(job, settlement)
                if self._lanes is not None:
                    self._follow(job)

    def _follow(self, job: Job) -> None:
        """The next of the same key, if there is one."""
        if self._lanes is not None and (following := self._lanes.release(job)) is not None:
            self._ready(following)
