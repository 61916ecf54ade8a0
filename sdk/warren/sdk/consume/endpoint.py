"""What happens to a delivery: decoded, handled with retries, answered, and ended as acknowledged, requeued or dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta

from warren.core.capture_events import DEAD_LETTERED, event_prefix
from warren.sdk.app.middleware import Middlewares
from warren.sdk.capture.recorder import Recorder
from warren.sdk.consume.circuit_breaker import Circuit
from warren.sdk.consume.consumer_options import ConsumerOptions
from warren.sdk.consume.dead_letters import dead_letter_copy
from warren.sdk.consume.delivery import Delivery, handling
from warren.sdk.consume.handlers.signature import HandlerSpec
from warren.sdk.consume.retry import may_pass
from warren.sdk.consume.workers import Settlement
from warren.sdk.durations import duration
from warren.sdk.errors import (
    Ack,
    ConfigError,
    DeadLetter,
    HandlerOutcome,
    RemoteError,
    Requeue,
    RetryLater,
    Undecodable,
    UnknownContentType,
    Unroutable,
    WarrenError,
)
from warren.sdk.logger import log
from warren.sdk.messages.codec import decode, encode_result
from warren.sdk.protocols import Clock, DelayBackend, Once, RetryPolicy
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.rpc.replies import error_reply, reply, wants_reply
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry, failed, scope
from warren.sdk.topology.queue import Queue

Send = Callable[[Outgoing], Awaitable[None]]


@dataclass(slots=True)
class HandlerStatistics:
    """Counts since the App started. `dropped` is what no dead letter exchange took: it is gone, and logged.

    `failed_attempts` failed, whatever came next; `retried` were made again in this process, `delayed` put off till later.
    `dead_lettered` are confirmed copies with the reason; what was rejected instead, the consumer counts.
    `gathering` wait now for their batch to be full.
    """

    handled: int = 0
    failed_attempts: int = 0
    retried: int = 0
    delayed: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    error_replies: int = 0
    unclaimed_replies: int = 0
    gathering: int = 0


class Endpoint:
    """The handlers of one queue; several message types are told apart by the `type` property.

    :param send: publishes with confirm and mandatory; used for replies.
    :param forward: the same for copies of what came, which pass no middleware again; used for dead letters.
    """

    def __init__(
        self,
        queue: Callable[[], Queue],
        *,
        intake: ConsumerOptions,
        send: Send,
        forward: Send,
        middlewares: Middlewares,
        clock: Clock,
        retry: RetryPolicy,
        delay: Callable[[], DelayBackend],
    ) -> None:
        self.intake: ConsumerOptions = intake
        self.circuit: Circuit | None = None
        self.statistics: HandlerStatistics = HandlerStatistics()
        self.telemetry: ConsumeTelemetry | None = None
        """Where somebody listens; set for each run."""
        self.capture: Recorder | None = None
        """Where events are captured; set for each run."""
        self.redeclare: Callable[[], Awaitable[None]] | None = None
        """Brings back what is gone from the broker; set for each run."""
        self._queue = queue
        self._send = send
        self._forward = forward
        self._middlewares = middlewares
        self._clock = clock
        self._retry = retry
        self._delay = delay
        self._specs: dict[str, HandlerSpec] = {}
        self._unordered = False
        """Whether it has been said that a key could not be read."""

    def add(self, handler: HandlerSpec) -> None:
        """:raises ConfigError: if two handlers of the queue cannot be told apart."""
        name = getattr(handler.kind, "wire_type", "")
        if name in self._specs or (self._specs and ("" in self._specs or not name)):
            raise ConfigError(f"queue {self._queue().name!r} has a handler for that already")
        self._specs[name] = handler

    def gathering(self, change: int) -> None:
        self.statistics.gathering += change

    @property
    def handlers(self) -> tuple[HandlerSpec, ...]:
        return tuple(self._specs.values())

    @property
    def onces(self) -> list[Once]:
        return [handler.once for handler in self._specs.values() if handler.once is not None]

    async def process(self, delivery: Delivery, delivery_tag: int) -> Settlement:
        """Work on one delivery; only cancellation comes out as an exception, and it requeues."""
        try:
            with scope(self.telemetry, delivery, delivery_tag), handling(delivery):
                return await self._process(delivery)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return await self._bury(delivery, "failed", error)
        except Exception as error:
            # The handler's own errors have ended above; this one is of the SDK or of a plug-in.
            log.exception("delivery failed: queue=%s message_id=%s", delivery.queue, delivery.message_id)
            return await self._bury(delivery, "failed", error)

    async def _process(self, delivery: Delivery) -> Settlement:
        handler = self._choose(delivery)
        if handler is None:
            return await self._bury(
                delivery, "unknown_type", ValueError(f"no handler for type {delivery.type!r}")
            )
        try:
            result = await self._handle(handler, delivery)
        except Ack:
            self._succeeded()
            return Settlement.ACK
        except Requeue:
            return Settlement.REQUEUE
        except DeadLetter as chosen:
            return await self._bury(delivery, "rejected", chosen)
        except Undecodable as unread:
            if handler.reply is not None and wants_reply(delivery):
                return await self._answer(
                    delivery,
                    error_reply(delivery, RemoteError("undecodable", str(unread)), self._clock.now()),
                )
            reason = "unknown_content_type" if isinstance(unread.error, UnknownContentType) else "undecodable"
            return await self._bury(delivery, reason, unread.error)
        except RetryLater as later:
            return await self._later(handler, delivery, later)
        except Exception as error:
            return await self._failed(handler, delivery, error)
        self._succeeded()
        if handler.reply is not None and wants_reply(delivery):
            kind, body = handler.reply.split(result)
            return await self._answer(delivery, reply(delivery, kind, body, self._clock.now()))
        return Settlement.ACK

    def _succeeded(self) -> None:
        self.statistics.handled += 1
        if self.circuit is not None:
            self.circuit.succeeded()

    def key(self, delivery: Delivery) -> Hashable:
        """What `ordered_by` says of the delivery; one for all of which it cannot be said.

        Those are handled one at a time, in their order: slow, and right. It is read before any middleware.
        """
        ordered_by = self.intake.ordered_by
        try:
            if isinstance(ordered_by, str):
                return delivery.headers.get(ordered_by)
            handler = self._choose(delivery)
            if handler is None or ordered_by is None:
                return None
            key = ordered_by(decode(handler.kind, delivery))
            hash(key)
        except Exception as error:
            if not self._unordered:
                self._unordered = True
                log.warning(
                    "messages without a readable key are handled one at a time: queue=%s error=%s",
                    delivery.queue, error,
                )  # fmt: skip
            return None
        return key

    def _choose(self, delivery: Delivery) -> HandlerSpec | None:
        """The only handler takes whatever comes, also from publishers that set no type."""
        if len(self._specs) == 1:
            return next(iter(self._specs.values()))
        return self._specs.get(delivery.type or "")

    async def _handle(self, handler: HandlerSpec, delivery: Delivery) -> bytes:
        attempt = self._through if self._middlewares.handle else self._attempt
        try:
            return await attempt(handler, delivery)
        except Exception as error:
            if not may_pass(error):
                raise
            failure: Exception | None = error

        async def again() -> bytes:
            # tenacity counts the attempt that was made without it, so that success costs nothing.
            nonlocal failure
            if failure is not None:
                first, failure = failure, None
                self.statistics.failed_attempts += 1
                raise first
            self.statistics.retried += 1
            try:
                return await attempt(handler, delivery)
            except Exception as error:
                self.statistics.failed_attempts += may_pass(error)
                raise

        retrying = (handler.retry or self._retry).attempts(self._clock)
        result: bytes = await retrying(again)
        return result

    async def _through(self, handler: HandlerSpec, delivery: Delivery) -> bytes:
        """One attempt inside the middlewares.

        :raises Ack: if a middleware kept the message from its handler.
        """
        results: list[bytes] = []

        async def innermost(changed: Delivery) -> None:
            with handling(changed):
                results.append(await self._attempt(handler, changed))

        await self._middlewares.receive(delivery, innermost)
        if not results:
            raise Ack
        return results[-1]

    async def _attempt(self, handler: HandlerSpec, delivery: Delivery) -> bytes:
        try:
            message = decode(handler.kind, delivery)
        except ValueError as error:
            raise Undecodable(error) from error
        if handler.once is None:
            result = await handler.call(message, delivery)
            if handler.reply is not None:
                return handler.reply.write(result)
            if isinstance(result, HandlerOutcome):
                raise result
            return b""

        async def run() -> bytes:
            result = await handler.call(message, delivery)
            if isinstance(result, HandlerOutcome):
                if not isinstance(result, Ack):
                    raise result
                result = None
            return encode_result(result) if handler.reply is None else handler.reply.write(result)

        return await handler.once.run(message, delivery, run)

    async def _failed(self, handler: HandlerSpec, delivery: Delivery, error: Exception) -> Settlement:
        failed(error)
        if self.circuit is not None and self.circuit.failed(error):
            return Settlement.RELEASE
        if not isinstance(error, RemoteError):
            log.warning(
                "handler failed: queue=%s type=%s message_id=%s", delivery.queue, delivery.type, delivery.message_id,
                exc_info=error,
            )  # fmt: skip
            after = (handler.retry or self._retry).delay(error, delivery)
            if after is not None:
                return await self._redeliver(delivery, after)
        if handler.reply is not None and wants_reply(delivery):
            self.statistics.error_replies += 1
            return await self._answer(delivery, error_reply(delivery, error, self._clock.now()))
        return await self._bury(delivery, "failed", error)

    async def _later(self, handler: HandlerSpec, delivery: Delivery, later: RetryLater) -> Settlement:
        if later.after is not None:
            return await self._redeliver(delivery, duration(later.after))
        return await self._failed(handler, delivery, later)

    async def _redeliver(self, delivery: Delivery, after: timedelta) -> Settlement:
        await self._delay().redeliver(delivery, delivery.queue, after)
        self.statistics.delayed += 1
        return Settlement.ACK

    async def _answer(self, delivery: Delivery, answer: Outgoing, *, last: bool = False) -> Settlement:
        """Confirmed before the request is acknowledged; a caller that has gone is no error.

        Instead of a reply that is refused for good the caller gets an error; without that as well, the request is dead.
        """
        try:
            await self._send(answer)
        except Unroutable:
            self.statistics.unclaimed_replies += 1
        except WarrenError as error:
            if error.retryable or error.outcome == "unknown":
                log.warning(
                    "reply not confirmed, the request is requeued: queue=%s error=%s", delivery.queue, error
                )
                return Settlement.REQUEUE
            if last:
                return await self._bury(delivery, "reply_refused", error)
            log.error("reply refused, an error goes instead: queue=%s error=%s", delivery.queue, error)
            self.statistics.error_replies += 1
            refusal = RemoteError("reply_refused", str(error))
            return await self._answer(delivery, error_reply(delivery, refusal, self._clock.now()), last=True)
        return Settlement.ACK

    async def _bury(self, delivery: Delivery, reason: str, error: BaseException) -> Settlement:
        """Publish the copy with the reason; if that fails, reject, so that the broker dead-letters it without."""
        failed(error)
        queue = self._queue()
        copy = dead_letter_copy(delivery, queue, reason, error, self._clock.now())
        log.error(
            "dead letter: queue=%s reason=%s type=%s message_id=%s error=%s: %s",
            queue.name, reason, delivery.type, delivery.message_id, type(error).__name__, error,
        )  # fmt: skip
        if copy is None:
            self.statistics.dropped += 1
            log.error(
                "dropped, there is no dead letter exchange: queue=%s message_id=%s",
                queue.name,
                delivery.message_id,
            )
            return Settlement.REJECT
        try:
            await self._entomb(copy)
        except WarrenError as problem:
            if isinstance(problem, Unroutable) and not queue.dead_letters_at_least_once:
                self.statistics.dropped += 1
                log.error(
                    "dropped, no queue takes its dead letter: queue=%s message_id=%s error=%s",
                    queue.name, delivery.message_id, problem,
                )  # fmt: skip
            else:
                log.warning(
                    "dead letter copy not confirmed, rejected instead: queue=%s error=%s", queue.name, problem
                )
            return Settlement.REJECT
        self.statistics.dead_lettered += 1
        if self.capture is not None:
            kind = event_prefix(
                DEAD_LETTERED, delivery.exchange, delivery.routing_key, queue.name, reason=reason
            )
            self.capture.add(kind, delivery.message_id or "")
        return Settlement.ACK

    async def _entomb(self, copy: Outgoing) -> None:
        """Publish the copy; where no queue takes it, what should is declared once more before it is given up."""
        try:
            await self._forward(copy)
        except Unroutable:
            if self.redeclare is None:
                raise
            with contextlib.suppress(WarrenError):
                await self.redeclare()
            await self._forward(copy)
