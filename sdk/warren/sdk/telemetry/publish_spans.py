"""Spans and metrics of publishing, recorded by a sender around the publisher if there is a telemetry provider."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind

from warren.sdk.app.middleware import OutgoingSender
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.telemetry import semantic_conventions as c
from warren.sdk.telemetry.instruments import Instruments, mark_failed
from warren.sdk.telemetry.trace_context import creation_context


class PublishSpan:
    """Span and metrics of one publish, from the end of the publish middlewares to the confirm."""

    __slots__ = ("_attributes", "_instruments", "_span", "_started")

    def __init__(self, instruments: Instruments, outgoing: Outgoing) -> None:
        attributes = c.outgoing_attributes("publish", outgoing)
        attributes |= instruments.publishing
        instruments.add_destination_template(attributes, outgoing.exchange, outgoing.routing_key)
        if instruments.options.sizes:
            attributes[c.BODY_SIZE] = len(outgoing.body)
            attributes[c.ENVELOPE_SIZE] = len(outgoing.body) + len(outgoing.header())
        self._instruments = instruments
        self._attributes = attributes
        theirs = foreign_context(outgoing)
        batch_span = _batch.get()
        self._span: Span | None = None
        if theirs is None and batch_span is not None:
            batch_span.create(outgoing, attributes)
        elif batch_span is not None:
            batch_span.add(trace.get_current_span(theirs).get_span_context(), attributes)
        else:
            # A context from the user or an earlier publish is kept: it is the creation of the message.
            link = None if theirs is None else trace.get_current_span(theirs).get_span_context()
            self._span = instruments.tracer.start_span(
                c.span_name(attributes),
                kind=SpanKind.PRODUCER if link is None else SpanKind.CLIENT,
                attributes=attributes,
                links=None if link is None else [Link(link)],
            )
            if link is None:
                write_context(outgoing, self._span)
        self._started = perf_counter()

    def end(self, error: BaseException | None) -> None:
        """End the span and record the metrics, with the error of the publish, or None."""
        instruments = self._instruments
        name = None
        if error is not None:
            name = c.error_type(error) if self._span is None else mark_failed(self._span, error)
        metric_attributes = instruments.metric_attributes(self._attributes, name)
        if self._span is not None:
            instruments.record_operation(perf_counter() - self._started, metric_attributes, self._attributes)
            self._span.end()
        instruments.sent.add(1, metric_attributes)

    def done(self, confirm: asyncio.Future[None]) -> None:
        """End the span and record the metrics, with the result of the confirm."""
        self.end(asyncio.CancelledError() if confirm.cancelled() else confirm.exception())


class TracedSender:
    """Sender that wraps another one and records a span and metrics for each message."""

    def __init__(self, sender: OutgoingSender, instruments: Instruments) -> None:
        self._sender = sender
        self._instruments = instruments

    async def publish(self, outgoing: Outgoing, timeout: float) -> None:
        with _recording(self._instruments, outgoing):
            await self._sender.publish(outgoing, timeout)

    async def submit(
        self, outgoing: Outgoing, timeout: float, before_write: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        publish = PublishSpan(self._instruments, outgoing)
        try:
            confirm = await self._sender.submit(outgoing, timeout, before_write)
        except BaseException as error:
            publish.end(error)
            raise
        confirm.add_done_callback(publish.done)
        return confirm

    async def publish_unconfirmed(self, outgoing: Outgoing, timeout: float) -> None:
        with _recording(self._instruments, outgoing):
            await self._sender.publish_unconfirmed(outgoing, timeout)


def record_publish(
    instruments: Instruments, write: Callable[[Outgoing], Awaitable[None]]
) -> Callable[[Outgoing], Awaitable[None]]:
    """Return a function that calls `write` and records it as a publish; for transactions, which have no confirms."""

    async def publish(outgoing: Outgoing) -> None:
        with _recording(instruments, outgoing):
            await write(outgoing)

    return publish


@contextmanager
def _recording(instruments: Instruments, outgoing: Outgoing) -> Iterator[None]:
    publish = PublishSpan(instruments, outgoing)
    try:
        yield
    except BaseException as error:
        publish.end(error)
        raise
    publish.end(None)


class BatchSpan:
    """The one OpenTelemetry span of a bulk publish, instead of a publish span for each message.

    It has the kind CLIENT, the number of messages, and a link to each create span: a separate span for the creation of
    a message, by `Telemetry.create_spans` or by the user.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._attributes = c.operation_attributes("publish") | instruments.publishing
        self._span = instruments.tracer.start_span(
            "publish", kind=SpanKind.CLIENT, attributes=self._attributes
        )
        self._started = perf_counter()
        self._count = 0
        self._destinations: set[str] = set()

    def create(self, outgoing: Outgoing, attributes: c.Attributes) -> None:
        """Count a message that has no trace context, and write one into its headers.

        That is the context of a create span of its own if `Telemetry.create_spans` is set, otherwise of the batch span.

        :param attributes: publish attributes of the message, for the create span.
        """
        span = self._span
        if self._instruments.options.create_spans:
            shown = attributes | c.operation_attributes("create")
            span = self._instruments.tracer.start_span(
                c.span_name(shown), kind=SpanKind.PRODUCER, attributes=shown
            )
            span.end()
        write_context(outgoing, span)
        self.add(None if span is self._span else span.get_span_context(), attributes)

    def add(self, creation: trace.SpanContext | None, attributes: c.Attributes) -> None:
        """Count a message of the batch, and link the batch span to the span that created the message.

        :param creation: the span that created the message; None, without a link, if that is the batch span.
        :param attributes: publish attributes of the message, from which its destination is read.
        """
        self._count += 1
        self._destinations.add(str(attributes.get(c.TEMPLATE, attributes[c.DESTINATION])))
        if creation is not None:
            self._span.add_link(creation)

    def end(self, error: BaseException | None) -> None:
        """End the span with the error of the batch, or None."""
        found: c.Attributes = {c.BATCH_COUNT: self._count}
        if len(self._destinations) == 1:
            found[c.DESTINATION] = next(iter(self._destinations))
        self._attributes |= found
        self._span.set_attributes(found)
        self._span.update_name(c.span_name(self._attributes))
        name = None if error is None else mark_failed(self._span, error)
        metric_attributes = self._instruments.metric_attributes(self._attributes, name)
        self._instruments.record_operation(
            perf_counter() - self._started, metric_attributes, self._attributes
        )
        self._span.end()


