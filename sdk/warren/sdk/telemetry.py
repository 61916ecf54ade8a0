"""Traces: W3C context in the headers, and spans as OpenTelemetry's messaging conventions name them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from warren.sdk.delivery import Delivery

_tracer = trace.get_tracer("warren.sdk")


def inject(headers: MutableMapping[str, Any]) -> None:
    """Add `traceparent` and `tracestate` of the current span, if there is one."""
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)


def publishing(exchange: str, routing_key: str) -> AbstractContextManager[None]:
    """The span of one publish, from its encoding to its confirm; its context is what the message carries."""
    return _publishing(exchange, routing_key) if _recorded() else _NOTHING


def processing(delivery: Delivery, delivery_tag: int) -> AbstractContextManager[None]:
    """The span around a handler; it is a child of the publish and links to it."""
    # Without a tracer the context of the publisher still is the handler's, if there is one.
    return _processing(delivery, delivery_tag) if delivery.traced or _recorded() else _NOTHING


def _recorded() -> bool:
    """Whether anybody hears of a span: a tracer provider has been set, or the environment names one."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


_NOTHING = nullcontext()


@contextmanager
def _publishing(exchange: str, routing_key: str) -> Iterator[None]:
    destination = ":".join(part for part in (exchange, routing_key) if part) or "amq.default"
    attributes = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": destination,
    }
    if routing_key:
        attributes["messaging.rabbitmq.destination.routing_key"] = routing_key
    with (
        _tracer.start_as_current_span(
            f"publish {destination}", kind=SpanKind.PRODUCER, attributes=attributes, record_exception=False
        ) as span,
        _errors_of(span),
    ):
        yield


@contextmanager
def _processing(delivery: Delivery, delivery_tag: int) -> Iterator[None]:
    context = propagate.extract({k: v for k, v in delivery.headers.items() if isinstance(v, str)})
    created = trace.get_current_span(context).get_span_context()
    parts = [delivery.exchange, delivery.routing_key]
    if delivery.routing_key != delivery.queue:
        parts.append(delivery.queue)
    destination = ":".join(part for part in parts if part)
    attributes: dict[str, str | int] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": destination,
        "messaging.rabbitmq.message.delivery_tag": delivery_tag,
    }
    if delivery.routing_key:
        attributes["messaging.rabbitmq.destination.routing_key"] = delivery.routing_key
    if delivery.message_id:
        attributes["messaging.message.id"] = delivery.message_id
    with (
        _tracer.start_as_current_span(
            f"process {destination}",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(created)] if created.is_valid else None,
            record_exception=False,
        ) as span,
        _errors_of(span),
    ):
        yield


@contextmanager
def _errors_of(span: Span) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(StatusCode.ERROR)
        raise
