"""Spans and metrics of consuming: handling, `basic.get`, replies, settlements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from time import perf_counter, time_ns
from typing import TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind

from warren.sdk.consume.delivery import Delivery
from warren.sdk.logger import log
from warren.sdk.telemetry import semantic_conventions as c
from warren.sdk.telemetry.instruments import Instruments, mark_failed
from warren.sdk.telemetry.trace_context import (
    context_names,
    creation_context,
    use_context,
    use_creation_context,
)

Result = TypeVar("Result")


class ProcessingSpan:
    """Span of the handling of one message; its method `failed` records a failure that is not raised as an exception."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.error: str | None = None

    def record_failure(self, error: BaseException) -> None:
        """Mark the span as failed by this error. An error of the telemetry is logged and not raised."""
        try:
            self.error = mark_failed(self._span, error)
        except Exception:
            log.exception("event=telemetry.failure_not_recorded error_type=%s", type(error).__name__)


_processing: ContextVar[ProcessingSpan | None] = ContextVar("warren_processing", default=None)


def record_failure(error: BaseException) -> None:
    """Mark the span of the message that is being handled as failed; do nothing if there is no such span.

    An error of the telemetry is logged and not raised.
    """
    processing = _processing.get()
    if processing is not None:
        processing.record_failure(error)


NOTHING = nullcontext()


def processing_scope(
    consuming: ConsumeTelemetry | None, delivery: Delivery, delivery_tag: int
) -> AbstractContextManager[None]:
    """Return the context manager in which a handler runs.

    It records a processing span; without telemetry it only makes the publisher's trace context the current one.

    :param consuming: recorder of the span; None without telemetry.
    :param delivery_tag: attribute of the span; 0 leaves it out.
    """
    if consuming is not None:
        return consuming.processing(delivery, delivery_tag)
    return use_creation_context(delivery) if delivery.may_have_header(context_names) else NOTHING


class ConsumeTelemetry:
    """Recorder of the spans and metrics of one App for handled messages, `basic.get`, replies and settlements."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments

    @contextmanager
    def processing(self, delivery: Delivery, delivery_tag: int) -> Iterator[None]:
        """Record a span for the handling of a message within the block.

        The span is a child of the span that created the message, and linked to it.

        :param delivery_tag: attribute of the span; 0 leaves it out.
        """
        instruments = self._instruments
        context = creation_context(delivery.readable_headers)
        attributes = self._attributes("process", delivery, delivery_tag)
        for name in (c.PEER_ADDRESS, c.PEER_PORT):
            attributes.pop(name, None)
        span = instruments.tracer.start_span(
            c.span_name(attributes),
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_link(context),
        )
        processing = ProcessingSpan(span)
        token = _processing.set(processing)
        started = perf_counter()
        try:
            with (
                use_context(context),
                trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False),
            ):
                try:
                    yield
                except BaseException as error:
                    processing.record_failure(error)
                    raise
        finally:
            _processing.reset(token)
            metric_attributes = instruments.metric_attributes(attributes, processing.error)
            instruments.process_duration.record(perf_counter() - started, metric_attributes)
            instruments.consumed.add(1, metric_attributes)

    def settled(
        self, delivery: Delivery, delivery_tag: int, operation: str, settle: Callable[[], None]
    ) -> None:
        """Settle a message, then record the settlement as a span; an error in
        recording does not prevent the settlement.

        :param delivery_tag: attribute of the span; 0 leaves it out.
        :param operation: `ack`, `nack` or `reject`.
        :param settle: sends the settlement.
        """
        began, started = time_ns(), perf_counter()
        settle()
        taken = perf_counter() - started
        instruments = self._instruments
        try:
            context = creation_context(delivery.readable_headers)
            attributes = self._attributes(operation, delivery, delivery_tag)
            span = instruments.tracer.start_span(
                c.span_name(attributes),
                context=context,
                kind=SpanKind.CLIENT,
                attributes=attributes,
                links=_link(context),
                start_time=began,
            )
            instruments.record_operation(taken, instruments.metric_attributes(attributes, None), attributes)
            span.end(began + int(taken * 1e9))
        except Exception:
            log.exception(
                "event=telemetry.settlement_not_recorded operation=%s queue=%s", operation, delivery.queue
            )

    def received(self, delivery: Delivery | None, delivery_tag: int, queue: str, started: float) -> None:
        """Record a span for a `basic.get` that has returned.

        :param delivery: the message, or None if the queue was empty.
        :param started: time of `perf_counter` at which the `basic.get` was sent.
        """
        instruments = self._instruments
        taken = perf_counter() - started
        if delivery is None:
            attributes = c.operation_attributes("receive") | {c.DESTINATION: queue} | instruments.consuming
        else:
            attributes = self._attributes("receive", delivery, delivery_tag)
        span = instruments.tracer.start_span(
            c.span_name(attributes),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=None if delivery is None else _link(creation_context(delivery.readable_headers)),
            start_time=time_ns() - int(taken * 1e9),
        )
        span.end()
        metric_attributes = instruments.metric_attributes(attributes, None)
        instruments.record_operation(taken, metric_attributes, attributes)
        if delivery is not None:
            instruments.consumed.add(1, metric_attributes)

    def answered(self, reply: Delivery, read: Callable[[], Result]) -> Result:
        """Decode the reply to a call with `read`, and return its value.

        Records a processing span, as a child of the current span, in which the call was made.
        """
        instruments = self._instruments
        attributes = self._attributes("process", reply, 0)
        for name in (c.PEER_ADDRESS, c.PEER_PORT):
            attributes.pop(name, None)
        span = instruments.tracer.start_span(
            c.span_name(attributes),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_link(creation_context(reply.readable_headers)),
        )
        started = perf_counter()
        error: str | None = None
        try:
            return read()
        except Exception as problem:
            error = mark_failed(span, problem)
            raise
        finally:
            span.end()
            metric_attributes = instruments.metric_attributes(attributes, error)
            instruments.process_duration.record(perf_counter() - started, metric_attributes)
            instruments.consumed.add(1, metric_attributes)

    def _attributes(self, operation: str, delivery: Delivery, delivery_tag: int) -> c.Attributes:
        attributes = c.delivery_attributes(operation, delivery, delivery_tag)
        attributes |= self._instruments.consuming
        self._instruments.add_destination_template(attributes, delivery.exchange, delivery.routing_key)
        if self._instruments.options.sizes:
            attributes[c.BODY_SIZE] = len(delivery.body)
        return attributes


def _link(context: Context) -> list[Link] | None:
    found = trace.get_current_span(context).get_span_context()
    return [Link(found)] if found.is_valid else None
