"""Subscriptions: one queue, one channel, a prefetch, workers; acknowledged after the work, resumed after any loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NamedTuple

from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from warren.sdk.connection import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, STABLE_SECONDS, Link, cancel
from warren.sdk.data_channel import DataChannel
from warren.sdk.delivery import Delivery
from warren.sdk.errors import TransportUnavailable, WarrenError
from warren.sdk.topology import Queue
from warren.sdk.transport import Session, translate, translated

log: logging.Logger = logging.getLogger("warren.sdk")

CANCEL_SECONDS = 5.0


class Settlement(Enum):
    """How a delivery ends."""

    ACK = "ack"
    REQUEUE = "requeue"
    """By the handler's own choice: this counts as a failed delivery."""
    RETURN = "return"
    """Not handled, or not to its end: nobody's fault."""
    REJECT = "reject"


@dataclass(slots=True)
class ConsumerStatistics:
    """Counts since the App started; `running` and `waiting` are handlers and prefetched deliveries now.

    `stale` counts deliveries of a channel that was lost before they were settled: the broker delivers them again.
    """

    delivered: int = 0
    acknowledged: int = 0
    requeued: int = 0
    rejected: int = 0
    stale: int = 0
    running: int = 0
    waiting: int = 0


class Job(NamedTuple):
    """A delivery and the channel that it can be settled on."""

    channel: DataChannel
    delivery_tag: int
    delivery: Delivery


Process = Callable[[Delivery, int], Awaitable[Settlement]]


