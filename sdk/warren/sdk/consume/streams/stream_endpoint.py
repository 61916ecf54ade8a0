"""Endpoint of a stream reader: a failed message is repeated here, because a stream takes no message back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from warren.sdk.app.middleware import Middlewares
from warren.sdk.consume.consumer_options import ConsumerOptions
from warren.sdk.consume.dead_letters import DEAD_QUEUE, CopySize, dead_letter_copy
from warren.sdk.consume.delivery import ATTEMPT, Delivery
from warren.sdk.consume.endpoint import Endpoint
from warren.sdk.consume.handler_report import HandlerReport
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.consume.handling_outcome import note_outcome
from warren.sdk.consume.retry import AttemptNumber
from warren.sdk.consume.settlement import Send, Settlement, Settler
from warren.sdk.consume.streams.reader_options import ReaderOptions
from warren.sdk.errors import HandlerOutcome, Requeue
from warren.sdk.logger import log
from warren.sdk.protocols import Clock, DelayBackend, RetryPolicy
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.telemetry.consume_spans import record_failure
from warren.sdk.topology.queue import Queue

DEAD_READER: Final = "warren-dead-reader"
"""Header of a dead letter copy with the name of the reader; `warren-dead-queue` has the name of its stream."""
REPEAT_SECONDS: Final = 1.0
"""Seconds before a message is repeated whose handler raised `Requeue`, or whose dead letter copy was not confirmed."""


class _RepeatLater(HandlerOutcome):
    """The message is to be handled again after some time, in this process."""

    counted_as = "delayed"

    def __init__(self, after: timedelta) -> None:
        super().__init__(after)
        self.after: timedelta = after


class StreamSettler(Settler):
    """Settler of a reader's deliveries: `Settlement.ACK` if the reader goes on, `Settlement.RELEASE` if it stops before the
    message.

    :ivar stop_reader: called with the delivery and the error if the reader is to stop; set for each run of the App.
    """

    def __init__(
        self,
        reader: ReaderOptions,
        queue: Callable[[], Queue],
        report: HandlerReport,
        *,
        send: Send,
        forward: Send,
        clock: Clock,
        retry: RetryPolicy,
        delay: Callable[[], DelayBackend],
    ) -> None:
        super().__init__(queue, report, send=send, forward=forward, clock=clock, retry=retry, delay=delay)
        self.stop_reader: Callable[[Delivery, BaseException], None] = _ignore
        self._reader = reader

    async def after_error(self, handler: HandlerSpec, delivery: Delivery, error: Exception) -> Settlement:
        if isinstance(error, Requeue):
            raise _RepeatLater(timedelta(seconds=REPEAT_SECONDS))
        return await super().after_error(handler, delivery, error)

    async def dead_letter(
        self,
        delivery: Delivery,
        reason: str,
        error: BaseException,
        handler: HandlerSpec | None = None,
        number: AttemptNumber | None = None,
    ) -> Settlement:
        """Apply the reader's policy to a message that cannot be handled, and return the settlement.

        A dead letter copy is published until the broker confirms it: the message stays in the stream, but nobody would
        know that it was not handled.

        :param reason: word for the cause, such as `failed`.
        :param handler: the handler that failed, or None if none was called.
        :param number: number of the attempt that failed, if a handler was called.
        """
        if self._reader.on_error == "stop":
            record_failure(error)
            if not delivery.replayed:
                self.stop_reader(delivery, error)
            self._report.stopped(delivery, reason, error, handler)
            return Settlement.RELEASE
        if self._reader.on_error == "skip":
            record_failure(error)
            self._report.skipped(delivery, reason, error, handler)
            note_outcome("skipped")
            return Settlement.ACK
        source = self._reader.dead_letter_source
        self._report.dead_lettering(delivery, reason, error, source, handler, number)

        def make(size: CopySize) -> Outgoing:
            copy = dead_letter_copy(delivery, source, reason, error, self._clock.now(), size)
            copy.set_header(DEAD_QUEUE, self._reader.stream)
            copy.set_header(DEAD_READER, self._reader.reader)
            return copy

        while True:
            try:
                # The stream keeps the message with all its headers.
                await self._publish_dead_letter(make, (CopySize.WHOLE, CopySize.BRIEF, CopySize.BARE))
                break
            except Exception as problem:
                self._report.dead_letter_unconfirmed(delivery, problem)
                await self._clock.sleep(REPEAT_SECONDS)
        self._report.dead_lettered(delivery, reason)
        note_outcome("dead_lettered")
        return Settlement.ACK

    async def _redeliver(self, delivery: Delivery, after: timedelta) -> Settlement:
        raise _RepeatLater(after)


class StreamEndpoint(Endpoint):
    """Dispatcher of one reader's deliveries to its handlers.

    It differs from that of a queue: a message of a type without a handler is passed over, because the readers of a stream
    need not handle all its types; and redeliveries with a delay are waits in this process, which keep the order.

    :ivar reader: options of the reader.
    """

    def __init__(
        self,
        queue: Callable[[], Queue],
        reader: ReaderOptions,
        *,
        options: ConsumerOptions,
        send: Send,
        forward: Send,
        middlewares: Middlewares,
        clock: Clock,
        retry: RetryPolicy,
        delay: Callable[[], DelayBackend],
    ) -> None:
        super().__init__(
            queue,
            options=options,
            send=send,
            forward=forward,
            middlewares=middlewares,
            clock=clock,
            retry=retry,
            delay=delay,
        )
        self.reader: ReaderOptions = reader
        self._clock = clock
        self.stream_settler: StreamSettler = StreamSettler(
            reader, queue, self.report, send=send, forward=forward, clock=clock, retry=retry, delay=delay
        )
        self.settler: Settler = self.stream_settler

    async def _process(self, delivery: Delivery) -> Settlement:
        if self._handler_for(delivery) is None:
            self.statistics.passed_over += 1
            return Settlement.ACK
        current = delivery
        while True:
            try:
                return await super()._process(current)
            except _RepeatLater as later:
                self.statistics.delayed += 1
                log.debug(
                    "event=stream_reader.repeat_scheduled reader=%s offset=%s seconds=%s",
                    self.reader.name, delivery.offset, later.after.total_seconds(),
                )  # fmt: skip
                handling = delivery.handling
                if handling is not None:
                    if handling.stopping:
                        return Settlement.RELEASE
                    handling.pausing = True
                await self._clock.sleep(later.after.total_seconds())
                if handling is not None:
                    handling.pausing = False
                # The headers of a message that could be handled once can be read, or its handler reads none.
                current = delivery.replace(
                    headers={**delivery.readable_headers, ATTEMPT: current.attempt + 1}
                )


def _ignore(delivery: Delivery, error: BaseException) -> None:
    """Do nothing; takes the place of `stop_reader` before the App has started."""
