"""Subscriptions: one queue, one channel, a prefetch, workers; acknowledged after the work, resumed after any loss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from enum import Enum
from functools import partial

from tenacity import AsyncRetrying, retry_if_exception

from warren.sdk.consume.circuit_breaker import Circuit
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.workers import OPERATIONS, ConsumerStatistics, Job, Process, Settlement, Workers
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
    """What a subscription is to do.

    CONSUMING -> PAUSED -> CONSUMING by `pause` and `resume`; CONSUMING -> TRIPPED -> TRIAL -> CONSUMING or TRIPPED by its
    circuit breaker; any of them -> CANCELLED.
    """

    CONSUMING = "consuming"
    TRIAL = "trial"
    """One message at a time, to see whether the circuit can be closed."""
    PAUSED = "paused"
    TRIPPED = "tripped"
    CANCELLED = "cancelled"


TAKING = frozenset({Mode.CONSUMING, Mode.TRIAL})


class Subscription:
    """The consumer of one queue: `app.subscriptions["billing"]`. It stays, whatever happens to channel and connection.

    :param process: does the work of one delivery and says how it ends; its cancellation requeues.
    :param key: deliveries of one key are worked on one at a time, in their order.
    :param recover: brings the queue back when it is gone (declares the topology).
    """

    def __init__(
        self,
        link: SupervisedConnection,
        queue: Queue,
        *,
        prefetch: int,
        concurrency: int,
        process: Process,
        key: Callable[[Delivery], Hashable] | None,
        recover: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        telemetry: ConsumeTelemetry | None = None,
    ) -> None:
        self.queue: Queue = queue
        self._link = link
        self._prefetch = prefetch
        self._recover = recover
        self._on_change = on_change
        self._telemetry = telemetry
        self._returning: list[Job] = []
        """What goes back to the queue as soon as the broker sends no more."""
        self._mode = Mode.CONSUMING
        self._taking = asyncio.Event()
        self._taking.set()
        self._moves = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held while a consumer is started or cancelled."""
        self._switches: set[asyncio.Task[None]] = set()
        self._channel: DataChannel | None = None
        self._tag = ""
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping = False
        self.circuit: Circuit | None = None
        self.error: WarrenError | None = None
        self.statistics: ConsumerStatistics = ConsumerStatistics()
        self._workers = Workers(queue.name, concurrency, process, key, self._end, self.statistics, self._over)

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def active(self) -> bool:
        """The broker has confirmed the consumer, and its channel lives."""
        return bool(self._tag) and self._channel is not None and self._channel.usable

    @property
    def in_desired_state(self) -> bool:
        """It is as it is meant to be: active, or stopped by intent."""
        return self.active or self._mode not in TAKING

    # What a user does

    async def pause(self) -> None:
        """Take no more messages: returns when the broker sends none, and what had not started is on its way back.

        What runs goes on. A reconnect does not resume.
        """
        await self._by_hand(Mode.PAUSED)

    async def resume(self, timeout: float = RESUME_SECONDS) -> None:
        """Take messages again; returns when the broker has confirmed the consumer.

        :param timeout: seconds.
        :raises TransportUnavailable: if that takes longer; it goes on trying. :raises ConfigError: after `cancel`.
        """
        if self._mode is Mode.CONSUMING and self.active:
            return
        await self._by_hand(Mode.CONSUMING)
        try:
            async with asyncio.timeout(timeout):
                while not self.active and self._mode is Mode.CONSUMING:
                    self._moves.clear()
                    await self._moves.wait()
        except TimeoutError:
            raise TransportUnavailable(f"no consumer on {self.queue.name!r} within {timeout:g} s") from None

    async def cancel(self) -> None:
        """`pause` for the rest of the App's run."""
        await self._by_hand(Mode.CANCELLED)

    async def until(self, mode: Mode) -> None:
        """Wait until it is in that mode."""
        while self._mode is not mode:
            self._moves.clear()
            await self._moves.wait()

    async def _by_hand(self, mode: Mode) -> None:
        if self._mode is Mode.CANCELLED and mode is not Mode.CANCELLED:
            raise ConfigError(f"the subscription of queue {self.queue.name!r} is cancelled")
        if self.circuit is not None:
            self.circuit.reset()
        # On its own: aiormq closes a channel whose method is cancelled.
        await asyncio.shield(self._switch(mode))

    # What its circuit does

    def trip(self) -> bool:
        tripped = self._by_circuit(Mode.TRIPPED)
        self.statistics.tripped += tripped
        return tripped

    def probe(self) -> bool:
        return self._by_circuit(Mode.TRIAL)

    def close_circuit(self) -> None:
        self._by_circuit(Mode.CONSUMING)

    def _by_circuit(self, mode: Mode) -> bool:
        """What a user has chosen, and a stop, come before the circuit."""
        if self._stopping or self._mode in (Mode.PAUSED, Mode.CANCELLED):
            return False
        self._switch(mode)
        return True

    # What its App does

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name=f"subscription {self.queue.name}")
        self._workers.start()

    async def stop(self, grace: float) -> None:
        """Cancel the consumer, requeue what has not started, let what has started end within `grace` seconds.

        What is still running then is cancelled and requeued.
        """
        self._stopping = True
        if self.circuit is not None:
            self.circuit.reset()
        if self._supervisor is not None:
            await cancel(self._supervisor)
        async with self._turn:
            self._withdraw()
            await self._end_consumer()
        channel = self._channel
        await asyncio.gather(*self._switches, return_exceptions=True)
        await self._workers.stop(grace)
        if channel is not None and channel.usable:
            with contextlib.suppress(WarrenError), translate_errors("cannot close the channel"):
                await channel.close(timeout=CANCEL_SECONDS)
        self._channel = None

    # The consumer

    def _switch(self, mode: Mode) -> asyncio.Task[None]:
        self._mode = mode
        if mode in TAKING:
            self._taking.set()
        else:
            self._taking.clear()
            self._withdraw()
        task = asyncio.create_task(self._switched(mode), name=f"{mode.value} {self.queue.name}")
        self._switches.add(task)
        task.add_done_callback(self._switches.discard)
        return task

    async def _switched(self, mode: Mode) -> None:
        self._moves.set()
        async with self._turn:
            if self._mode is not mode or self._stopping:
                return
            channel = self._channel
            await self._end_consumer()
            if mode in TAKING and channel is not None and channel.usable:
                try:
                    await self._start_consumer(channel)
                except WarrenError as error:
                    log.warning("cannot consume again: queue=%s error=%s", self.queue.name, error)
                    await _close(channel)
        self._moved()

    async def _supervise(self) -> None:
        while True:
            await self._taking.wait()
            ended: asyncio.Future[None] | None = None
            async for attempt in AsyncRetrying(
                wait=self._link.wait,
                retry=retry_if_exception(self._lives_on),
                reraise=True,
            ):
                with attempt:
                    session = await self._link.wait_up()
                    if attempt.retry_state.attempt_number > 1:
                        await self._bring_back()
                    ended = await self._consume(session)
                    if ended is None:
                        break
                    done, _ = await asyncio.wait((ended,), timeout=STABLE_SECONDS)
                    if done:
                        raise self._lost(ended)
            if ended is not None:
                await asyncio.wait((ended,))
                self._lost(ended)

    async def _bring_back(self) -> None:
        try:
            await self._recover()
        except WarrenError as error:
            log.warning("topology not brought back: queue=%s error=%s", self.queue.name, error)
            self.error = error
            self._moved()
            raise

    def _lives_on(self, error: BaseException) -> bool:
        """Whatever happens, a queue keeps its consumer; what is no error of the SDK is one of this program, and is shown."""
        if isinstance(error, Exception) and not isinstance(error, WarrenError):
            log.critical("consumer failed: queue=%s", self.queue.name, exc_info=error)
            self.error = TransportUnavailable(f"the consumer of queue {self.queue.name!r} failed: {error}")
        return isinstance(error, Exception)

    async def _consume(self, session: Session) -> asyncio.Future[None] | None:
        """Consume on a new channel; the future is done when the channel or the consumer has ended. None if unwanted."""
        async with self._turn:
            if self._mode not in TAKING:
                return None
            try:
                channel = await session.channel()
                channel.on_delivery = partial(self._deliver, channel)
                ended = asyncio.get_running_loop().create_future()
                channel.methods.on_consumer_cancel_callbacks.add(lambda frame: _set(ended))
                channel.ended.add_done_callback(lambda done: _set(ended))
                await self._start_consumer(channel)
            except WarrenError as error:
                self.error = error
                self._moved()
                raise
            self._channel = channel
        self.error = None
        self._moved()
        return ended

    async def _start_consumer(self, channel: DataChannel) -> None:
        prefetch = 1 if self._mode is Mode.TRIAL else self._prefetch
        with translate_errors(f"cannot consume from queue {self.queue.name!r}"):
            async with asyncio.timeout(CANCEL_SECONDS * 2):
                self._tag = await channel.consume(
                    self.queue.name, prefetch=prefetch, stream=self.queue.type == "stream"
                )

    async def _end_consumer(self) -> None:
        """Cancel at the broker, if there is something to cancel, and give back what it sent too much."""
        tag, self._tag = self._tag, ""
        channel = self._channel
        if tag and channel is not None and channel.usable:
            try:
                with translate_errors("cannot cancel the consumer"):
                    await channel.cancel(tag, CANCEL_SECONDS)
            except WarrenError as error:
                # A consumer that may live on would be sent messages for ever.
                log.warning("consumer not cancelled: queue=%s error=%s", self.queue.name, error)
                with contextlib.suppress(WarrenError):
                    await _close(channel)
        returning, self._returning = self._returning, []
        for job in returning:
            self._settle(job, Settlement.RELEASE)

    def _lost(self, ended: asyncio.Future[None]) -> WarrenError:
        channel, self._channel, self._tag = self._channel, None, ""
        reason = "cancelled by the broker"
        cause = None if channel is None else channel.close_error
        if cause is not None:
            reason = str(to_sdk_error("channel closed", cause))
        elif channel is not None:
            task = asyncio.ensure_future(_close(channel))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        error = TransportUnavailable(f"the consumer of queue {self.queue.name!r} was lost: {reason}")
        if self._mode in TAKING:
            log.warning("consumer lost: queue=%s reason=%s", self.queue.name, reason)
            self.error = error
        self._moved()
        return error

    def _over(self) -> bool:
        """Its supervisor is cancelled by `stop`, or with all tasks of the event loop."""
        supervisor = self._supervisor
        return self._stopping or supervisor is None or supervisor.done() or supervisor.cancelling() > 0

    def _moved(self) -> None:
        self._moves.set()
        self._on_change()

    # Deliveries

    def _deliver(self, channel: DataChannel, method: bytes, header: bytes, body: bytes) -> None:
        tag, delivery = Delivery.from_frames(method, header, body, self.queue.name)
        job = Job(channel, tag, delivery)
        self.statistics.delivered += 1
        if delivery.redelivered:
            self.statistics.redelivered += 1
        if self._stopping or self._mode not in TAKING:
            self._returning.append(job)
        else:
            self._workers.take(job)

    def _withdraw(self) -> None:
        self._returning += self._workers.withdraw()

    def _end(self, job: Job, settlement: Settlement) -> None:
        """A job has come to its end."""
        if (
            settlement is Settlement.RELEASE
            and self._mode not in TAKING
            and (self._tag or self._turn.locked())
        ):
            # The broker would send it again at once, as long as the consumer is not cancelled.
            self._returning.append(job)
        else:
            self._settle(job, settlement)

    def _settle(self, job: Job, settlement: Settlement) -> None:
        """Settle on the channel of the delivery; if that is gone, the broker has requeued the message already."""
        if not job.channel.usable:
            self.statistics.stale += 1
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
        elif settlement is Settlement.REJECT:
            job.channel.reject(job.delivery_tag)
            statistics.rejected += 1
        else:
            job.channel.requeue(job.delivery_tag, failed=settlement is Settlement.REQUEUE)
            statistics.requeued += 1

    def snapshot(self) -> ConsumerStatistics:
        self.statistics.waiting = self._workers.waiting + len(self._returning)
        return self.statistics


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def _close(channel: DataChannel) -> None:
    with translate_errors("cannot close the channel"):
        await channel.close(timeout=CANCEL_SECONDS)
