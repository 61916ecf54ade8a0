"""Workers of one queue: run handlers concurrently, in the order of the queue or of each key."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.keyed_ordering import KeyedOrdering
from warren.sdk.consume.settlement import Settlement
from warren.sdk.logger import log
from warren.sdk.transport.data_channel import DataChannel


@dataclass(slots=True)
class ConsumerStatistics:
    """Counts of one queue's deliveries since the App started, and gauges of those that are not settled yet.

    :ivar stale: deliveries whose channel was lost before they were settled; the broker delivers them again.
    :ivar redelivered: deliveries that the broker may have delivered before.
    :ivar tripped: how often the circuit breaker opened.
    :ivar running: deliveries that are being handled now.
    :ivar waiting: prefetched deliveries that no handler has started.
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
    """A delivery, its delivery tag, and the channel that it arrived on and is settled on."""

    channel: DataChannel
    delivery_tag: int
    delivery: Delivery


class OrderingKey(NamedTuple):
    """Ordering by key: the two functions that it needs.

    :ivar of: returns the ordering key of a delivery.
    :ivar unusable: reports a delivery whose key has no hash or cannot be compared, with the error.
    """

    of: Callable[[Delivery], Hashable]
    unusable: Callable[[Delivery, BaseException], None]


Process = Callable[[Delivery, int], Awaitable[Settlement]]
"""Function that handles a delivery, given with its delivery tag, and returns the settlement."""
GiveUp = Callable[[Delivery, BaseException], Awaitable[Settlement]]
"""Function that settles a delivery whose handling ended with an error: it answers a request, or dead-letters another
message, and returns the settlement."""


