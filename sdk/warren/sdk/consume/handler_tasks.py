"""Tasks of the handlers of one queue: one for each delivery, in the order of the queue or of each key."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.job import Job
from warren.sdk.consume.keyed_ordering import KeyedOrdering
from warren.sdk.consume.settlement import Settlement
from warren.sdk.logger import log


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


class HandlerTasks:
    """Tasks that handle the deliveries of one queue.

    Each delivery is handled in a task of its own, with a copy of the context of the App's start: nothing that a handler
    leaves behind in its task or its context reaches another message.

    :param concurrency: largest number of deliveries that are handled at the same time.
    :param process: handles one delivery and returns its settlement; if it is
        cancelled because the App stops, the message goes back to the queue.
    :param give_up: called for a delivery whose handler has ended the task that handles it, for example because it
        cancelled its own task.
    :param key: ordering key of a delivery; deliveries with the same key are handled one at a time. None without ordering
        by key.
    :param settle: called with each handled delivery (a `Job`) and its settlement.
    :param statistics: object in which running and stale deliveries are counted.
    :param is_shutting_down: returns True while the subscription stops or the program
        ends; a delivery whose task is cancelled then goes back to the queue.
    :param context: context of which each handler gets a copy.
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
        context: Context,
    ) -> None:
        self._queue = queue
        self._concurrency = concurrency
        self._process = process
        self._give_up = give_up
        self._settle = settle
        self._statistics = statistics
        self._ready: deque[Job] = deque()
        """Deliveries that may be handled: they need not wait for another one with the same key."""
        self._ordering: KeyedOrdering[Job] | None = (
            None
            if key is None
            else KeyedOrdering(
                lambda job: key.of(job.delivery), lambda job, error: key.unusable(job.delivery, error)
            )
        )
        self._is_shutting_down = is_shutting_down
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._task_name = f"handler {queue}"
        self._running: dict[Job, asyncio.Task[None]] = {}
        """Deliveries that are being handled, with their tasks."""
        self._outlived: dict[str | None, list[Job]] = {}
        """Deliveries that are being handled since before the present channel was opened, by message id."""
        self._giving_up: set[asyncio.Task[None]] = set()
        """Tasks that settle deliveries whose handlers have ended their own tasks."""
        self._none_running = asyncio.Event()
        self._none_running.set()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Number of deliveries whose handling has not begun."""
        return len(self._ready) + (0 if self._ordering is None else len(self._ordering))

    def submit(self, job: Job) -> None:
        """Handle a delivery as soon as fewer than `concurrency` others are being handled, and no earlier one with the same
        key.
        """
        if self._ordering is None or self._ordering.admit(job):
            self._add_ready(job)

    def expect_again(self) -> None:
        """Prepare for the first deliveries on a new channel: those that are being handled now came on former ones."""
        self._outlived.clear()
        for job in self._running:
            self._outlived.setdefault(job.delivery.message_id, []).append(job)

    def adopt(self, job: Job) -> bool:
        """Let the handler of a message that is still running, although the channel of its delivery was lost, settle the
        delivery of the same message that has come now. Return False if there is none.
        """
        for running in self._outlived.get(job.delivery.message_id, ()):
            if running.orphaned and job.delivery.is_copy_of(running.delivery):
                running.channel, running.delivery_tag = job.channel, job.delivery_tag
                running.taken_over = True
                return True
        return False

    def handles_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a handler runs in this task."""
        return task in self._running.values()

    def give_up(self, job: Job, failure: Exception) -> None:
        """Settle a delivery that could not be submitted, because an error of the SDK came before its handler."""
        self._statistics.running += 1
        self._none_running.clear()
        self._settle_failed_soon(job, failure, was_submitted=False)

    def withdraw(self) -> list[Job]:
        """Remove and return all deliveries whose handling has not begun."""
        jobs = list(self._ready)
        self._ready.clear()
        if self._ordering is not None:
            behind = list(self._ordering.drain())
            for job in jobs:
                self._ordering.release(job)
            jobs += behind
        return jobs

    async def stop(self, grace: float) -> None:
        """Wait at most `grace` seconds for running handlers to finish, then cancel them. A pause before another attempt
        ends at once.
        """
        self._stopping = True
        for job, task in self._running.items():
            job.stopping = True
            if job.pausing:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._none_running.wait()
        tasks = {*self._running.values(), *self._giving_up}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add_ready(self, job: Job) -> None:
        if self._statistics.running < self._concurrency:
            self._begin(job)
        else:
            self._ready.append(job)

    def _begin(self, job: Job) -> None:
        """Start the task that handles a delivery."""
        statistics = self._statistics
        if not statistics.running:
            self._none_running.clear()
        statistics.running += 1
        task = asyncio.Task(
            self._handle(job), loop=self._loop, name=self._task_name, context=self._context.copy()
        )
        self._running[job] = task

    async def _handle(self, job: Job) -> None:
        settlement = Settlement.RELEASE
        failure: BaseException | None = None
        try:
            settlement = await self._process(job.delivery, job.delivery_tag)
        except SystemExit:
            # The handler's doing: the message counts as failed, so that the delivery limit applies to it.
            settlement = Settlement.REQUEUE
            _ignore_result(self._running[job])
            raise
        except KeyboardInterrupt:
            _ignore_result(self._running[job])
            raise
        except asyncio.CancelledError as error:
            if not self._stopping and not self._is_shutting_down():
                # The handler cancelled its own task. If the message were released, this would repeat for ever.
                failure = error
        except GeneratorExit as error:
            if _current_task() is not self._running[job]:
                # The event loop has ended without this task, and its coroutine is closed.
                raise
            failure = error
        except BaseException as error:
            # `process` handles failures; this one is a bug.
            failure = error
        finally:
            if failure is None:
                self._job_ended(job, settlement)
            else:
                self._settle_failed_soon(job, failure)

    def _settle_failed_soon(self, job: Job, failure: BaseException, *, was_submitted: bool = True) -> None:
        # In a task of its own: nothing can be awaited in one that is being cancelled.
        task = self._loop.create_task(
            self._settle_failed(job, failure, was_submitted), context=self._context.copy()
        )
        self._giving_up.add(task)
        task.add_done_callback(self._giving_up.discard)

    async def _settle_failed(self, job: Job, failure: BaseException, was_submitted: bool) -> None:
        """Settle a delivery whose handler has ended its task, or that reached no handler."""
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
        """Settle a delivery, and begin to handle the next one."""
        statistics = self._statistics
        statistics.running -= 1
        self._running.pop(job, None)
        if self._outlived:
            self._forget_outlived(job)
        self._settle(job, settlement)
        if self._ordering is not None and was_submitted:
            self._release_key(job)
        if not self._stopping:
            while self._ready and statistics.running < self._concurrency:
                following = self._ready.popleft()
                if following.channel.usable:
                    self._begin(following)
                else:
                    self._settle(following, Settlement.RELEASE)
                    if self._ordering is not None:
                        self._release_key(following)
        if not statistics.running:
            self._none_running.set()

    def _forget_outlived(self, job: Job) -> None:
        message_id = job.delivery.message_id
        jobs = [other for other in self._outlived.pop(message_id, ()) if other is not job]
        if jobs:
            self._outlived[message_id] = jobs

    def _release_key(self, job: Job) -> None:
        assert self._ordering is not None
        following = self._ordering.release(job)
        if following is not None:
            self._ready.append(following)


def _ignore_result(task: asyncio.Task[None]) -> None:
    """Keep asyncio from logging the error of a task, which the event loop raises already."""
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _current_task() -> asyncio.Task[Any] | None:
    """Return the task that runs now; None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
