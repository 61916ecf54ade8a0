"""Trace context in message headers: written when a message is published, read when it is handled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opentelemetry import context, propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator

from warren.sdk.consume.delivery import Delivery
from warren.sdk.logger import log

_names: dict[TextMapPropagator, tuple[bytes, ...]] = {}
"""Names of the headers of the global propagator, in UTF-8. It has one entry: a propagator computes them at each access."""


def inject(headers: MutableMapping[str, Any]) -> None:
    """Write the current trace context and baggage into headers, if there is one, as the global propagator does:
    `traceparent`, `tracestate` and `baggage` (W3C) by default.
    """
    current = context.get_current()
    # Nearly always empty in a process that records no traces.
    if current:
        propagate.inject(headers, current)


def context_names() -> tuple[bytes, ...]:
    """Return the names of the headers in which the global propagator writes a context, in UTF-8."""
    propagator = propagate.get_global_textmap()
    names = _names.get(propagator)
    if names is None:
        _names.clear()
        # `traceparent` first: it is the one that most messages have.
        fields = sorted(propagator.fields, key=lambda name: (name != "traceparent", name))
        names = _names[propagator] = tuple(name.encode() for name in fields)
    return names


def creation_context(headers: Mapping[str, Any]) -> Context:
    """Return the trace context and baggage with which a message was created, from its headers; an empty context if they
    have none, or none that the global propagator can read.
    """
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    try:
        return propagate.extract(texts, Context())
    except Exception:
        # Any client can write these headers; they do not decide about the message.
        log.debug("event=telemetry.context_unreadable", exc_info=True)
        return Context()


@contextmanager
def use_context(created: Context) -> Iterator[None]:
    """Make the context of the message's publisher the current one within the block, so that its trace and its baggage
    continue. An empty context changes nothing.
    """
    if not created:
        yield
        return
    token = context.attach(created)
    try:
        yield
    finally:
        context.detach(token)


def use_creation_context(delivery: Delivery) -> AbstractContextManager[None]:
    """Return a context manager that makes the context of the message's publisher the current one, although this App
    records no spans.
    """
    return use_context(creation_context(delivery.readable_headers))
