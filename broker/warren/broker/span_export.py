"""Export of message spans to an OpenTelemetry collector: makes spans of noted steps, on a thread of its own.

OpenTelemetry's SDK and the exporter (`pip install 'warrenmq[otel]'`) are imported only if spans are on.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from warren.broker.model.capture.message_spans import MessageStep, StepQueue

logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 5.0
"""Seconds that a stopping broker waits for its last spans to be exported. What is left then is dropped."""
EXPORTERS: Final = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
"""Modules of the exporters by the value of OTEL_EXPORTER_OTLP_PROTOCOL."""
SPAN_LIBRARY: Final = "warren.broker.span_maker"
"""Module that makes spans. It is imported by name, so that the broker does without OpenTelemetry's packages."""


class SpanExportError(Exception):
    """Failure to set up the export of spans: a package is missing, or an OTEL_ variable is invalid."""


class Exporter(Protocol):
    """Interface of the exporters of OpenTelemetry's SDK."""

    def export(self, spans: Sequence[object], /) -> object:
        """Send spans; the result is the value `SpanExportResult.SUCCESS` if the collector has taken them."""

    def shutdown(self) -> None:
        """End an export that is in progress, and refuse further ones."""


class Maker(Protocol):
    """Interface of the module's `SpanMaker`."""

    def span(self, step: MessageStep) -> object:
        """Return the span of a step; None if the message has no valid trace context."""


class SpanExport:
    """Thread that takes steps from a queue, makes spans of them, and exports these in batches.

    It never stops the broker: a batch that cannot be exported is counted and dropped.

    :param delay: seconds after which steps are exported although they fill no batch.
    """

    def __init__(self, steps: StepQueue, exporter: Exporter, maker: Maker, delay: float) -> None:
        self.steps = steps
        self._maker = maker
        self._exporter = exporter
        self._delay = delay
        self._stopping = False
        self._deadline = 0.0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="warren-spans", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Export what waits, for at most FLUSH_SECONDS, and end the thread. Blocks; call it in an executor."""
        self._deadline = time.monotonic() + FLUSH_SECONDS
        self._stopping = True
        self.steps.wanted.set()
        self._thread.join(FLUSH_SECONDS)
        self._exporter.shutdown()
        # A collector that does not answer may keep the thread in a call; it is a daemon and holds nothing of the broker.
        self._thread.join(0.1)
        self.steps.failed += len(self.steps.take(int(self.steps.limit)))

    def _run(self) -> None:
        with _QuietExporter(type(self._exporter), threading.get_ident()):
            while not self._stopping:
                self.steps.wanted.wait(self._delay)
                self.steps.wanted.clear()
                self._export_waiting()
            self._export_waiting()

    def _export_waiting(self) -> None:
        while batch := self.steps.take(int(self.steps.batch)):
            if self._stopping and time.monotonic() >= self._deadline:
                self.steps.failed += len(batch)
                return
            reason = ""
            try:
                spans = [span for step in batch if (span := self._maker.span(step)) is not None]
                if spans and getattr(self._exporter.export(spans), "name", "") != "SUCCESS":
                    reason = "the collector has not taken them"
            except Exception as error:  # nothing that an exporter raises may end the thread
                reason = f"{type(error).__name__}: {error}"
            if reason:
                self.steps.failed += len(batch)
                if not self._failing:
                    logger.warning("event=spans.export_failed spans=%d reason=%r", len(batch), reason)
            else:
                self.steps.exported += len(spans)
                if self._failing:
                    logger.info("event=spans.export_resumed failed=%d", self.steps.failed)
            self._failing = bool(reason)


class _QuietExporter:
    """Keep the exporter's own log lines from the broker's log, if they come from the broker's thread.

    They are of another form, and one for each failed attempt. An application in the same process that uses the same
    exporter keeps its lines, because they come from other threads.
    """

    def __init__(self, kind: type[object], thread: int) -> None:
        names = {kind.__module__, *(each.__module__ for each in kind.__mro__)}
        # The client of the HTTP exporter logs its retries under the exporter's logger, the gRPC exporter under a base class.
        self._loggers = [logging.getLogger(name) for name in names if name.startswith("opentelemetry.")]
        self._thread = thread

    def __enter__(self) -> None:
        for each in self._loggers:
            each.addFilter(self._passes)

    def __exit__(self, *_: object) -> None:
        for each in self._loggers:
            each.removeFilter(self._passes)

    def _passes(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


def open_span_export(endpoint: str, version: str) -> SpanExport | None:
    """Return the export of spans by the variables OTEL_... of the environment; None if these turn it off.

    :param endpoint: URL of the collector, without a path; empty for that of the variables.
    :param version: version of the broker.
    :raises SpanExportError: if the packages are missing, or a variable is invalid.
    """
    environment = os.environ
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporters == "none":
        return None
    if exporters != "otlp":
        raise SpanExportError(f"OTEL_TRACES_EXPORTER is {exporters!r}; the broker exports with otlp, or none")
    protocol = (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    ).strip()
    if protocol not in EXPORTERS:
        choices = ", ".join(EXPORTERS)
        raise SpanExportError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; it must be one of {choices}")
    limit = positive_number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", 2048)
    batch = min(positive_number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512), limit)
    delay = positive_number(environment, "OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000
    try:
        maker: Maker = importlib.import_module(SPAN_LIBRARY).SpanMaker(version)
        module = importlib.import_module(EXPORTERS[protocol])
    except ImportError as error:
        extra = (
            "warrenmq[otel]"
            if protocol != "grpc"
            else "warrenmq[otel]' 'opentelemetry-exporter-otlp-proto-grpc"
        )
        raise SpanExportError(
            f"opentelemetry is on, but {error.name} is not installed: pip install '{extra}'"
        ) from None
    arguments = {}
    if endpoint:
        arguments["endpoint"] = f"{endpoint.rstrip('/')}/v1/traces" if protocol != "grpc" else endpoint
    try:
        exporter: Exporter = module.OTLPSpanExporter(**arguments)
    except Exception as error:  # whatever the exporter makes of an invalid variable or URL
        raise SpanExportError(
            f"the OTLP exporter cannot be set up: {type(error).__name__}: {error}"
        ) from None
    return SpanExport(StepQueue(limit, batch), exporter, maker, delay)


def positive_number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Return the whole number in a variable of the environment, or the default if it is not set.

    :raises SpanExportError: if it is no whole number above 0.
    """
    text = environment.get(name, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise SpanExportError(f"{name} is {text!r}; it must be a whole number above 0")
    return int(text)


__all__ = ["SpanExport", "SpanExportError", "open_span_export"]
