"""Telemetry options, and the tracer and metric instruments of an App."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from opentelemetry import metrics, trace
from opentelemetry.metrics import Counter, Histogram, MeterProvider, NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, Span, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from warren.sdk.errors import WarrenError
from warren.sdk.exception_text import exception_text
from warren.sdk.logger import log
from warren.sdk.telemetry import semantic_conventions as c

SCOPE = "warren.sdk"
Provider = TypeVar("Provider")
DESTINATIONS = 1000
"""Largest number of destinations (exchange and queue names) in the attributes of metrics. Further ones are left out, to
bound the number of time series."""

_IN_METRICS = (c.SYSTEM, c.OPERATION, c.SERVER_ADDRESS, c.SERVER_PORT)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """OpenTelemetry options of an App: `App(telemetry=Telemetry(...))`.

    Without providers the global ones are used, if they are set before the App starts. Without any provider nothing is
    recorded, but handlers still run in the trace context of the message's publisher.

    :param create_spans: create a span for each message of a bulk publish, in addition to the span of the batch.
    :param sizes: record the opt-in attributes `messaging.message.body.size` and `.envelope.size`, in bytes.
    :param template: function that returns the attribute `messaging.destination.template` for an
        exchange and a routing key, or None. It is for routing keys that contain an id: with the
        template, the number of span names and metric series stays bounded.
    """

    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    create_spans: bool = True
    sizes: bool = False
    template: Callable[[str, str], str | None] | None = None

    def open(self) -> Instruments | None:
        """Return the tracer and metric instruments for a run of an App; None if there is no OpenTelemetry provider."""
        tracers = self.tracer_provider or _unless_default(trace.get_tracer_provider())
        meters = self.meter_provider or _unless_default(metrics.get_meter_provider())
        if tracers is None and meters is None:
            return None
        return Instruments(self, tracers or NoOpTracerProvider(), meters or NoOpMeterProvider())


class Instruments:
    """Tracer, the four metrics of OpenTelemetry's messaging conventions, and attributes of the connections.

    :ivar publishing: attributes of the publish connection: server, peer and client.
    :ivar consuming: attributes of the consume connection.
    """

    def __init__(self, options: Telemetry, tracers: TracerProvider, meters: MeterProvider) -> None:
        self.options: Telemetry = options
        self.meters: MeterProvider = meters
        self.publishing: c.Attributes = {}
        self.consuming: c.Attributes = {}
        self.tracer: Tracer = tracers.get_tracer(SCOPE)
        meter = meters.get_meter(SCOPE)
        self.operation_duration: Histogram = meter.create_histogram(
            c.OPERATION_DURATION,
            "s",
            "Duration of a messaging operation: publish, receive, settle.",
            explicit_bucket_boundaries_advisory=c.BUCKETS,
        )
        self.process_duration: Histogram = meter.create_histogram(
            c.PROCESS_DURATION,
            "s",
            "Duration of the handling of a message.",
            explicit_bucket_boundaries_advisory=c.BUCKETS,
        )
        self.sent: Counter = meter.create_counter(
            c.SENT_MESSAGES, "{message}", "Messages that a producer attempted to send."
        )
        self.consumed: Counter = meter.create_counter(
            c.CONSUMED_MESSAGES, "{message}", "Messages that were delivered to the application."
        )
        self._destinations: set[AttributeValue] = set()
        self._template_failure_logged = False
        """True if a failure of the user's function `Telemetry.template` has been logged; further ones are not."""

    def add_destination_template(self, attributes: c.Attributes, exchange: str, routing_key: str) -> None:
        """Add `messaging.destination.template` to `attributes`, if the user's
        function `Telemetry.template` returns a value for this exchange and routing key.

        Exceptions of that function affect no message; the first one is logged.

        :param attributes: attributes of a span, which are changed in place.
        """
        template = self.options.template
        if template is None:
            return
        try:
            found = template(exchange, routing_key)
        except Exception:
            if not self._template_failure_logged:
                self._template_failure_logged = True
                log.exception(
                    "event=telemetry.destination_template_failed exchange=%s routing_key=%s",
                    exchange,
                    routing_key,
                )
            return
        if found is not None:
            attributes[c.TEMPLATE] = found

    def metric_attributes(self, attributes: Mapping[str, AttributeValue], error: str | None) -> c.Attributes:
        """Return the subset of span attributes that metrics have, with the error type if there is an error.

        :param error: value of `error.type`, or None.
        """
        kept: c.Attributes = {name: attributes[name] for name in _IN_METRICS if name in attributes}
        if error is not None:
            kept[c.ERROR_TYPE] = error
        if c.TEMPLATE in attributes:
            kept[c.TEMPLATE] = attributes[c.TEMPLATE]
        elif not attributes.get(c.TEMPORARY) and (name := attributes.get(c.DESTINATION)) is not None:
            if name not in self._destinations and len(self._destinations) < DESTINATIONS:
                self._destinations.add(name)
            if name in self._destinations:
                kept[c.DESTINATION] = name
        return kept

    def record_operation(
        self, seconds: float, metric_attributes: c.Attributes, attributes: Mapping[str, AttributeValue]
    ) -> None:
        """Record the duration of an operation; its metric, unlike the others, also has the type of the operation.

        :param metric_attributes: result of `metric_attributes` for the operation.
        :param attributes: attributes of its span.
        """
        kind = {c.OPERATION_TYPE: attributes[c.OPERATION_TYPE]}
        self.operation_duration.record(seconds, metric_attributes | kind)


def mark_failed(span: Span, error: BaseException) -> str:
    """Mark the span as failed by this error; return the value of its attribute `error.type`."""
    name = c.error_type(error)
    span.set_attribute(c.ERROR_TYPE, name)
    span.set_status(StatusCode.ERROR, exception_text(error) if isinstance(error, WarrenError) else None)
    return name


def _unless_default(provider: Provider) -> Provider | None:
    """Return the provider if the user has set one.

    None for the default provider of the OpenTelemetry API, which records nothing.
    """
    home = type(provider).__module__
    return None if home.startswith(("opentelemetry.trace", "opentelemetry.metrics")) else provider
