"""Endpoint: dispatch of a queue's deliveries to its handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextvars import Context
from typing import Any

from warren.sdk.app.middleware import Middlewares
from warren.sdk.consume.attempts import Attempts, HandlingFailed
from warren.sdk.consume.batches import BatchCollector
from warren.sdk.consume.consumer_options import ConsumerOptions
from warren.sdk.consume.delivery import CURRENT, Delivery
from warren.sdk.consume.handler_report import HandlerReport, HandlerStatistics
from warren.sdk.consume.handler_tasks import OrderingKey
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.consume.handling_log import log_handling
from warren.sdk.consume.settlement import Send, Settlement, Settler
from warren.sdk.consume.task_ends import ends_task
from warren.sdk.errors import ConfigError
from warren.sdk.logger import log
from warren.sdk.messages.codec import decode
from warren.sdk.messages.types import Event, wire_names
from warren.sdk.protocols import Clock, DelayBackend, Idempotency, RetryPolicy
from warren.sdk.rpc.replies import wants_reply
from warren.sdk.telemetry.consume_spans import ConsumeTelemetry, processing_scope
from warren.sdk.topology.queue import Queue


class Endpoint:
    """Dispatcher of one queue's deliveries to the handlers of that queue.

    A delivery takes three steps: `Attempts` runs its handler, `Settler` turns the result or error into a settlement,
    and `HandlerReport` counts, logs, and records capture events. One processing span covers them all.

    :param send: publishes replies as mandatory, with confirm, through the publish middlewares.
    :param forward: publishes dead letter copies as mandatory, with confirm, without middlewares.
    :param retry: policy for handlers that have none of their own.
    :ivar telemetry: creates the spans, or None if the App has no telemetry; set for each run of the App.
    """

    def __init__(
        self,
        queue: Callable[[], Queue],
        *,
        options: ConsumerOptions,
        send: Send,
        forward: Send,
        middlewares: Middlewares,
        clock: Clock,
        retry: RetryPolicy,
        delay: Callable[[], DelayBackend],
    ) -> None:
        self.options: ConsumerOptions = options
        self.report: HandlerReport = HandlerReport()
        self.settler: Settler = Settler(
            queue, self.report, send=send, forward=forward, clock=clock, retry=retry, delay=delay
        )
        self.telemetry: ConsumeTelemetry | None = None
        self._queue = queue
        self._attempts = Attempts(middlewares, clock, retry, self.report)
        self._specs: dict[str, HandlerSpec] = {}
        """Handlers by the `type` property of their messages and by their aliases; "" for a handler of foreign content."""
        self._handlers: tuple[HandlerSpec, ...] = ()
        self._context = Context()

    def add(self, handler: HandlerSpec) -> None:
        """Add a handler for its message type and the aliases of it.

        :raises ConfigError: if the queue has a handler for one of these names already. A
            handler of foreign content, which has no type, must be the only one.
        """
        names = wire_names(handler.kind)
        for other in self._handlers:
            taken = sorted(set(names) & set(wire_names(other.kind)))
            if taken and other.kind is not handler.kind and taken != [""]:
                raise ConfigError(
                    f"queue {self._queue().name!r} has handlers of {other.kind.__name__} and {handler.kind.__name__},"
                    f" which both have the type or alias {taken[0]!r}: a message of this type has one reader"
                )
            if taken or "" in names or "" in self._specs:
                raise ConfigError(self._second_handler(handler, other))
        self._specs.update(dict.fromkeys(names, handler))
        self._handlers += (handler,)

    def _second_handler(self, handler: HandlerSpec, other: HandlerSpec) -> str:
        queue = self._queue().name
        kind = getattr(handler.kind, "__name__", str(handler.kind))
        if other.kind is not handler.kind:
            first = getattr(other.kind, "__name__", str(other.kind))
            return (
                f"queue {queue!r} has a handler for all its messages already: {other.name} takes {first}, and a second"
                f" one, {handler.name} for {kind}, needs a queue of its own"
            )
        remedy = (
            "bind another queue for it, @app.handle(..., queue='ANOTHER'), to get a copy of each message"
            if isinstance(handler.kind, type) and issubclass(handler.kind, Event)
            else "call both from one handler"
        )
        return (
            f"queue {queue!r} has a handler for {kind} already, {other.name}, and a message goes to one handler of its"
            f" queue: {handler.name} cannot be another; {remedy}"
        )

    def replace_handlers(self, replacement: Callable[[HandlerSpec], HandlerSpec]) -> None:
        """Replace each handler by what `replacement` returns for it."""
        self._specs = {name: replacement(handler) for name, handler in self._specs.items()}

    def begin(self, context: Context) -> None:
        """Prepare the handlers for a run of the App.

        :param context: the context of the App's start, of which each call of a handler gets a copy.
        """
        self._context = context
        for collector in self._collectors:
            collector.context = context

    def close_batches(self) -> None:
        """Pass incomplete batches to their handlers, because the App stops."""
        for collector in self._collectors:
            collector.close_batch()

    @property
    def _collectors(self) -> list[BatchCollector]:
        return [handler.invoker for handler in self._handlers if isinstance(handler.invoker, BatchCollector)]

    @property
    def statistics(self) -> HandlerStatistics:
        return self.report.statistics

    @property
    def handlers(self) -> tuple[HandlerSpec, ...]:
        return self._handlers

    @property
    def onces(self) -> list[Idempotency]:
        """The idempotency object (`once=`) of each handler that has one."""
        return [handler.once for handler in self._handlers if handler.once is not None]

    async def process_apart(self, delivery: Delivery, delivery_tag: int) -> Settlement:
        """Process a delivery that was not consumed from a queue, in a task and a context of its own as `HandlerTasks` does.

        :raises asyncio.CancelledError: if the calling task is cancelled.
        """
        task = asyncio.Task(self.process(delivery, delivery_tag), context=self._context.copy())
        try:
            return await task
        except asyncio.CancelledError as error:
            if ends_task(error):
                raise
            failure: BaseException = error
        except GeneratorExit as error:
            if not task.done():
                # The event loop has ended, and this coroutine is closed.
                raise
            failure = error
        return await self.give_up(delivery, failure)

    def process(self, delivery: Delivery, delivery_tag: int) -> Coroutine[Any, Any, Settlement]:
        """Pass one delivery to its handler, as `_process_in_span` does; at debug level, log it with its outcome.

        To be called in a task that handles nothing else: the delivery stays its current one.
        """
        handling = self._process_in_span(delivery, delivery_tag)
        if not log.isEnabledFor(logging.DEBUG):
            return handling
        handler = self._handler_for(delivery)
        return log_handling(handling, delivery, "-" if handler is None else handler.name)

    async def _process_in_span(self, delivery: Delivery, delivery_tag: int) -> Settlement:
        """Pass one delivery to its handler, with retries; publish the reply or dead letter copy if there is one; return
        how to settle the delivery.

        :raises asyncio.CancelledError: if the task was cancelled: by the App, or by the handler itself.
        :raises GeneratorExit: if the handler raised it, or the event loop has ended.
        :raises KeyboardInterrupt: if the program ends.
        :raises SystemExit: if the handler ends the program. No other exception leaves this method.
        """
        settlement: Settlement | None = None
        CURRENT.set(delivery)
        try:
            with processing_scope(self.telemetry, delivery, delivery_tag):
                settlement = await self._process(delivery)
        except BaseException as error:
            if ends_task(error):
                raise
            # The settler handles a handler's errors; this one comes from the SDK or a plug-in.
            self.report.delivery_failed(delivery)
            return settlement or await self.give_up(delivery, error)
        return settlement

    async def give_up(self, delivery: Delivery, error: BaseException) -> Settlement:
        """Answer a request with an error reply, or dead-letter another message, because it cannot be handled; return the
        settlement.

        :param error: the error with which handling the message ended.
        """
        return await self.settler.give_up(self._handler_for(delivery), delivery, error)

    async def _process(self, delivery: Delivery) -> Settlement:
        settler = self.settler
        handler = self._handler_for(delivery)
        if handler is None:
            types = ", ".join(map(repr, self._specs))
            what = f"type {delivery.type!r}" if delivery.type else "a message without a type"
            error = ValueError(
                f"queue {delivery.queue!r} has no handler for {what}: its handlers take {types}"
            )
            takes_calls = any(each.reply is not None for each in self._handlers)
            return await settler.after_unknown_type(delivery, error, takes_calls=takes_calls)
        if handler.reply is not None and delivery.has_expired and wants_reply(delivery):
            late = TimeoutError("the caller has stopped waiting for the reply")
            return await settler.dead_letter(delivery, "expired", late)
        try:
            result = await self._attempts.run(handler, delivery)
        except HandlingFailed as failed:
            return await settler.after_failure(handler, delivery, failed.error, failed.attempts)
        except Exception as error:
            return await settler.after_error(handler, delivery, error)
        except BaseException as error:
            if ends_task(error):
                raise
            return await settler.after_failure(handler, delivery, error)
        settler.succeeded()
        if handler.reply is not None and wants_reply(delivery):
            return await settler.reply(handler, delivery, result)
        return Settlement.ACK

    @property
    def ordering_key(self) -> OrderingKey | None:
        """The `ordered_by` key of the deliveries; None without this option."""
        if self.options.ordered_by is None:
            return None
        return OrderingKey(self._ordering_key, self.report.key_unreadable)

    def _ordering_key(self, delivery: Delivery) -> Hashable:
        """Return the `ordered_by` key of a delivery, or None if it cannot be computed.

        Handle middlewares run later and do not affect the key. Deliveries whose key cannot be computed share the key
        None: they are handled one at a time, which is slow but keeps their order.
        """
        ordered_by = self.options.ordered_by
        try:
            if isinstance(ordered_by, str):
                key: Hashable = delivery.headers.get(ordered_by)
                return key
            handler = self._handler_for(delivery)
            if handler is None or ordered_by is None:
                return None
            return ordered_by(decode(handler.kind, delivery))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A function of the user's runs here, for each message as it arrives: an error would end the connection.
            self.report.key_unreadable(delivery, error)
            return None

    def _handler_for(self, delivery: Delivery) -> HandlerSpec | None:
        """Return the handler for the delivery's `type` property, or None if no handler is registered for it.

        If the queue has only one handler, it also gets deliveries without a type, because other publishers may set
        none. A handler of foreign content gets deliveries of all types.
        """
        kind = delivery.properties.get("type")
        specs = self._specs
        if kind:
            return specs.get(str(kind)) or specs.get("")
        return self._handlers[0] if len(self._handlers) == 1 else None
