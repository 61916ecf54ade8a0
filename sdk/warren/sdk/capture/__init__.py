"""Event capture: life-cycle events of messages, published to a stream; docs/pipeline/events.md describes them."""

from warren.sdk.capture.options import Capture, CaptureStatistics

__all__ = ["Capture", "CaptureStatistics"]
