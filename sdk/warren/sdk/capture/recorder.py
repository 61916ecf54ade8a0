"""Takes events as they happen, at the cost of one list entry each, and makes batches of them."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from time import time_ns

from warren.core.capture_events import STARTED, STOPPED, Event, EventBatch, event_prefix
from warren.sdk.capture.options import Capture, CaptureStatistics


class Recorder:
    """The events of one run of an App: one source, numbered from 1.

    A batch that does not fit into the buffer is dropped whole; its numbers are spent.

    :param keep: takes each batch; `written` or `lost` has to follow.
    """

    def __init__(self, options: Capture, application: str, keep: Callable[[EventBatch], None]) -> None:
        self.source: str = f"{short(application, 150)}.{os.getpid()}.{secrets.token_hex(4)}"
        self.statistics: CaptureStatistics = CaptureStatistics()
        self._options = options
        self._application = short(application, 255)
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._full = options.batch
        self._next = 1
        self._kept = 0
        """Events in batches that are not confirmed yet."""
        self._timer: asyncio.TimerHandle | None = None
        self.add(event_prefix(STARTED))

    def add(self, kind: str, message_id: str = "", size: int = -1) -> None:
        """An event that happens now.

        :param kind: made by `warren.core.capture_events.event_prefix`.
        :param size: bytes of the body; -1 leaves it out.
        """
        events = self._events
        events.append((kind, time_ns() // 1000, message_id, size))
        if len(events) >= self._full:
            self.cut()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._options.within, self.cut)

    def cut(self) -> None:
        """End the batch that is being filled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        events, self._events = self._events, []
        if not events:
            return
        count, sequence = len(events), self._next
        self._next += count
        if self._kept + count > self._options.buffer:
            self.statistics.dropped += count
            return
        self._kept += count
        self._keep(EventBatch(self.source, "sdk", self._application, sequence, events, self._options.stream))

    def written(self, batch: EventBatch) -> None:
        self._kept -= batch.count
        self.statistics.written += batch.count

    def lost(self, batch: EventBatch) -> None:
        self._kept -= batch.count
        self.statistics.dropped += batch.count

    def end(self) -> None:
        """The last event: nothing happens after it."""
        self.add(event_prefix(STOPPED))
        self.cut()

    def snapshot(self) -> CaptureStatistics:
        self.statistics.waiting = self._kept + len(self._events)
        return self.statistics


def short(name: str, limit: int) -> str:
    """As much of a name as fits into so many bytes: a property holds 255 (AMQP 0-9-1, section 4.2.5.3)."""
    return name.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
