"""In-memory recorder of an App's spans and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.polling import eventually
from warren.sdk import (
    App,
    Telemetry,
)


class Recorded:
    """Spans and metrics of an App."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._metrics])

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, operation: str) -> list[ReadableSpan]:
        """Those of an operation, in the order of their end."""
        finished = self._spans.get_finished_spans()
        return [span for span in finished if of(span).get("messaging.operation.name") == operation]

    def span(self, operation: str) -> ReadableSpan:
        (span,) = self.spans(operation)
        return span

    def metric(self, name: str) -> Any:
        data = self._metrics.get_metrics_data()
        assert data is not None
        scopes = data.resource_metrics[0].scope_metrics
        found: Any
        (found,) = [metric for scope in scopes for metric in scope.metrics if metric.name == name]
        return found

    def count(self, name: str, **wanted: object) -> int:
        """Of the points of a metric whose attributes are as wanted (`_` stands for a dot)."""
        counts: list[int] = [
            getattr(point, "count", getattr(point, "value", 0))
            for point in self.metric(name).data.data_points
            if all(point.attributes.get(key.replace("_", ".")) == value for key, value in wanted.items())
        ]
        return sum(counts)


def of(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


async def handled(app: App, name: str, times: int = 1) -> None:
    await eventually(lambda: app.statistics().subscriptions[name].acknowledged >= times, "it is acknowledged")