class Subscription:
    """A consumer that stays.

    :param process: does the work of one delivery and says how it ends; its cancellation requeues.
    :param recover: brings the queue back when it is gone (declares the topology).
    :param no_ack: the broker forgets a message when it is sent; only for replies.
    """

    def __init__(
        self,
        link: Link,
        queue: Queue,
        *,
        prefetch: int,
        concurrency: int,
        process: Process,
        recover: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self.queue = queue
        self._link = link
        self._prefetch = prefetch
        self._concurrency = concurrency
        self._process = process
        self._recover = recover
        self._on_change = on_change
        self._jobs: deque[Job] = deque()
        self._parked: deque[asyncio.Future[None]] = deque()
        """Workers that have nothing to do."""
        self._channel: DataChannel | None = None
        self._tag = ""
        self._supervisor: asyncio.Task[None] | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self.error: WarrenError | None = None
        self.statistics: ConsumerStatistics = ConsumerStatistics()

    @property
    def active(self) -> bool:
        """The broker has confirmed the consumer, and its channel lives."""
        return self._channel is not None and self._channel.usable

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name=f"subscription {self.queue.name}")
        self._workers = [
            asyncio.create_task(self._work(), name=f"worker {self.queue.name}")
            for _ in range(self._concurrency)
        ]

    async def stop(self, grace: float) -> None:
        """Cancel the consumer, requeue what has not started, let what has started end within `grace` seconds.

        What is still running then is cancelled and requeued.
        """
        self._stopping = True
        if self._supervisor is not None:
            await cancel(self._supervisor)
        channel = self._channel
        if channel is not None and channel.usable:
            with contextlib.suppress(WarrenError), translated("cannot cancel the consumer"):
                await channel.methods.basic_cancel(self._tag, timeout=CANCEL_SECONDS)
        while self._jobs:
            self._settle(self._jobs.popleft(), Settlement.RETURN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._idle.wait()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if channel is not None and channel.usable:
            with contextlib.suppress(WarrenError), translated("cannot close the channel"):
                await channel.close(timeout=CANCEL_SECONDS)
        self._channel = None

    async def _supervise(self) -> None:
        while True:
            async for attempt in AsyncRetrying(
                wait=wait_random_exponential(multiplier=FIRST_RETRY_SECONDS, max=LONGEST_RETRY_SECONDS),
                retry=retry_if_exception_type(WarrenError),
                reraise=True,
            ):
                with attempt:
                    session = await self._link.wait_up()
                    if attempt.retry_state.attempt_number > 1:
                        await self._recover()
                    ended = await self._consume(session)
                    done, _ = await asyncio.wait((ended,), timeout=STABLE_SECONDS)
                    if done:
                        raise self._lost(ended)
            await asyncio.wait((ended,))
            self._lost(ended)

    async def _consume(self, session: Session) -> asyncio.Future[None]:
        """Consume on a new channel; the future is done when the channel or the consumer has ended."""
        try:
            channel = await session.channel()
            channel.on_delivery = partial(self._deliver, channel)
            ended = asyncio.get_running_loop().create_future()
            channel.methods.on_consumer_cancel_callbacks.add(lambda frame: _set(ended))
            channel.ended.add_done_callback(lambda done: _set(ended))
            with translated(f"cannot consume from queue {self.queue.name!r}"):
                async with asyncio.timeout(CANCEL_SECONDS * 2):
                    await channel.methods.basic_qos(prefetch_count=self._prefetch)
                    ok = await channel.methods.basic_consume(self.queue.name, _unused)
        except WarrenError as error:
            self.error = error
            self._on_change()
            raise
        self._tag = ok.consumer_tag or ""
        self._channel = channel
        self.error = None
        self._on_change()
        return ended

    def _lost(self, ended: asyncio.Future[None]) -> WarrenError:
        channel, self._channel = self._channel, None
        reason = "cancelled by the broker"
        cause = None if channel is None else channel.cause
        if cause is not None:
            reason = str(translate("channel closed", cause))
        elif channel is not None:
            task = asyncio.ensure_future(_close(channel))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        log.warning("consumer lost: queue=%s reason=%s", self.queue.name, reason)
        self.error = TransportUnavailable(f"the consumer of queue {self.queue.name!r} was lost: {reason}")
        self._on_change()
        return self.error

    def _deliver(self, channel: DataChannel, method: bytes, header: bytes, body: bytes) -> None:
        tag, delivery = Delivery.of_frames(method, header, body, self.queue.name)
        job = Job(channel, tag, delivery)
        self.statistics.delivered += 1
        if self._stopping:
            self._settle(job, Settlement.RETURN)
            return
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
        statistics = self.statistics
        while not self._stopping:
            job = await self._next()
            if not job.channel.usable:
                statistics.stale += 1
                continue
            statistics.running += 1
            if statistics.running == 1:
                self._idle.clear()
            settlement = Settlement.RETURN
            try:
                settlement = await self._process(job.delivery, job.delivery_tag)
            except (Exception, BaseExceptionGroup):
                # Failures end in `process`; whatever is left must not cost the queue its worker.
                log.exception(
                    "delivery failed: queue=%s message_id=%s", self.queue.name, job.delivery.message_id
                )
                settlement = Settlement.REJECT
            finally:
                statistics.running -= 1
                if not statistics.running:
                    self._idle.set()
                self._settle(job, settlement)

    def _settle(self, job: Job, settlement: Settlement) -> None:
        """Settle on the channel of the delivery; if that is gone, the broker has requeued the message already."""
        if not job.channel.usable:
            self.statistics.stale += 1
            return
        statistics = self.statistics
        if settlement is Settlement.ACK:
            job.channel.acknowledge(job.delivery_tag)
            statistics.acknowledged += 1
        elif settlement is Settlement.REJECT:
            job.channel.reject(job.delivery_tag)
            statistics.rejected += 1
        else:
            job.channel.requeue(job.delivery_tag, failed=settlement is Settlement.REQUEUE)
            statistics.requeued += 1

    def snapshot(self) -> ConsumerStatistics:
        self.statistics.waiting = len(self._jobs)
        return self.statistics


async def _unused(message: object) -> None:
    """aiormq wants a callback; the data channel has its own."""


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _close(channel: DataChannel) -> None:
    with translated("cannot close the channel"):
        await channel.close(timeout=CANCEL_SECONDS)
