"""Reports about the handlers of one queue: statistics, logs, span status and capture events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec

from warren.core.capture_events import DEAD_LETTERED, event_prefix
from warren.sdk.capture.recorder import Recorder
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.consume.retry import AttemptNumber
from warren.sdk.consume.user_traceback import user_exc_info
from warren.sdk.exception_text import exception_text
from warren.sdk.logger import log
from warren.sdk.telemetry.consume_spans import record_failure
from warren.sdk.topology.queue import Queue

Parameters = ParamSpec("Parameters")


def _raises_nothing(
    report: Callable[Concatenate[HandlerReport, Parameters], None],
) -> Callable[Concatenate[HandlerReport, Parameters], None]:
    """Return a method that logs an error of the report instead of raising it, such as one of a log handler."""

    @wraps(report)
    def guarded(self: HandlerReport, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        try:
            report(self, *arguments, **named)
        except Exception as error:
            with contextlib.suppress(Exception):
                log.error(
                    "event=handler.report_failed report=%s error_type=%s error=%s",
                    report.__name__, type(error).__name__, exception_text(error),
                )  # fmt: skip

    return guarded


@dataclass(slots=True)
class HandlerStatistics:
    """Counts of the outcomes of one queue's handlers since the App started.

    :ivar handled: messages whose handler succeeded.
    :ivar failed_attempts: attempts that raised an error, also if a later attempt succeeded.
    :ivar retried: attempts that were repeated in this process.
    :ivar delayed: messages that were published again with a delay.
    :ivar dead_lettered: dead letter copies that the broker confirmed. Messages that were rejected instead are counted by
        `ConsumerStatistics.rejected`.
    :ivar dropped: messages that no dead letter exchange or queue accepted. They are lost, and logged.
    :ivar error_replies: requests that were answered with an error.
    :ivar unclaimed_replies: replies that reached no queue, because their caller had gone.
    :ivar skipped: messages of a stream whose handler failed, and that `on_error="skip"` left unhandled.
    :ivar passed_over: messages of a stream whose type has no handler of the reader.
    :ivar gathering: messages that wait now until their batch is complete.
    """

    handled: int = 0
    failed_attempts: int = 0
    retried: int = 0
    delayed: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    error_replies: int = 0
    unclaimed_replies: int = 0
    skipped: int = 0
    passed_over: int = 0
    gathering: int = 0


class HandlerReport:
    """Reporter of the outcome of each delivery of one queue: as counts, log records, span status and capture events.

    No method of it changes a delivery or a settlement, and none raises an exception.

    :ivar capture: recorder of capture events, or None if the App does not capture; set for each run of the App.
    """

    def __init__(self) -> None:
        self.statistics: HandlerStatistics = HandlerStatistics()
        self.capture: Recorder | None = None
        self._key_error_logged = False

    @_raises_nothing
    def attempt_failed(
        self,
        handler: HandlerSpec,
        delivery: Delivery,
        error: BaseException,
        number: AttemptNumber | None,
        next_step: str,
        *,
        with_traceback: bool = False,
    ) -> None:
        """Log a failed attempt that is not the last: its number, and what follows.

        :param number: number of the attempt; None if no attempt was counted.
        :param next_step: text, such as `again in 5 s`.
        """
        log.warning(
            "event=handler.failed queue=%s handler=%s type=%s message_id=%s attempt=%s attempts=%s next=%s error_type=%s"
            " error=%s",
            delivery.queue, handler.name, delivery.type, delivery.message_id,
            "-" if number is None else number.attempt, "-" if number is None else number.attempts, next_step,
            type(error).__name__, _one_line(error),
            exc_info=user_exc_info(error, handler.user_function) if with_traceback else None,
        )  # fmt: skip

    @_raises_nothing
    def handler_failed(
        self,
        handler: HandlerSpec,
        delivery: Delivery,
        error: BaseException,
        number: AttemptNumber | None,
        next_step: str,
    ) -> None:
        """Log the last failed attempt in this process, with a traceback that begins in the user's code.

        :param next_step: text, such as `again in 5 s`.
        """
        self.attempt_failed(handler, delivery, error, number, next_step, with_traceback=True)

    @_raises_nothing
    def delivery_failed(self, delivery: Delivery) -> None:
        """Log the exception that is being handled: an error of the SDK or of a plug-in, not of a handler."""
        log.exception("event=delivery.failed queue=%s message_id=%s", delivery.queue, delivery.message_id)

    @_raises_nothing
    def dead_lettering(
        self,
        delivery: Delivery,
        reason: str,
        error: BaseException,
        queue: Queue,
        handler: HandlerSpec | None = None,
        number: AttemptNumber | None = None,
    ) -> None:
        """Mark the processing span as failed, and log that the message is about to be dead-lettered, and to where.

        :param reason: word for the cause, such as `failed`.
        :param error: the error because of which the message is dead-lettered.
        :param queue: the queue that the message was consumed from.
        :param handler: the handler that failed, whose traceback is logged; None if none was called.
        :param number: number of the attempt that failed, if a handler was called.
        """
        record_failure(error)
        log.error(
            "event=message.dead_lettered queue=%s reason=%s handler=%s type=%s message_id=%s attempt=%s attempts=%s"
            " dead_letter_queue=%s error_type=%s error=%s",
            delivery.queue, reason, "-" if handler is None else handler.name, delivery.type, delivery.message_id,
            "-" if number is None else number.attempt, "-" if number is None else number.attempts,
            _destination(queue), type(error).__name__, _one_line(error),
            exc_info=None if handler is None else user_exc_info(error, handler.user_function),
        )  # fmt: skip

    @_raises_nothing
    def dead_lettered(self, delivery: Delivery, reason: str) -> None:
        """Count a dead letter copy that the broker confirmed, and record a capture event for it.

        :param reason: word for the cause, such as `failed`.
        """
        self.statistics.dead_lettered += 1
        if self.capture is not None:
            kind = event_prefix(
                DEAD_LETTERED, delivery.exchange, delivery.routing_key, delivery.queue, reason=reason
            )
            self.capture.add(kind, delivery.message_id or "")

    @_raises_nothing
    def dead_letter_unconfirmed(self, delivery: Delivery, error: Exception) -> None:
        """Log that the broker did not confirm the dead letter copy; the message is rejected instead."""
        log.warning("event=dead_letter.unconfirmed queue=%s error=%s", delivery.queue, _one_line(error))

    @_raises_nothing
    def dropped(self, delivery: Delivery, reason: str) -> None:
        """Count and log a message that is lost, because no dead letter exchange or queue accepts it.

        :param reason: text for the log: why it could not be dead-lettered.
        """
        self.statistics.dropped += 1
        log.error(
            "event=message.dropped queue=%s message_id=%s reason=%s",
            delivery.queue, delivery.message_id, reason,
        )  # fmt: skip

    @_raises_nothing
    def skipped(
        self, delivery: Delivery, reason: str, error: BaseException, handler: HandlerSpec | None
    ) -> None:
        """Count and log a message of a stream that its reader leaves unhandled.

        :param reason: word for the cause, such as `failed`.
        :param handler: the handler that failed, whose traceback is logged; None if none was called.
        """
        self.statistics.skipped += 1
        log.error(
            "event=stream_reader.message_skipped stream=%s offset=%s reason=%s type=%s message_id=%s error_type=%s error=%s",
            delivery.queue, delivery.offset, reason, delivery.type, delivery.message_id, type(error).__name__,
            _one_line(error), exc_info=None if handler is None else user_exc_info(error, handler.user_function),
        )  # fmt: skip

    @_raises_nothing
    def stopped(
        self, delivery: Delivery, reason: str, error: BaseException, handler: HandlerSpec | None
    ) -> None:
        """Log a message of a stream before which its reader stops.

        :param reason: word for the cause, such as `failed`.
        :param handler: the handler that failed, whose traceback is logged; None if none was called.
        """
        log.error(
            "event=stream_reader.stopped stream=%s offset=%s reason=%s type=%s message_id=%s error_type=%s error=%s",
            delivery.queue, delivery.offset, reason, delivery.type, delivery.message_id, type(error).__name__,
            _one_line(error), exc_info=None if handler is None else user_exc_info(error, handler.user_function),
        )  # fmt: skip

    @_raises_nothing
    def reply_unconfirmed(self, delivery: Delivery, error: Exception) -> None:
        """Log that the broker did not confirm a reply; the request is requeued."""
        log.warning("event=reply.unconfirmed queue=%s error=%s", delivery.queue, _one_line(error))

    @_raises_nothing
    def reply_refused(self, delivery: Delivery, error: Exception) -> None:
        """Count and log a reply that can never be published; the caller gets an error reply instead."""
        self.statistics.error_replies += 1
        log.error("event=reply.refused queue=%s error=%s", delivery.queue, _one_line(error))

    @_raises_nothing
    def key_unreadable(self, delivery: Delivery, error: BaseException) -> None:
        """Log the first message of the queue whose `ordered_by` key cannot be computed or compared; ignore further ones."""
        if not self._key_error_logged:
            self._key_error_logged = True
            log.warning(
                "event=ordering_key.failed queue=%s message_id=%s error_type=%s error=%s",
                delivery.queue, delivery.message_id, type(error).__name__, _one_line(error),
            )  # fmt: skip


def _one_line(error: BaseException) -> str:
    return " ".join(exception_text(error).split())


def _destination(queue: Queue) -> str:
    """Return the name of the queue's dead letter queue, or the exchange and key if the queue behind them is not known."""
    if queue.dead_letter_queue is not None:
        return queue.dead_letter_queue.name
    if queue.dead_letter_exchange is None:
        return "none"
    key = queue.dead_letter_key or "*"
    return f"{queue.dead_letter_exchange}/{key}" if queue.dead_letter_exchange else key
