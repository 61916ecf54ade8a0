"""Subscription: the consumer of one queue on its own channel, which settles deliveries after handling, and consumes
again after a loss of its channel or connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import Context
from enum import Enum
from functools import partial
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception

from warren.sdk.consume.circuit_breaker import Circuit
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.handler_tasks import (
    ConsumerStatistics,
    GiveUp,
    HandlerTasks,
    OrderingKey,
    Process,
)
from warren.sdk.consume.job import Job
from warren.sdk.consume.settled_messages import SettledMessages
from warren.sdk.consume.settlement import OPERATIONS, Settlement
from warren.sdk.durations import Duration, seconds
from warren.sdk.errors import ConfigError, TransportUnavailable, WarrenError
from warren.sdk.logger import log
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry
from warren.sdk.topology.queue import Queue
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import to_sdk_error, translate_errors
from warren.sdk.transport.session import Session
from warren.sdk.transport.supervised_connection import STABLE_SECONDS, SupervisedConnection, cancel

CANCEL_SECONDS = 5.0
RESUME_SECONDS = 30.0


class Mode(Enum):
    """Desired state of a subscription.

    CONSUMING -> PAUSED -> CONSUMING by `pause` and `resume`; CONSUMING -> TRIPPED -> TRIAL -> CONSUMING or TRIPPED by its
    circuit breaker; any mode -> CANCELLED by `cancel`.
    """

    CONSUMING = "consuming"
    """Messages are consumed, or will be once there is a connection."""
    TRIAL = "trial"
    """The circuit is half open: one message at a time is consumed."""
    PAUSED = "paused"
    """Consumption is stopped until `resume`."""
    TRIPPED = "tripped"
    """The circuit is open: nothing is consumed."""
    CANCELLED = "cancelled"
    """Consumption has ended for this run of the App."""


CONSUMING_MODES = frozenset({Mode.CONSUMING, Mode.TRIAL})
"""Modes in which the subscription keeps a consumer on the broker."""


class Subscription:
    """Consumer of one queue: `app.subscriptions["billing"]`. It consumes
    again after any loss of its channel or connection.

    :param prefetch: messages that the broker sends ahead of their acknowledgement.
    :param concurrency: deliveries that are handled at the same time.
    :param process: handles one delivery and returns its settlement; if it is
        cancelled because the App stops, the message goes back to the queue.
    :param give_up: settles a delivery whose handler has ended the task that handles it.
    :param close_batches: called when the App stops, before it waits for running handlers.
    :param key: ordering key of a delivery; deliveries with the same key are handled one at a time. None without ordering
        by key.
    :param recover: declares the topology again; called when the queue may have been deleted.
    :param on_change: called after each change of `mode`, `active` or `error`.
    :param context: context of which each handler gets a copy.
    :ivar circuit: the circuit breaker, or None.
    :ivar error: reason why the subscription is not active, or None.
    """

    def __init__(
        self,
        link: SupervisedConnection,
        queue: Queue,
        *,
        prefetch: int,
        concurrency: int,
        process: Process,
        give_up: GiveUp,
        close_batches: Callable[[], None],
        key: OrderingKey | None,
        recover: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        context: Context,
        telemetry: ConsumeTelemetry | None = None,
    ) -> None:
        self.queue: Queue = queue
        self._link = link
        self._prefetch = prefetch
        self._recover = recover
        self._close_batches = close_batches
        self._on_change = on_change
        self._telemetry = telemetry
        self._settled = SettledMessages(prefetch)
        self._pending_releases: list[Job] = []
        """Deliveries to requeue once the consumer is cancelled; requeued
        earlier, the broker would deliver them to it again."""
        self._mode = Mode.CONSUMING
        self._may_consume = asyncio.Event()
        """Set while the mode is one of `CONSUMING_MODES`."""
        self._may_consume.set()
        self._changed = asyncio.Event()
        self._consumer_lock = asyncio.Lock()
        """Held while a consumer is started or cancelled."""
        self._mode_changes: set[asyncio.Task[None]] = set()
        self._channel: DataChannel | None = None
        self._tag = ""
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = False
        self.circuit: Circuit | None = None
        self.error: WarrenError | None = None
        self.statistics: ConsumerStatistics = ConsumerStatistics()
        self._tasks = HandlerTasks(
            queue.name,
            concurrency,
            process,
            give_up,
            key,
            self._job_ended,
            self.statistics,
            self._is_shutting_down,
            context,
        )

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def active(self) -> bool:
        """True if the broker has accepted the consumer (`basic.consume-ok`) and the channel is open."""
        return bool(self._tag) and self._channel is not None and self._channel.usable

    @property
    def in_desired_state(self) -> bool:
        """True if the subscription is active, or if it is paused, cancelled or stopped by its circuit breaker."""
        return self.active or self._mode not in CONSUMING_MODES

    # Methods for users

    async def pause(self) -> None:
        """Stop consuming. Return when the consumer is cancelled and all deliveries that no
        handler has started are back in the queue.

        Running handlers continue. A reconnect does not resume the subscription.
        """
        await self._set_mode_by_user(Mode.PAUSED)

    async def resume(self, timeout: Duration = RESUME_SECONDS) -> None:
        """Consume again after `pause`. Return when the broker has accepted the consumer (`basic.consume-ok`).

        :param timeout: seconds, a `timedelta` or a text such as `5s` to wait until the broker has accepted it.
        :raises TransportUnavailable: after the timeout; the subscription keeps trying.
        :raises ConfigError: after `cancel`.
        """
        length = seconds(timeout)
        if self._mode is Mode.CONSUMING and self.active:
            return
        await self._set_mode_by_user(Mode.CONSUMING)
        try:
            async with asyncio.timeout(length):
                while self._mode is Mode.CONSUMING and not self.in_desired_state:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TransportUnavailable(f"no consumer on {self.queue.name!r} within {length:g} s") from None

    async def cancel(self) -> None:
        """Stop consuming, as `pause` does, for the rest of the App's run: `resume` then raises `ConfigError`."""
        await self._set_mode_by_user(Mode.CANCELLED)

    async def wait_for_mode(self, mode: Mode) -> None:
        """Wait until `mode` is the mode of the subscription: for example, until its circuit breaker has paused it."""
        while self._mode is not mode:
            self._changed.clear()
            await self._changed.wait()

    async def _set_mode_by_user(self, mode: Mode) -> None:
        if self._mode is Mode.CANCELLED and mode is not Mode.CANCELLED:
            raise ConfigError(f"the subscription of queue {self.queue.name!r} is cancelled")
        if self.circuit is not None:
            self.circuit.reset()
        # Shielded, because aiormq closes a channel whose method is cancelled.
        await asyncio.shield(self._set_mode(mode))

    # Methods for the circuit breaker, see `Pausable`

    def trip(self) -> bool:
        tripped = self._set_mode_by_circuit(Mode.TRIPPED)
        self.statistics.tripped += tripped
        return tripped

    def probe(self) -> bool:
        return self._set_mode_by_circuit(Mode.TRIAL)

    def close_circuit(self) -> None:
        self._set_mode_by_circuit(Mode.CONSUMING)

    def _set_mode_by_circuit(self, mode: Mode) -> bool:
        """Change the mode for the circuit breaker; return True if it was changed.

        Returns False, without a change, if the user has paused or cancelled the subscription, or it is being stopped.
        """
        if self._stopping or self._mode in (Mode.PAUSED, Mode.CANCELLED):
            return False
        self._set_mode(mode)
        return True

    # Methods for the App

    def handles_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a handler of this subscription runs in the task."""
        return self._tasks.handles_in(task)

    def start(self) -> None:
        """Start the task that keeps a consumer on the queue."""
        self._supervisor = asyncio.create_task(self._supervise(), name=f"subscription {self.queue.name}")

    async def stop(self, grace: float) -> None:
        """Cancel the consumer, requeue deliveries that no handler has started,
        and wait `grace` seconds for running handlers.

        Handlers that still run then are cancelled, and their deliveries requeued.
        """
        self._stopping = True
        if self.circuit is not None:
            self.circuit.reset()
        if self._supervisor is not None:
            await cancel(self._supervisor)
        async with self._consumer_lock:
            self._withdraw()
            await self._end_consumer()
        channel = self._channel
        await asyncio.gather(*self._mode_changes, return_exceptions=True)
        self._close_batches()
        await self._tasks.stop(grace)
        if channel is not None and channel.usable:
            with contextlib.suppress(WarrenError), translate_errors("cannot close the channel"):
                await channel.close(timeout=CANCEL_SECONDS)
        self._channel = None

    # The consumer

    def _set_mode(self, mode: Mode) -> asyncio.Task[None]:
        """Change the mode; return the task that starts or cancels the consumer accordingly."""
        self._mode = mode
        if mode in CONSUMING_MODES:
            self._may_consume.set()
        else:
            self._may_consume.clear()
            self._withdraw()
        task = asyncio.create_task(self._apply_mode(mode), name=f"{mode.value} {self.queue.name}")
        self._mode_changes.add(task)
        task.add_done_callback(self._mode_changes.discard)
        return task

    async def _apply_mode(self, mode: Mode) -> None:
        self._changed.set()
        async with self._consumer_lock:
            if self._mode is not mode or self._stopping:
                return
            channel = self._channel
            await self._end_consumer()
            if mode in CONSUMING_MODES and channel is not None and channel.usable:
                try:
                    await self._start_consumer(channel)
                except WarrenError as error:
                    log.warning("event=consumer.restart_failed queue=%s error=%s", self.queue.name, error)
                    if channel.usable:
                        await _close(channel)
        self._notify()

    async def _supervise(self) -> None:
        """Consume while the mode is one of `CONSUMING_MODES`: start the consumer, and start it again whenever it ends.

        The waits between attempts grow after failures.
        """
        while True:
            await self._may_consume.wait()
            ended: asyncio.Future[None] | None = None
            async for attempt in AsyncRetrying(
                wait=self._link.wait,
                retry=retry_if_exception(self._retries_after),
                reraise=True,
            ):
                with attempt:
                    session = await self._link.wait_up()
                    if attempt.retry_state.attempt_number > 1:
                        await self._redeclare()
                    ended = await self._consume(session)
                    if ended is None:
                        break
                    done, _ = await asyncio.wait((ended,), timeout=STABLE_SECONDS)
                    if done:
                        raise self._consumer_lost(ended)
            if ended is not None:
                await asyncio.wait((ended,))
                self._consumer_lost(ended)

    async def _redeclare(self) -> None:
        try:
            await self._recover()
        except WarrenError as error:
            log.warning("event=topology.redeclare_failed queue=%s error=%s", self.queue.name, error)
            self.error = error
            self._notify()
            raise

    def _retries_after(self, error: BaseException) -> bool:
        """Return whether `_supervise` starts the consumer again after this error: True for all but a cancellation.

        Exceptions other than `WarrenError` are bugs, and are logged as critical.
        """
        if isinstance(error, Exception) and not isinstance(error, WarrenError):
            log.critical("event=consumer.failed queue=%s", self.queue.name, exc_info=error)
            self.error = TransportUnavailable(f"the consumer of queue {self.queue.name!r} failed: {error}")
        return isinstance(error, Exception)

    async def _consume(self, session: Session) -> asyncio.Future[None] | None:
        """Start a consumer on a new channel; return a future that completes when the consumer or its channel ends.

        Returns None if the subscription was paused, tripped or cancelled meanwhile.
        """
        async with self._consumer_lock:
            if self._mode not in CONSUMING_MODES:
                return None
            try:
                channel = await session.channel()
                channel.on_delivery = partial(self._deliver, channel)
                ended = asyncio.get_running_loop().create_future()
                channel.consumer_ended.add_done_callback(lambda done: _complete(ended))
                self._forget_lost()
                await self._start_consumer(channel)
            except WarrenError as error:
                self.error = error
                self._notify()
                raise
            self._channel = channel
        self.error = None
        self._notify()
        return ended

    def _forget_lost(self) -> None:
        """Withdraw the deliveries of former channels whose handling has not begun: the broker delivers them again."""
        waiting = self._tasks.withdraw()
        self._tasks.expect_again()
        self._settled.expect_again(waiting)
        for job in waiting:
            self._settle(job, Settlement.RELEASE)

    async def _start_consumer(self, channel: DataChannel) -> None:
        prefetch = 1 if self._mode is Mode.TRIAL else self._prefetch
        with translate_errors(f"cannot consume from queue {self.queue.name!r}"):
            async with asyncio.timeout(CANCEL_SECONDS * 2):
                self._tag = await channel.consume(
                    self.queue.name, prefetch=prefetch, stream=self.queue.type == "stream"
                )

    async def _end_consumer(self) -> None:
        """Cancel the consumer, if there is one; then requeue the deliveries of `_pending_releases`."""
        tag, self._tag = self._tag, ""
        channel = self._channel
        if tag and channel is not None and channel.usable:
            try:
                with translate_errors("cannot cancel the consumer"):
                    await channel.cancel(tag, CANCEL_SECONDS)
            except WarrenError as error:
                # The channel is closed, because the broker may still send messages to the consumer.
                log.warning("event=consumer.cancel_failed queue=%s error=%s", self.queue.name, error)
                with contextlib.suppress(WarrenError):
                    await _close(channel)
        releases, self._pending_releases = self._pending_releases, []
        for job in releases:
            self._settle(job, Settlement.RELEASE)

    def _consumer_lost(self, ended: asyncio.Future[None]) -> WarrenError:
        """Forget the consumer that ended and its channel; log the reason, and return it as an error."""
        channel, self._channel, self._tag = self._channel, None, ""
        reason = "cancelled by the broker"
        cause = None if channel is None else channel.close_error
        if cause is not None:
            reason = str(to_sdk_error("channel closed", cause))
        elif channel is not None:
            task = asyncio.ensure_future(_close(channel))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        error = TransportUnavailable(f"the consumer of queue {self.queue.name!r} was lost: {reason}")
        if self._mode in CONSUMING_MODES:
            log.warning("event=consumer.lost queue=%s reason=%s", self.queue.name, reason)
            self.error = error
        self._notify()
        return error

    def _is_shutting_down(self) -> bool:
        """Return whether the subscription is stopped or the program ends.

        True after `stop`, and if the task of `_supervise` is not running or is being cancelled.
        """
        supervisor = self._supervisor
        return self._stopping or supervisor is None or supervisor.done() or supervisor.cancelling() > 0

    def _notify(self) -> None:
        self._changed.set()
        self._on_change()

    # Deliveries

    def _deliver(self, channel: DataChannel, method: bytes, header: bytes, body: bytes) -> None:
        tag, delivery = Delivery.from_frames(method, header, body, self.queue.name)
        job = Job(channel, tag, delivery)
        self.statistics.delivered += 1
        if delivery.redelivered:
            self.statistics.redelivered += 1
        if self._stopping or self._mode not in CONSUMING_MODES:
            self._pending_releases.append(job)
        elif not (delivery.redelivered and self._is_settled(job)):
            try:
                self._tasks.submit(job)
            except Exception as error:
                # A bug. Raised to the channel, it would end the connection, again at each delivery of the message.
                self._tasks.give_up(job, error)

    def _is_settled(self, job: Job) -> bool:
        """Settle a message that comes again, although this process has settled it, or handles it: its connection was lost.
        Return False if the message is to be handled.
        """
        if self._tasks.adopt(job):
            return True
        settlement = self._settled.take(job)
        if settlement is None:
            return False
        self._settle(job, settlement)
        return True

    def _withdraw(self) -> None:
        self._pending_releases += self._tasks.withdraw()

    def _job_ended(self, job: Job, settlement: Settlement) -> None:
        """Settle a delivery whose handling has ended.

        While the subscription pauses or stops, a delivery to be requeued is kept until the consumer is cancelled:
        otherwise the broker could deliver the message to the same consumer again.

        :param job: the delivery and its channel.
        :param settlement: result of the handling: acknowledge, reject or requeue.
        """
        if (
            settlement is Settlement.RELEASE
            and self._mode not in CONSUMING_MODES
            and (self._tag or self._consumer_lock.locked())
        ):
            self._pending_releases.append(job)
        else:
            self._settle(job, settlement)

    def _settle(self, job: Job, settlement: Settlement) -> None:
        """Acknowledge, reject or requeue a delivery, as `settlement` says, on the channel that it arrived on.

        If that channel is closed, only count the delivery as stale: the broker has requeued the message already.
        """
        if not job.channel.usable:
            self.statistics.stale += 1
            self._settled.unsent(job, settlement)
            return
        if self._telemetry is None:
            self._write(job, settlement)
        else:
            write = partial(self._write, job, settlement)
            self._telemetry.settled(job.delivery, job.delivery_tag, OPERATIONS[settlement], write)

    def _write(self, job: Job, settlement: Settlement) -> None:
        statistics = self.statistics
        if settlement is Settlement.ACK:
            job.channel.acknowledge(job.delivery_tag)
            statistics.acknowledged += 1
            self._settled.sent(job, settlement)
        elif settlement is Settlement.REJECT:
            job.channel.reject(job.delivery_tag)
            statistics.rejected += 1
            self._settled.sent(job, settlement)
        else:
            job.channel.requeue(job.delivery_tag, failed=settlement is Settlement.REQUEUE)
            statistics.requeued += 1

    def snapshot(self) -> ConsumerStatistics:
        """Return the statistics, with the current number of deliveries that no handler has started."""
        self.statistics.waiting = self._tasks.waiting + len(self._pending_releases)
        return self.statistics


def _complete(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _close(channel: DataChannel) -> None:
    with translate_errors("cannot close the channel"):
        await channel.close(timeout=CANCEL_SECONDS)
