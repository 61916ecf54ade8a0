"""Subscriptions: one queue, one channel, a prefetch, workers; acknowledged after the work, resumed after any loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from pamqp import commands as spec
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from warren.sdk.codec import set_properties
from warren.sdk.connection import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, STABLE_SECONDS, Link, cancel
from warren.sdk.delivery import Delivery
from warren.sdk.errors import TransportUnavailable, WarrenError
from warren.sdk.topology import Queue
from warren.sdk.transport import Content, DataChannel, Session, translate, translated

log = logging.getLogger("warren.sdk")

CANCEL_SECONDS = 5.0


class Settlement(Enum):
    """How a delivery ends."""

    ACK = "ack"
    REQUEUE = "requeue"
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


@dataclass(slots=True)
class Job:
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
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._channel: DataChannel | None = None
        self._tag = ""
        self._supervisor: asyncio.Task[None] | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self.error: WarrenError | None = None
        self.statistics = ConsumerStatistics()

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
                await channel.basic_cancel(self._tag, timeout=CANCEL_SECONDS)
        while not self._jobs.empty():
            self._settle(self._jobs.get_nowait(), Settlement.REQUEUE)
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
            channel.on_delivery = lambda frame, content: self._deliver(channel, frame, content)
            ended = asyncio.get_running_loop().create_future()
            channel.on_consumer_cancel_callbacks.add(lambda frame: _set(ended))
            channel.closing.add_done_callback(lambda done: _set(ended))
            with translated(f"cannot consume from queue {self.queue.name!r}"):
                async with asyncio.timeout(CANCEL_SECONDS * 2):
                    await channel.basic_qos(prefetch_count=self._prefetch)
                    ok = await channel.basic_consume(self.queue.name, _unused)
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
        if channel is not None and channel.is_closed and (cause := channel.closing.exception()) is not None:
            reason = str(translate("channel closed", cause))
        elif channel is not None:
            task = asyncio.ensure_future(_close(channel))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        log.warning("consumer lost: queue=%s reason=%s", self.queue.name, reason)
        self.error = TransportUnavailable(f"the consumer of queue {self.queue.name!r} was lost: {reason}")
        self._on_change()
        return self.error

    def _deliver(self, channel: DataChannel, frame: spec.Basic.Deliver, content: Content) -> None:
        header, body = content
        delivery = Delivery(
            body=body,
            exchange=frame.exchange or "",
            routing_key=frame.routing_key or "",
            queue=self.queue.name,
            redelivered=bool(frame.redelivered),
            headers=header.properties.headers or {},
            properties=set_properties(header.properties),
        )
        job = Job(channel, frame.delivery_tag or 0, delivery)
        self.statistics.delivered += 1
        if self._stopping:
            self._settle(job, Settlement.REQUEUE)
        else:
            self._jobs.put_nowait(job)

    async def _work(self) -> None:
        # A handler may take its cancellation for something else: the worker ends with it nevertheless.
        while not self._stopping:
            job = await self._jobs.get()
            if not job.channel.usable:
                self.statistics.stale += 1
                continue
            self.statistics.running += 1
            self._idle.clear()
            settlement = Settlement.REQUEUE
            try:
                settlement = await self._process(job.delivery, job.delivery_tag)
            except (Exception, BaseExceptionGroup):
                # Failures end in `process`; whatever is left must not cost the queue its worker.
                log.exception(
                    "delivery failed: queue=%s message_id=%s", self.queue.name, job.delivery.message_id
                )
                settlement = Settlement.REJECT
            finally:
                self.statistics.running -= 1
                if not self.statistics.running:
                    self._idle.set()
                self._settle(job, settlement)

    def _settle(self, job: Job, settlement: Settlement) -> None:
        """Settle on the channel of the delivery; if that is gone, the broker has requeued the message already."""
        if not job.channel.usable:
            self.statistics.stale += 1
            return
        match settlement:
            case Settlement.ACK:
                job.channel.acknowledge(job.delivery_tag)
                self.statistics.acknowledged += 1
            case Settlement.REQUEUE:
                job.channel.reject(job.delivery_tag, requeue=True)
                self.statistics.requeued += 1
            case Settlement.REJECT:
                job.channel.reject(job.delivery_tag, requeue=False)
                self.statistics.rejected += 1

    def snapshot(self) -> ConsumerStatistics:
        self.statistics.waiting = self._jobs.qsize()
        return self.statistics


async def _unused(message: object) -> None:
    """aiormq wants a callback; `DataChannel` delivers to its own."""


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _close(channel: DataChannel) -> None:
    with translated("cannot close the channel"):
        await channel.close(timeout=CANCEL_SECONDS)
