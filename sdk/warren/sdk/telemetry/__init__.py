"""OpenTelemetry: spans, links and metrics after its messaging conventions, and trace context in the headers."""

from warren.sdk.telemetry.instruments import Telemetry

__all__ = ["Telemetry"]
