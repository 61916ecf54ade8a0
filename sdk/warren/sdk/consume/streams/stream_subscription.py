"""Subscription of a stream reader: it reads from a position, keeps the position while it handles messages, and stores it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.settlement import OPERATIONS, Settlement
from warren.sdk.consume.streams.offset_tracker import OffsetTracker
from warren.sdk.consume.streams.reader_lease import CHECK_SECONDS, ReaderLease, StoredPosition
from warren.sdk.consume.streams.reader_options import ReaderOptions, offset_argument
from warren.sdk.consume.subscription import (
    CANCEL_SECONDS,
    CONSUMING_MODES,
    RESUME_SECONDS,
    Mode,
    Subscription,
)
from warren.sdk.consume.workers import Job, Process
from warren.sdk.durations import Duration
from warren.sdk.errors import TransportUnavailable, WarrenError
from warren.sdk.logger import log
from warren.sdk.protocols import Clock, Timer
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry
from warren.sdk.topology.queue import Queue
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session
from warren.sdk.transport.supervised_connection import SupervisedConnection

MOST_CHECKS: Final = 5
"""Number of checks after which a reader that was not chosen stands by, even if the broker reports one consumer only, as
RabbitMQ before 4.0 does for a queue with a single active consumer."""
RENEW_SECONDS: Final = 300.0
"""Seconds between two renewals of a lease; RabbitMQ closes a channel with a message that is unacknowledged for longer than
its `consumer_timeout`, by default 30 minutes."""


class StreamSubscription(Subscription):
    """Consumer of a stream: `app.subscriptions["orders.billing"]`, by the names of the stream and the reader.

    With `resume`, one process at a time is the active reader; the others stand by. A paused reader stays the active one.

    :param lease_link: connection on which the lease is held and the position is stored; not the one that consumes, because
        a broker in need of memory or disk space blocks connections that publish.
    :param clock: the App's clock.
    """

    def __init__(
        self,
        link: SupervisedConnection,
        queue: Queue,
        *,
        reader: ReaderOptions,
        lease_link: SupervisedConnection,
        clock: Clock,
        prefetch: int,
        concurrency: int,
        process: Process,
        key: Callable[[Delivery], Hashable] | None,
        recover: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        telemetry: ConsumeTelemetry | None = None,
    ) -> None:
        super().__init__(
            link,
            queue,
            prefetch=prefetch,
            concurrency=concurrency,
            process=self._handle,
            key=key,
            recover=recover,
            on_change=on_change,
            telemetry=telemetry,
        )
        self.reader: ReaderOptions = reader
        self._handler = process
        self._lease_link = lease_link
        self._clock = clock
        self._tracker = OffsetTracker()
        self._source: DataChannel | None = None
        """Channel of the present consumer; deliveries on others are ignored."""
        self._since: datetime | None = None
        """Time from which the reader reads while no message has been delivered to it."""
        self._expected: int | None = None
        """Offset of the first message after a start at a known position, until that is delivered."""
        self._lease: ReaderLease | None = None
        self._stands_by = False
        self._halted: WarrenError | None = None
        """The error before whose message the reader stopped, until it is resumed."""
        self._stored: int | None = None
        """The offset that is stored, or None."""
        self._handled_since_store = 0
        self._unacknowledged: list[tuple[int, int, int, DataChannel]] = []
        """Heap of the messages above the position that are to be acknowledged: offset, id of the channel, delivery
        tag, channel."""
        self._store_lock = asyncio.Lock()
        self._timers: dict[str, Timer] = {}
        self._background: set[asyncio.Task[None]] = set()

    @property
    def stands_by(self) -> bool:
        """True while another process is the active reader, and this one waits to take over."""
        return self._stands_by

    @property
    def position(self) -> int | None:
        """The lowest offset that this process has not handled; None if no message was delivered to it yet."""
        return self._tracker.position

    @property
    def in_desired_state(self) -> bool:
        return self._stands_by or super().in_desired_state

    async def resume(self, timeout: Duration = RESUME_SECONDS) -> None:
        """Read again after `pause`. Return when the broker has accepted the consumer, or this process stands by."""
        self.error = self._halted = None
        await super().resume(timeout)

    async def cancel(self) -> None:
        """Stop reading for the rest of the App's run; another process may become the active reader."""
        await super().cancel()
        await self._store_finally()
        self._release_lease()

    async def stop(self, grace: float) -> None:
        await super().stop(grace)
        await self._store_finally()
        self._release_lease()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def halt(self, delivery: Delivery, error: BaseException) -> None:
        """Stop before a message that cannot be handled (`on_error="stop"`); `resume` tries it again."""
        self.error = self._halted = WarrenError(
            f"the reader {self.reader.name!r} stopped before offset {delivery.offset}: {type(error).__name__}: {error}"
        )
        if not self._stopping and self._mode in CONSUMING_MODES:
            self._set_mode(Mode.PAUSED)

    # The lease

    async def _consume(self, session: Session) -> asyncio.Future[None] | None:
        lease = None
        if self.reader.resume:
            try:
                lease = await self._take_lease()
            except WarrenError as error:
                self.error = error
                self._notify()
                raise
            if lease is None:
                return None
            session = await self._link.wait_up()
        ended = await super()._consume(session)
        if self._halted is not None:
            # A message that arrived with `basic.consume-ok` may have failed already.
            self.error = self._halted
            self._notify()
        if ended is not None and lease is not None:
            lease.ended.add_done_callback(partial(_end, ended))
        return ended

    async def _take_lease(self) -> ReaderLease | None:
        """Return the lease, which this process may have already, when the broker has granted it; None if the
        subscription was paused, tripped or cancelled meanwhile.

        :raises WarrenError: if the connection is lost.
        """
        if self._mode not in CONSUMING_MODES:
            return None
        if self._lease is not None and not self._lease.ended.done():
            return self._lease
        lease = await ReaderLease.open(await self._lease_link.wait_up(), self.reader.position_queue.name)
        acquiring = asyncio.ensure_future(lease.acquire())
        checks = 0
        granted = False
        try:
            while not acquiring.done():
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                wait = None if self._stands_by else CHECK_SECONDS
                await asyncio.wait((acquiring, changed), timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if self._mode not in CONSUMING_MODES:
                    return None
                if acquiring.done() or self._stands_by:
                    continue
                checks += 1
                if await lease.is_taken() or (checks >= MOST_CHECKS and not lease.chosen):
                    self._stands_by = True
                    log.info("event=stream_reader.stood_by reader=%s", self.reader.name)
                    self._notify()
            await acquiring
            granted = True
        finally:
            self._stands_by = False
            if not granted:
                acquiring.cancel()
                await asyncio.gather(acquiring, return_exceptions=True)
                lease.release()
        self._became_active(lease)
        return lease

    def _became_active(self, lease: ReaderLease) -> None:
        self._lease = lease
        stored = lease.position
        self._stored = stored.offset
        if stored.offset is not None:
            self._tracker.begin(stored.offset)
        if self._since is None:
            self._since = stored.since
        log.info(
            "event=stream_reader.became_active reader=%s offset=%s", self.reader.name, self._tracker.position
        )
        self._set_timer("renew", RENEW_SECONDS, self._renew)

    def _release_lease(self) -> None:
        lease, self._lease = self._lease, None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if lease is not None:
            lease.release()

    # The consumer

    async def _start_consumer(self, channel: DataChannel) -> None:
        position = self._tracker.position
        since = self._since
        if position is None and since is None and self.reader.offset == "next":
            # If the connection is lost before the first message arrives, those that follow meanwhile must not be missed.
            self._since = datetime.fromtimestamp(int(self._clock.now()), UTC)
        elif position is None and since is None and isinstance(self.reader.offset, timedelta):
            since = self._since = datetime.fromtimestamp(
                int(self._clock.now() - self.reader.offset.total_seconds()), UTC
            )
        start = position if position is not None else since if since is not None else self.reader.offset
        arguments: dict[str, Any] = {
            "x-stream-offset": offset_argument(start, self._clock.now()),
            **self.reader.filter_arguments(),
        }
        if self._lease is not None and self._stored is None and self._lease.position.since != self._since:
            await self._lease.store(StoredPosition(since=self._since))
        self._expected = position
        self._source = channel
        prefetch = 1 if self._mode is Mode.TRIAL else self._prefetch
        with translate_errors(f"cannot read stream {self.queue.name!r}"):
            async with asyncio.timeout(CANCEL_SECONDS * 2):
                self._tag = await channel.consume(
                    self.queue.name, prefetch=prefetch, stream=True, arguments=arguments
                )

    def _consumer_lost(self, ended: asyncio.Future[None]) -> WarrenError:
        self._source = None
        self._unacknowledged.clear()
        for job in self._workers.withdraw():
            self._tracker.release(_offset(job))
        lost = self._lease
        if lost is not None and lost.ended.done():
            self._release_lease()
        return super()._consumer_lost(ended)

    def _withdraw(self) -> None:
        self._source = None
        super()._withdraw()

    def _read_again(self, channel: DataChannel) -> None:
        """Let the supervisor consume again, from the lowest offset that is not handled.

        :param channel: channel of the message that was not handled; a later consumer may have passed over the message.
        """
        source, self._source = self._source, None
        channel.close_in_background()
        if source is not None and source is not channel:
            source.close_in_background()

    # Deliveries

    def _deliver(self, channel: DataChannel, method: bytes, header: bytes, body: bytes) -> None:
        if channel is not self._source:
            return
        tag, delivery = Delivery.from_frames(method, header, body, self.queue.name)
        offset = delivery.offset
        if offset is None:
            error = TransportUnavailable(
                f"a message of stream {self.queue.name!r} has no offset: is it a stream?"
            )
            self.halt(delivery, error)
            return
        self.statistics.delivered += 1
        expected, self._expected = self._expected, None
        if expected is not None and offset > expected and not self.reader.filter:
            log.warning(
                "event=stream_reader.messages_missed reader=%s offset=%s first=%s",
                self.reader.name, expected, offset,
            )  # fmt: skip
        self._tracker.pass_over(offset)
        position = self._tracker.position
        if position is not None and offset < position:
            # RabbitMQ may begin with the chunk in which a position lies.
            channel.acknowledge(tag)
        elif not self._tracker.start(offset):
            if self._mode is Mode.TRIAL:
                # Its one message must be one that can be handled now.
                channel.acknowledge(tag)
            else:
                self._acknowledge_in_order(offset, channel, tag)
        elif not self.reader.accepts(delivery.headers):
            self._tracker.handled(offset)
            self._acknowledge_in_order(offset, channel, tag)
            self._store_soon()
        else:
            self._workers.submit(Job(channel, tag, delivery))

    async def _handle(self, delivery: Delivery, delivery_tag: int) -> Settlement:
        """Handle a message, after the position was stored if that is due; return the settlement."""
        if self.reader.resume:
            try:
                await self._store_if_due()
            except WarrenError:
                # The lease is lost: another process may be the active reader now.
                return Settlement.RELEASE
        return await self._handler(delivery, delivery_tag)

    def _job_ended(self, job: Job, settlement: Settlement) -> None:
        super()._job_ended(job, settlement)
        if settlement is not Settlement.ACK and self._mode in CONSUMING_MODES and not self._stopping:
            self._read_again(job.channel)

    def _settle(self, job: Job, settlement: Settlement) -> None:
        """Acknowledge a handled message, whether its channel is open or not; a stream takes no message back."""
        offset = _offset(job)
        if settlement is not Settlement.ACK:
            self._tracker.release(offset)
            if not job.channel.usable:
                self.statistics.stale += 1
            return
        self._tracker.handled(offset)
        self._handled_since_store += 1
        self._store_soon()
        if not job.channel.usable:
            self.statistics.stale += 1
        elif self._telemetry is None:
            self._acknowledge(job)
        else:
            self._telemetry.settled(
                job.delivery, job.delivery_tag, OPERATIONS[settlement], lambda: self._acknowledge(job)
            )

    def _acknowledge(self, job: Job) -> None:
        self._acknowledge_in_order(_offset(job), job.channel, job.delivery_tag)
        self.statistics.acknowledged += 1

    def _acknowledge_in_order(self, offset: int, channel: DataChannel, tag: int) -> None:
        """Acknowledge a message, and those that waited for it, when all messages before it are handled: the prefetch limit
        then bounds how far a reader goes ahead of its position, and so how many messages are handled again after a crash.
        """
        waiting = self._unacknowledged
        heapq.heappush(waiting, (offset, id(channel), tag, channel))
        position = self._tracker.position
        while waiting and (position is None or waiting[0][0] < position):
            _, _, tag, channel = heapq.heappop(waiting)
            if channel.usable:
                channel.acknowledge(tag)

    # Storing the position

    async def _store_if_due(self) -> None:
        """Store the position if `store_every` messages are handled, or if none is stored: a reader without a stored
        position would begin elsewhere after a crash.

        :raises WarrenError: if the lease is lost.
        """
        lease = self._lease
        if lease is None or lease.ended.done():
            raise TransportUnavailable(f"the reader {self.reader.name!r} is not the active one")
        if self._stored is None or self._handled_since_store >= self.reader.store_every:
            await self._store(lease)

    async def _store(self, lease: ReaderLease) -> None:
        async with self._store_lock:
            position = self._tracker.position
            if position is None or position == self._stored:
                return
            handled = self._handled_since_store
            await lease.store(replace(lease.position, offset=position, since=None))
            self._stored = position
            self._handled_since_store -= handled

    async def _store_finally(self) -> None:
        lease = self._lease
        if lease is None or lease.ended.done():
            return
        with contextlib.suppress(TimeoutError, WarrenError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._store(lease)

    def _store_soon(self) -> None:
        if self._lease is not None and "store" not in self._timers:
            self._set_timer("store", self.reader.store_within.total_seconds(), self._store)

    async def _renew(self, lease: ReaderLease) -> None:
        await lease.renew()
        if lease is self._lease:
            self._set_timer("renew", RENEW_SECONDS, self._renew)

    def _set_timer(self, name: str, seconds: float, action: Callable[[ReaderLease], Awaitable[None]]) -> None:
        def due() -> None:
            self._timers.pop(name, None)
            if (lease := self._lease) is not None:
                task = asyncio.ensure_future(self._in_background(action, lease))
                self._background.add(task)
                task.add_done_callback(self._background.discard)

        self._timers[name] = self._clock.call_at(self._clock.now() + seconds, due)

    async def _in_background(
        self, action: Callable[[ReaderLease], Awaitable[None]], lease: ReaderLease
    ) -> None:
        try:
            await action(lease)
        except WarrenError as error:
            # The lease is lost; the supervisor asks for it again.
            log.debug("event=stream_reader.store_failed reader=%s error=%s", self.reader.name, error)


def _offset(job: Job) -> int:
    offset = job.delivery.offset
    assert offset is not None
    return offset


def _end(ended: asyncio.Future[None], cause: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