_batch: ContextVar[BatchSpan | None] = ContextVar("warren_batch", default=None)


@contextmanager
def batch_span(instruments: Instruments) -> Iterator[None]:
    """Record all publishes within the block in one span, a `BatchSpan`.

    The span ends with the block. An exception of the block marks it as failed.
    """
    span = BatchSpan(instruments)
    token = _batch.set(span)
    try:
        yield
    except BaseException as error:
        span.end(error)
        raise
    else:
        span.end(None)
    finally:
        _batch.reset(token)


def foreign_context(outgoing: Outgoing) -> Context | None:
    """Return the trace context that the user or an earlier publisher has put into the message's headers, or None.

    None also if it is the context of the current span. The message then gets a publish span, as a child of that span.
    """
    fields = propagate.get_global_textmap().fields
    if not any(name in outgoing.headers for name in fields):
        return None
    own: dict[str, str] = {}
    propagate.inject(own)
    headers = {
        name: getattr(value, "value", value) for name, value in outgoing.headers.items() if name in fields
    }
    if headers == own:
        return None
    found = creation_context(headers)
    # Baggage alone names no span that created the message.
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def write_context(outgoing: Outgoing, span: Span) -> None:
    """Write the trace context of the span into the message's headers.

    Consumers then take that span for the one that created the message.
    """
    fields: dict[str, str] = {}
    propagate.inject(fields, trace.set_span_in_context(span))
    for name, value in fields.items():
        outgoing.set_header(name, value)
