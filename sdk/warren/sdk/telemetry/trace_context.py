"""Trace context in the headers of messages: who publishes puts it in, who handles takes it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context

from warren.sdk.consume.delivery import Delivery


def inject(headers: MutableMapping[str, Any]) -> None:
    """Add the context of the current span, if there is one: `traceparent` and `tracestate` (W3C) by default."""
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)


def created(headers: Mapping[str, Any]) -> Context:
    """The context that a message was created in; an empty one if its headers carry none."""
    return propagate.extract({k: v for k, v in headers.items() if isinstance(v, str)}, Context())


@contextmanager
def within(delivery: Delivery) -> Iterator[None]:
    """Make the creator's context the current one: without a tracer of our own, others still see the whole way."""
    token = context.attach(created(delivery.headers))
    try:
        yield
    finally:
        context.detach(token)
