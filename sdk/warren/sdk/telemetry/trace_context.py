"""Trace context in message headers: written when a message is published, read when it is handled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context

from warren.sdk.consume.delivery import Delivery


def inject(headers: MutableMapping[str, Any]) -> None:
    """Write the trace context of the current span into headers, if there is one:
    `traceparent` and `tracestate` (W3C) by default.
    """
    if trace.get_current_span().get_span_context().is_valid:
        propagate.inject(headers)


def creation_context(headers: Mapping[str, Any]) -> Context:
    """Return the trace context in which a message was created, from its headers; an empty context if they have none."""
    return propagate.extract({k: v for k, v in headers.items() if isinstance(v, str)}, Context())


@contextmanager
def use_creation_context(delivery: Delivery) -> Iterator[None]:
    """Make the trace context of the message's publisher the current one within the block, so that a trace continues
    although this App records no spans.
    """
    token = context.attach(creation_context(delivery.headers))
    try:
        yield
    finally:
        context.detach(token)
