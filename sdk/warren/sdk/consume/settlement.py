"""Settlement of deliveries: acknowledge, requeue, delay, dead-letter, and reply to requests."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Final

from warren.sdk.consume.attempts import Abandoned
from warren.sdk.consume.circuit_breaker import Circuit
from warren.sdk.consume.dead_letters import CopySize, dead_letter_copy, publish_fitting
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.handler_report import HandlerReport
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.consume.handling_outcome import note_outcome
from warren.sdk.consume.retry import AttemptNumber
from warren.sdk.durations import duration
from warren.sdk.errors import (
    Ack,
    DeadLetter,
    HandlerOutcome,
    RemoteError,
    Requeue,
    RetryLater,
    Undecodable,
    UnknownContentEncoding,
    UnknownContentType,
    Unroutable,
    WarrenError,
)
from warren.sdk.exception_text import exception_text
from warren.sdk.protocols import Clock, DelayBackend, RetryPolicy
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.rpc.replies import error_reply, reply, wants_reply
from warren.sdk.telemetry.consume_spans import record_failure
from warren.sdk.topology.queue import Queue

Send = Callable[[Outgoing], Awaitable[None]]
"""Function that publishes a message and returns after the broker's confirm."""


class Settlement(Enum):
    """Settlement of a delivery: acknowledge, return to the queue, or reject."""

    ACK = "ack"
    REQUEUE = "requeue"
    """The handler returned the message to its queue: RabbitMQ counts a failed delivery (`x-delivery-count`)."""
    RELEASE = "release"
    """The message returns to its queue because no handler completed it: this does not count as a failed delivery."""
    REJECT = "reject"
    """The broker dead-letters or drops the message."""


OPERATIONS: Final = {
    Settlement.ACK: "ack",
    Settlement.REQUEUE: "reject",
    Settlement.RELEASE: "nack",
    Settlement.REJECT: "reject",
}
"""AMQP method of each settlement, without the `basic.`"""
UNREADABLE: Final[dict[type[ValueError], str]] = {
    UnknownContentType: "unknown_content_type",
    UnknownContentEncoding: "unknown_content_encoding",
}
"""Reasons of dead letters whose content could not be decoded, by the error; for others it is `undecodable`."""


