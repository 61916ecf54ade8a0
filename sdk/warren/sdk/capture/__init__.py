"""Event capture: what becomes of each message, as events on a stream. What they mean stands in docs/pipeline/events.md."""

from warren.sdk.capture.options import Capture, CaptureStatistics

__all__ = ["Capture", "CaptureStatistics"]
