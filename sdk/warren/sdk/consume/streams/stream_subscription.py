"""Subscription of a stream reader: it reads from a position, keeps the position while it handles messages, and stores it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.handler_tasks import GiveUp, OrderingKey, Process
from warren.sdk.consume.job import Job
from warren.sdk.consume.settlement import OPERATIONS, Settlement
from warren.sdk.consume.streams.last_chunk import read_last_chunk
from warren.sdk.consume.streams.offset_tracker import OffsetTracker
from warren.sdk.consume.streams.reader_lease import CHECK_SECONDS, ReaderLease, StoredPosition
from warren.sdk.consume.streams.reader_options import ReaderOptions, offset_argument
from warren.sdk.consume.streams.stream_mark import has_mark, mark_stream
from warren.sdk.consume.subscription import (
    CANCEL_SECONDS,
    CONSUMING_MODES,
    RESUME_SECONDS,
    Mode,
    Subscription,
)
from warren.sdk.durations import Duration
from warren.sdk.errors import StreamRecreated, TopologyMismatch, TransportUnavailable, WarrenError
from warren.sdk.exception_text import describe_exception
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
START_SECONDS: Final = 60.0
"""Longest time to check the stream, find the position and start the consumer; after that it is tried again."""


class StreamSubscription(Subscription):
    """Consumer of a stream: `app.subscriptions["orders.billing"]`, by the names of the stream and the reader.

    With `resume`, one process at a time is the active reader; the others stand by. A paused reader stays the active one.

    :param lease_link: connection on which the lease is held and the position is stored; not the one that consumes, because
        a broker in need of memory or disk space blocks connections that publish.
    :param clock: the App's clock.
    :param marks: True to mark the stream, so that one that was declared anew is noticed; False for an App that declares
        nothing.
    :param close_batches: called when the App stops, before it waits for running handlers.
    :param context: context of which each handler gets a copy.
    :param give_up: applies `on_error` to a message whose handler has ended the task that handles it.
    """

    def __init__(
        self,
        link: SupervisedConnection,
        queue: Queue,
        *,
        reader: ReaderOptions,
        lease_link: SupervisedConnection,
        clock: Clock,
        marks: bool,
        give_up: GiveUp,
        close_batches: Callable[[], None],
        prefetch: int,
        concurrency: int,
        process: Process,
        key: OrderingKey | None,
        recover: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        context: Context,
        telemetry: ConsumeTelemetry | None = None,
    ) -> None:
        super().__init__(
            link,
            queue,
            prefetch=prefetch,
            concurrency=concurrency,
            process=self._handle,
            give_up=give_up,
            close_batches=close_batches,
            key=key,
            recover=recover,
            on_change=on_change,
            context=context,
            telemetry=telemetry,
        )
        self.reader: ReaderOptions = reader
        self._handler = process
        self._lease_link = lease_link
        self._clock = clock
        self._marks = marks
        self._mark: str | None = None
        self._incarnation = 0
        """Number of times that the reader began again because its stream had been declared anew."""
        self._tracker = OffsetTracker()
        self._channels: WeakSet[DataChannel] = WeakSet()
        """Channels of consumers of the present stream; offsets of messages from others are those of a former stream."""
        self._source: DataChannel | None = None
        """Channel of the present consumer; deliveries on others are ignored."""
        self._starting: DataChannel | None = None
        """Channel of a consumer whose stream is not checked yet."""
        self._early: list[tuple[bytes, bytes, bytes]] = []
        """Deliveries on that channel."""
        self._since: datetime | None = None
        """Time from which the reader reads while its position is unknown."""
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
    def mark(self) -> str | None:
        """The exchange by which the reader knows its stream; None without `resume`, and before the reader is active."""
        return self._mark

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
        self._halt(
            WarrenError(
                f"the reader {self.reader.name!r} stopped before offset {delivery.offset}:"
                f" {describe_exception(error)}"
            )
        )

    def _halt(self, error: WarrenError) -> None:
        self.error = self._halted = error
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
            if self._mode not in CONSUMING_MODES:
                # Cancelled while `is_taken` waited for its answer: a lease that is kept now would never be released.
                return None
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
        if stored.mark is not None and stored.mark != self._mark:
            if self._mark is not None:
                # Another process has read a later stream meanwhile.
                self._forget_stream()
            self._mark = stored.mark
        self._incarnation = max(self._incarnation, stored.incarnation)
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
        with translate_errors(f"cannot read stream {self.queue.name!r}"):
            async with asyncio.timeout(START_SECONDS):
                if self.reader.resume and not await self._is_same_stream():
                    return
                await self._find_position()
                await self._store_start()
                try:
                    await self._start_reading(channel)
                except BaseException:
                    self._tag = ""
                    channel.close_in_background()
                    raise
                finally:
                    self._starting = None
                    self._early.clear()

    async def _start_reading(self, channel: DataChannel) -> None:
        """Start the consumer at the position. Its deliveries wait until the mark shows that the stream is still the same:
        a stream that is declared anew between the first check and the consumer would not be noticed otherwise.
        """
        position = self._tracker.position
        start = (
            position
            if position is not None
            else self._since
            if self._since is not None
            else self.reader.offset
        )
        arguments: dict[str, Any] = {
            "x-stream-offset": offset_argument(start, self._clock.now()),
            **self.reader.filter_arguments(),
        }
        self._expected = position
        checks = self.reader.resume and self._mark is not None
        if checks:
            self._starting = channel
        else:
            self._attach(channel)
        prefetch = 1 if self._mode is Mode.TRIAL else self._prefetch
        self._tag = await channel.consume(
            self.queue.name, prefetch=prefetch, stream=True, arguments=arguments
        )
        if not checks:
            return
        if self._mark is None or not await has_mark(await self._lease_link.wait_up(), self._mark):
            raise TransportUnavailable(f"stream {self.queue.name!r} was deleted while its consumer started")
        self._attach(channel)
        for early in self._early:
            self._deliver(channel, *early)

    def _attach(self, channel: DataChannel) -> None:
        self._source = channel
        self._channels.add(channel)

    async def _is_same_stream(self) -> bool:
        """Check that the stream is the one that the stored position belongs to, and mark it if it has no mark yet. Return
        False if it is another one and the reader has stopped for that.

        :raises WarrenError: if the connection or the lease is lost.
        """
        lease = self._active_lease()
        if not self._marks:
            return True
        session = await self._lease_link.wait_up()
        if self._mark is not None:
            if await has_mark(session, self._mark):
                return True
            position = self._tracker.position
            if position:
                # Below the position there may be messages that nobody has handled.
                action = self.reader.on_recreated
                log.error(
                    "event=stream_reader.stream_recreated reader=%s offset=%s action=%s",
                    self.reader.name, position, action,
                )  # fmt: skip
                if action == "stop":
                    self._halt(self._recreated(position))
                    return False
                self._incarnation += 1
            if position is not None:
                self._forget_stream()
                self._tracker.begin(0)
        try:
            self._mark = await mark_stream(session, self.queue.name, self.reader.name)
        except TopologyMismatch as error:
            if error.reply_code != 403:
                raise
            log.warning("event=stream_reader.mark_refused reader=%s error=%s", self.reader.name, error)
            self._mark = None
        position = self._tracker.position
        await lease.store(replace(self._known(lease), offset=position))
        self._stored = position
        return True

    def _recreated(self, position: int) -> StreamRecreated:
        reader, stream = self.reader.name, self.queue.name
        return StreamRecreated(
            f"the stream {stream!r} was deleted and declared anew since its reader {reader!r} stored the position"
            f" {position}: the new messages below it would be passed over; start the reader with on_recreated='first' to"
            " handle all messages of the new stream",
            stream,
            position,
        )

    def _forget_stream(self) -> None:
        """Forget all offsets: those that were delivered belong to a stream that does not exist any more."""
        self._tracker = OffsetTracker()
        self._channels.clear()
        self._unacknowledged.clear()
        self._handled_since_store = 0

    async def _find_position(self) -> None:
        """Find the offset at which a reader with `last` or `next` begins, from the end of the stream. From then on it does
        not miss the messages that are published while it has no connection, or is stopped before its first message.
        """
        offset = self.reader.offset
        if self._tracker.position is not None or self._since is not None:
            return
        if isinstance(offset, timedelta):
            self._since = datetime.fromtimestamp(int(self._clock.now() - offset.total_seconds()), UTC)
        elif offset in ("last", "next"):
            chunk = await read_last_chunk(await self._link.wait_up(), self.queue.name, empty_seconds=0.0)
            if chunk is None:
                # A stream is empty only before its first message: retention keeps the last one.
                self._tracker.begin(0)
                return
            first, last = chunk.first.offset, chunk.last.offset
            if first is not None and last is not None:
                self._tracker.begin(first if offset == "last" else last + 1)

    async def _store_start(self) -> None:
        """Store where the reader begins, if that is not stored yet.

        :raises WarrenError: if the lease is lost.
        """
        if not self.reader.resume:
            return
        lease = self._active_lease()
        wanted = self._known(lease)
        if self._stored is None and wanted != lease.position:
            await lease.store(wanted)
            self._stored = wanted.offset

    def _known(self, lease: ReaderLease) -> StoredPosition:
        """Return what this process knows of its position: an offset, or a time while that is unknown."""
        offset = self._tracker.position
        return replace(
            lease.position,
            offset=offset,
            since=None if offset is not None else self._since,
            mark=self._mark,
            incarnation=self._incarnation,
        )

    def _active_lease(self) -> ReaderLease:
        """Return the lease.

        :raises TransportUnavailable: if this process does not have it: another one may be the active reader now.
        """
        lease = self._lease
        if lease is None or lease.ended.done():
            raise TransportUnavailable(f"the reader {self.reader.name!r} is not the active one")
        return lease

    def _consumer_lost(self, ended: asyncio.Future[None]) -> WarrenError:
        self._source = None
        self._unacknowledged.clear()
        for job in self._tasks.withdraw():
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
            if channel is self._starting:
                self._early.append((method, header, body))
            return
        tag, delivery = Delivery.from_frames(method, header, body, self.queue.name)
        offset = delivery.offset
        if offset is None:
            error = TransportUnavailable(
                f"a message of stream {self.queue.name!r} has no offset: is it a stream?"
            )
            self.halt(delivery, error)
            return
        # All that a header of the message decides comes before the offset counts as started.
        accepted = self.reader.accepts(delivery.readable_headers)
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
        elif not accepted:
            self._tracker.handled(offset)
            self._acknowledge_in_order(offset, channel, tag)
            self._store_soon()
        else:
            job = Job(channel, tag, delivery, is_redelivered=False)
            try:
                self._tasks.submit(job)
            except Exception as error:
                self._tasks.give_up(job, error)

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
        if job.channel is not self._source and job.channel not in self._channels:
            # The offset is one of a former stream.
            self.statistics.stale += 1
            return
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
        lease = self._active_lease()
        if self._stored is None or self._handled_since_store >= self.reader.store_every:
            await self._store(lease)

    async def _store(self, lease: ReaderLease) -> None:
        async with self._store_lock:
            position = self._tracker.position
            if position is None or position == self._stored:
                return
            handled = self._handled_since_store
            await lease.store(replace(self._known(lease), offset=position))
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
                self._in_background(self._while_active(action, lease))

        self._timers[name] = self._clock.call_at(self._clock.now() + seconds, due)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _while_active(
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
