"""Spans of OpenTelemetry's SDK from the noted steps of messages. Imported only if spans are on."""

from __future__ import annotations

import hashlib
import random
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from warren.broker.model.capture.message_spans import DELIVER, DROP, ENQUEUE, MessageStep
from warren.wire import properties
from warren.wire.field_tables import TableError

GENERATED_PREFIXES: Final = ("amq.", "warren.reply.")
"""Prefixes of names of queues that are generated; a span's name must not have one of very many values."""
UNROUTED_ERRORS: Final = ("refused", "unroutable", "no consumers")
"""Reasons of a drop at the publish that make the span an error; a duplicate is dropped on purpose."""


class SpanMaker:
    """Maker of OpenTelemetry's spans from the steps of messages.

    The identity of an enqueue span is a hash of its context, queue and position. So the spans of later steps in that
    queue name it as their parent, and no message has to carry it, also over a restart of the broker.
    """

    def __init__(self, version: str) -> None:
        resource = Resource.create({"service.version": version})
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "warren-broker"}))
        self._resource = resource
        self._scope = InstrumentationScope("warren.broker", version)
        self._extract = TraceContextTextMapPropagator().extract
        self._random = random.Random()

    def span(self, step: MessageStep) -> ReadableSpan | None:
        """Return the span of a step; None if the message has no valid trace context."""
        try:
            decoded = properties.decode(step.properties)
        except TableError:
            return None
        headers = decoded.headers
        carrier = {
            name: field.value
            for name in ("traceparent", "tracestate")
            if (field := headers.get(name)) is not None and isinstance(field.value, str)
        }
        creation = get_current_span(self._extract(carrier)).get_span_context()
        if not creation.is_valid:
            return None
        parent, span_id = creation, self._random.getrandbits(64) or 1
        if step.sequence:
            enqueue_id = enqueue_span_id(creation.trace_id, creation.span_id, step)
            if step.name == ENQUEUE:
                span_id = enqueue_id
            else:
                parent = self._in_trace(creation, enqueue_id)
        attributes = step_attributes(step, decoded)
        is_error = "error.type" in attributes
        return ReadableSpan(
            span_name(step),
            context=self._in_trace(creation, span_id),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            # Producer and consumer are the clients; a broker's spans of these kinds would be counted as theirs.
            kind=SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, step.reason) if is_error else Status(StatusCode.UNSET),
            start_time=step.at,
            end_time=step.at,
        )

    def _in_trace(self, creation: SpanContext, span_id: int) -> SpanContext:
        return SpanContext(
            creation.trace_id,
            span_id,
            is_remote=False,
            trace_flags=creation.trace_flags,
            trace_state=creation.trace_state,
        )


def enqueue_span_id(trace_id: int, span_id: int, step: MessageStep) -> int:
    """Return the identity of the span of a message's enqueue, from its trace context and its place in the queue.

    :param span_id: the span in which the message was created.
    :param step: any step of the message in that queue.
    """
    place = b"\0".join((step.vhost, step.queue, b"%d" % step.sequence))
    context = trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(context + place, digest_size=8).digest(), "big") or 1


def step_attributes(step: MessageStep, decoded: properties.Properties) -> dict[str, str | int | bool]:
    """Return the attributes of a step's span, by OpenTelemetry's semantic conventions for RabbitMQ as far as they go.

    https://opentelemetry.io/docs/specs/semconv/messaging/rabbitmq/

    :param decoded: the message's properties.
    """
    exchange, key, queue = (
        name.decode(errors="replace") for name in (step.exchange, step.routing_key, step.queue)
    )
    parts = (exchange, "" if key == queue else key, queue)
    found: dict[str, str | int | bool] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": step.name,
        "messaging.destination.name": ":".join(part for part in parts if part) or "amq.default",
        "messaging.message.body.size": step.body_size,
        "warren.virtual_host": step.vhost.decode(errors="replace"),
    }
    if key:
        found["messaging.rabbitmq.destination.routing_key"] = key
    for name, attribute in (
        ("message_id", "messaging.message.id"),
        ("correlation_id", "messaging.message.conversation_id"),
    ):
        if value := decoded.data(name):
            found[attribute] = value.decode(errors="replace")
    if queue.startswith(GENERATED_PREFIXES):
        found["messaging.destination.temporary"] = True
    if step.name == DELIVER:
        found["warren.redelivered"] = step.redelivered
        if step.consumer:
            found["warren.consumer_tag"] = step.consumer.decode(errors="replace")
    if step.reason:
        found["warren.reason"] = step.reason
        if step.name == DROP and step.reason in UNROUTED_ERRORS:
            found["error.type"] = step.reason.replace(" ", "-")
    return found


def span_name(step: MessageStep) -> str:
    """Return the name of a step's span: the step and its queue, or the exchange of a message that reached no queue."""
    target = (step.queue or step.exchange or b"amq.default").decode(errors="replace")
    return step.name if step.queue and target.startswith(GENERATED_PREFIXES) else f"{step.name} {target}"