class Settler:
    """Settler of one queue's deliveries: it decides on the settlement after their handler returned or raised.

    It also publishes the reply, delayed copy or dead letter copy that must be confirmed before the settlement is sent.

    :param queue: returns the queue as it is declared now.
    :param send: publishes replies as mandatory, with confirm, through the publish middlewares.
    :param forward: publishes dead letter copies as mandatory, with confirm, without middlewares.
    :param retry: policy for handlers that have none of their own.
    :ivar circuit: circuit breaker of the queue's subscription, or None; set for each run of the App.
    """

    def __init__(
        self,
        queue: Callable[[], Queue],
        report: HandlerReport,
        *,
        send: Send,
        forward: Send,
        clock: Clock,
        retry: RetryPolicy,
        delay: Callable[[], DelayBackend],
    ) -> None:
        self.circuit: Circuit | None = None
        self._queue = queue
        self._report = report
        self._send = send
        self._forward = forward
        self._clock = clock
        self._retry = retry
        self._delay = delay

    def succeeded(self) -> None:
        """Count a handled message in the statistics, and report the success to the circuit breaker."""
        self._report.statistics.handled += 1
        if self.circuit is not None:
            self.circuit.succeeded()

    async def reply(self, handler: HandlerSpec, delivery: Delivery, result: bytes) -> Settlement:
        """Publish a request's reply; return the settlement of the request,
        which is to acknowledge it after the confirm.

        :param result: the handler's result, encoded by the reply codec of the request.
        """
        assert handler.reply is not None
        kind, body = handler.reply.split(result)
        return await self._publish_reply(delivery, reply(delivery, kind, body, self._clock.now()))

    async def after_error(self, handler: HandlerSpec, delivery: Delivery, error: Exception) -> Settlement:
        """Publish whatever the error requires (a delayed copy, a dead letter copy or an error reply), and return the
        settlement of the delivery.

        :param error: the outcome that the handler raised, or the error of its last attempt.
        """
        match error:
            case Ack():
                self.succeeded()
                return Settlement.ACK
            case Abandoned():
                return Settlement.RELEASE
            case _ if delivery.lost:
                return self._lost(delivery)
            case Requeue():
                return Settlement.REQUEUE
            case DeadLetter():
                return await self._after_dead_letter(handler, delivery, error)
            case Undecodable():
                return await self._after_undecodable(handler, delivery, error)
            case RetryLater(after=after) if after is not None:
                return await self._redeliver(delivery, duration(after))
            case _:
                return await self.after_failure(handler, delivery, error)

    async def dead_letter(
        self,
        delivery: Delivery,
        reason: str,
        error: BaseException,
        handler: HandlerSpec | None = None,
        number: AttemptNumber | None = None,
    ) -> Settlement:
        """Publish a dead letter copy with the reason, and return the settlement: acknowledge after the confirm.

        If the copy cannot be published, the settlement is a rejection: the broker then dead-letters the message without
        the reason, or drops it if the queue has no dead letter exchange. A queue that has one only for the SDK, not on
        the broker, gets the message back.

        :param reason: word for the cause, such as `failed`.
        :param handler: the handler that failed, or None if none was called.
        :param number: number of the attempt that failed, if a handler was called.
        """
        if delivery.lost:
            return self._lost(delivery)
        report = self._report
        queue = self._queue()
        report.dead_lettering(delivery, reason, error, queue, handler, number)
        if queue.dead_letter_exchange is None:
            report.dropped(delivery, "no dead letter exchange")
            return Settlement.REJECT
        make = partial(dead_letter_copy, delivery, queue, reason, error, self._clock.now())
        try:
            await self._publish_dead_letter(make, (CopySize.WHOLE, CopySize.BRIEF))
        except Exception as problem:
            if not isinstance(problem, WarrenError):
                report.delivery_failed(delivery)
            if not queue.is_dead_lettered_by_broker:
                report.dead_letter_unconfirmed(delivery, problem)
                return Settlement.REQUEUE
            if isinstance(problem, Unroutable) and not queue.dead_letters_at_least_once:
                report.dropped(delivery, exception_text(problem))
            else:
                report.dead_letter_unconfirmed(delivery, problem)
            return Settlement.REJECT
        report.dead_lettered(delivery, reason)
        note_outcome("dead_lettered")
        return Settlement.ACK

    async def _publish_dead_letter(
        self, make: Callable[[CopySize], Outgoing], sizes: tuple[CopySize, ...]
    ) -> None:
        """Publish a dead letter copy of the first of these sizes whose headers fit in a frame; see `publish_fitting`."""
        await publish_fitting(self._forward, make, sizes)

    async def after_unknown_type(
        self, delivery: Delivery, error: Exception, *, takes_calls: bool
    ) -> Settlement:
        """Answer a request that has no handler with an error reply, or dead-letter the message.

        :param takes_calls: whether a handler of the queue answers requests. If none does, nobody waits for its replies.
        """
        if takes_calls and wants_reply(delivery):
            refusal = RemoteError("unknown_type", exception_text(error))
            return await self._publish_reply(delivery, error_reply(delivery, refusal, self._clock.now()))
        return await self.dead_letter(delivery, "unknown_type", error)

    async def _after_undecodable(
        self, handler: HandlerSpec, delivery: Delivery, error: Undecodable
    ) -> Settlement:
        if handler.reply is not None and wants_reply(delivery):
            refusal = RemoteError("undecodable", exception_text(error))
            return await self._publish_reply(delivery, error_reply(delivery, refusal, self._clock.now()))
        reason = UNREADABLE.get(type(error.error), "undecodable")
        return await self.dead_letter(delivery, reason, error.error)

    async def _after_dead_letter(
        self, handler: HandlerSpec, delivery: Delivery, error: DeadLetter
    ) -> Settlement:
        """Dead-letter the message, then answer a request with an error; return the settlement.

        A request that returns to its queue is not answered: it is handled again.
        """
        settlement = await self.dead_letter(delivery, "rejected", error)
        if handler.reply is not None and wants_reply(delivery) and settlement is not Settlement.REQUEUE:
            self._report.statistics.error_replies += 1
            refusal = RemoteError("rejected", exception_text(error))
            try:
                await self._send(error_reply(delivery, refusal, self._clock.now()))
            except Unroutable:
                self._report.statistics.unclaimed_replies += 1
            except Exception as problem:
                # The dead letter exists: a request that is handled again would make a second one.
                self._report.reply_unconfirmed(delivery, problem)
        return settlement

    async def after_failure(
        self, handler: HandlerSpec, delivery: Delivery, error: BaseException, attempts: int = 1
    ) -> Settlement:
        """Settle a message whose handler failed, and return the settlement.

        If the circuit breaker is open, the message returns to its queue. Otherwise, if the retry policy returns a
        delay, a copy of the message is published with that delay. If it returns None, if the copy can never be published,
        or if the error is no `Exception`, a request gets an error reply, and another message is dead-lettered. The failure
        is logged with its number and what follows.

        :param attempts: number of attempts in this process.
        """
        if delivery.lost:
            return self._lost(delivery)
        is_answer = isinstance(error, RemoteError)
        circuit_open = self.circuit is not None and self.circuit.failed(error)
        record_failure(error)
        if circuit_open:
            return Settlement.RELEASE
        policy = handler.retry or self._retry
        number = AttemptNumber.of(policy, delivery, attempts)
        if isinstance(error, Exception) and not is_answer:
            try:
                after = policy.delay(error, delivery)
                if after is not None:
                    next_step = f"again in {after.total_seconds():g} s"
                    self._report.handler_failed(handler, delivery, error, number, next_step)
                    return await self._redeliver(delivery, after)
            except HandlerOutcome:
                raise
            except Exception as problem:
                # No copy for another attempt is published: its headers fit in no frame, for example, or the policy failed.
                if not isinstance(problem, WarrenError):
                    self._report.delivery_failed(delivery)
                with contextlib.suppress(Exception):
                    error.add_note(f"The message is not handled again: {exception_text(problem)}")
        return await self.give_up(handler, delivery, error, number)

    async def give_up(
        self,
        handler: HandlerSpec | None,
        delivery: Delivery,
        error: BaseException,
        number: AttemptNumber | None = None,
    ) -> Settlement:
        """Answer a request with an error reply, or dead-letter another message; return the settlement. Nothing that fails
        meanwhile is raised.

        :param handler: the handler that failed, or None if none was called.
        :param number: number of the attempt that failed; None if no attempt was counted.
        """
        try:
            if handler is None or handler.reply is None or not wants_reply(delivery):
                return await self.dead_letter(delivery, "failed", error, handler, number)
            if not isinstance(error, RemoteError):
                self._report.handler_failed(handler, delivery, error, number, "error reply")
            self._report.statistics.error_replies += 1
            note_outcome("error_reply")
            return await self._publish_reply(delivery, error_reply(delivery, error, self._clock.now()))
        except Exception:
            self._report.delivery_failed(delivery)
            queue = self._queue()
            is_safe = queue.dead_letter_exchange is None or queue.is_dead_lettered_by_broker
            return Settlement.REJECT if is_safe else Settlement.REQUEUE

    def _lost(self, delivery: Delivery) -> Settlement:
        """Leave a message whose handling failed to its next delivery, because its channel is lost: publish nothing."""
        note_outcome("lost")
        return Settlement.RELEASE

    async def _redeliver(self, delivery: Delivery, after: timedelta) -> Settlement:
        await self._delay().redeliver(delivery, delivery.queue, after)
        self._report.statistics.delayed += 1
        note_outcome("delayed")
        return Settlement.ACK

    async def _publish_reply(
        self, delivery: Delivery, answer: Outgoing, *, is_last: bool = False
    ) -> Settlement:
        """Publish a reply; return the settlement of its request, which is to acknowledge it after the reply's confirm.

        An unroutable reply is no error, because its caller has gone. If the reply is not confirmed for a reason that
        may pass, the request is requeued. A reply that can never be published is replaced by an error reply. If that
        fails as well (`is_last`), the request is dead-lettered.
        """
        try:
            await self._send(answer)
        except Unroutable:
            self._report.statistics.unclaimed_replies += 1
        except Exception as error:
            if isinstance(error, WarrenError) and (error.retryable or error.outcome == "unknown"):
                self._report.reply_unconfirmed(delivery, error)
                return Settlement.REQUEUE
            if is_last:
                return await self.dead_letter(delivery, "reply_refused", error)
            self._report.reply_refused(delivery, error)
            refusal = RemoteError("reply_refused", exception_text(error))
            answer = error_reply(delivery, refusal, self._clock.now())
            return await self._publish_reply(delivery, answer, is_last=True)
        return Settlement.ACK
