"""OpenTelemetry: spans, links and metrics after its messaging conventions, and trace context in message headers."""

from warren.sdk.telemetry.instruments import Telemetry

__all__ = ["Telemetry"]