class Workers:
    """Tasks that handle the deliveries of one queue.

    :param concurrency: number of tasks.
    :param process: handles one delivery and returns its settlement; if it is
        cancelled because the App stops, the message goes back to the queue.
    :param give_up: called for a delivery whose handler has ended the task that handles it, for example because it
        cancelled its own task.
    :param key: ordering key of a delivery; deliveries with the same key are handled one at a time. None without ordering
        by key.
    :param settle: called with each handled delivery (a `Job`) and its settlement.
    :param statistics: object in which running and stale deliveries are counted.
    :param is_shutting_down: returns True while the subscription stops or the program
        ends; a worker that is cancelled then is not replaced.
    """

    def __init__(
        self,
        queue: str,
        concurrency: int,
        process: Process,
        give_up: GiveUp,
        key: OrderingKey | None,
        settle: Callable[[Job, Settlement], None],
        statistics: ConsumerStatistics,
        is_shutting_down: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._concurrency = concurrency
        self._process = process
        self._give_up = give_up
        self._settle = settle
        self._statistics = statistics
        self._ready: deque[Job] = deque()
        """Deliveries that a free worker may handle: they need not wait for another one with the same key."""
        self._ordering: KeyedOrdering[Job] | None = (
            None
            if key is None
            else KeyedOrdering(
                lambda job: key.of(job.delivery), lambda job, error: key.unusable(job.delivery, error)
            )
        )
        self._idle_workers: deque[asyncio.Future[None]] = deque()
        """A future for each worker that waits for a job."""
        self._is_shutting_down = is_shutting_down
        self._tasks: set[asyncio.Task[None]] = set()
        self._giving_up: set[asyncio.Task[None]] = set()
        """Tasks that settle deliveries whose handlers have ended their workers."""
        self._none_running = asyncio.Event()
        self._none_running.set()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Number of deliveries that no worker has started to handle."""
        return len(self._ready) + (0 if self._ordering is None else len(self._ordering))

    def start(self) -> None:
        for _ in range(self._concurrency):
            self._start_worker()

    def submit(self, job: Job) -> None:
        """Handle a delivery as soon as a worker is free and no earlier delivery with the same key is being handled."""
        if self._ordering is None or self._ordering.admit(job):
            self._add_ready(job)

    def give_up(self, job: Job, failure: Exception) -> None:
        """Settle a delivery that could not be submitted, because an error of the SDK came before its handler."""
        self._statistics.running += 1
        self._none_running.clear()
        self._settle_failed_soon(job, failure, was_submitted=False)

    def withdraw(self) -> list[Job]:
        """Remove and return all deliveries that no worker has started to handle."""
        jobs = list(self._ready)
        self._ready.clear()
        if self._ordering is not None:
            behind = list(self._ordering.drain())
            for job in jobs:
                self._ordering.release(job)
            jobs += behind
        return jobs

    async def stop(self, grace: float) -> None:
        """Wait at most `grace` seconds for running handlers to finish, then cancel the workers."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._none_running.wait()
        tasks = self._tasks | self._giving_up
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_worker(self) -> None:
        task = asyncio.create_task(self._work(), name=f"worker {self._queue}")
        self._tasks.add(task)
        task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        """Start another worker in place of one that ended although the subscription is not stopping.

        A handler can cause that, for example if it cancels its own task.
        """
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._stopping and not self._is_shutting_down():
            self._start_worker()
            log.error("event=worker.replaced queue=%s", self._queue, exc_info=error)

    def _add_ready(self, job: Job) -> None:
        self._ready.append(job)
        while self._idle_workers:
            worker = self._idle_workers.popleft()
            if not worker.done():
                worker.set_result(None)
                break

    async def _next(self) -> Job:
        while not self._ready:
            idle = asyncio.get_running_loop().create_future()
            self._idle_workers.append(idle)
            await idle
        return self._ready.popleft()

    async def _work(self) -> None:
        statistics = self._statistics
        task = asyncio.current_task()
        assert task is not None
        # `cancelling`: a handler may swallow the cancellation of its task. The worker ends nevertheless: a cancellation that
        # stays pending would strike the next message.
        while not self._stopping and not task.cancelling():
            job = await self._next()
            if not job.channel.usable:
                self._settle(job, Settlement.RELEASE)
                self._start_next_of_key(job)
                continue
            statistics.running += 1
            if statistics.running == 1:
                self._none_running.clear()
            settlement = Settlement.RELEASE
            failure: BaseException | None = None
            try:
                settlement = await self._process(job.delivery, job.delivery_tag)
            except SystemExit:
                # The handler's doing: the message counts as failed, so that the delivery limit applies to it.
                settlement = Settlement.REQUEUE
                raise
            except KeyboardInterrupt:
                raise
            except GeneratorExit as error:
                if _current_task() is not task:
                    # The event loop has ended without this task, and its coroutine is closed.
                    raise
                failure = error
                continue
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    # `process` handles failures; any other error must not cost the queue its worker.
                    failure = error
                    continue
                if not self._stopping and not self._is_shutting_down():
                    # The handler cancelled its own task. If the message were released, this would repeat for ever.
                    failure = error
                raise
            finally:
                if failure is None:
                    self._job_ended(job, settlement)
                else:
                    self._settle_failed_soon(job, failure)

    def _settle_failed_soon(self, job: Job, failure: BaseException, *, was_submitted: bool = True) -> None:
        # In a task of its own: nothing can be awaited in one that is being cancelled.
        task = asyncio.create_task(self._settle_failed(job, failure, was_submitted))
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    async def _settle_failed(self, job: Job, failure: BaseException, was_submitted: bool) -> None:
        """Settle a delivery whose handler has ended its worker, or that has reached no worker."""
        settlement = Settlement.RELEASE
        try:
            # An error of a log handler must not decide about the message.
            with contextlib.suppress(Exception):
                log.error(
                    "event=delivery.failed queue=%s message_id=%s",
                    self._queue, job.delivery.message_id, exc_info=failure,
                )  # fmt: skip
            settlement = await self._give_up(job.delivery, failure)
        finally:
            self._job_ended(job, settlement, was_submitted)

    def _job_ended(self, job: Job, settlement: Settlement, was_submitted: bool = True) -> None:
        statistics = self._statistics
        statistics.running -= 1
        if not statistics.running:
            self._none_running.set()
        self._settle(job, settlement)
        if self._ordering is not None and was_submitted:
            self._start_next_of_key(job)

    def _start_next_of_key(self, job: Job) -> None:
        if self._ordering is not None and (following := self._ordering.release(job)) is not None:
            self._add_ready(following)


def _current_task() -> asyncio.Task[Any] | None:
    """Return the task that runs now; None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
