"""Recorder of the life-cycle events of messages, which it passes on in batches."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from time import time_ns

from warren.core.capture_events import STARTED, STOPPED, Event, EventBatch, event_prefix
from warren.sdk.capture.options import Capture, CaptureStatistics
from warren.sdk.durations import seconds


class Recorder:
    """Collector of the life-cycle events of one run of an App, which it passes on in batches.

    The events are numbered from 1, under a source name that is unique to the run. A batch that does not fit into the
    buffer is dropped whole; its numbers are skipped, so that readers of the stream notice the gap.

    :param send_batch: called with each batch; it has to call `written` or `lost` with the batch later.
    """

    def __init__(self, options: Capture, application: str, send_batch: Callable[[EventBatch], None]) -> None:
        self.source: str = f"{truncate_utf8(application, 150)}.{os.getpid()}.{secrets.token_hex(4)}"
        self.statistics: CaptureStatistics = CaptureStatistics()
        self._options = options
        self._application = truncate_utf8(application, 255)
        self._send_batch = send_batch
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._full = options.batch
        self._within = seconds(options.within, "within")
        self._next = 1
        self._unconfirmed = 0
        """Events in batches that are not confirmed yet."""
        self._timer: asyncio.TimerHandle | None = None
        self.add(event_prefix(STARTED))

    def add(self, kind: str, message_id: str = "", size: int = -1) -> None:
        """Record an event that happens now.

        :param kind: beginning of the event's JSON text, without time, message id and size; from
            `warren.core.capture_events.event_prefix`.
        :param size: bytes of the body; -1 leaves it out.
        """
        events = self._events
        events.append((kind, time_ns() // 1000, message_id, size))
        if len(events) >= self._full:
            self.end_batch()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._within, self.end_batch)

    def end_batch(self) -> None:
        """Pass the collected events on as a batch, or drop and count them if the buffer is full."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        events, self._events = self._events, []
        if not events:
            return
        count, sequence = len(events), self._next
        self._next += count
        if self._unconfirmed + count > self._options.buffer:
            self.statistics.dropped += count
            return
        self._unconfirmed += count
        self._send_batch(
            EventBatch(self.source, "sdk", self._application, sequence, events, self._options.stream)
        )

    def written(self, batch: EventBatch) -> None:
        """Count the events of a batch that the broker confirmed."""
        self._unconfirmed -= batch.count
        self.statistics.written += batch.count

    def lost(self, batch: EventBatch) -> None:
        """Count as dropped the events of a batch that could not be published."""
        self._unconfirmed -= batch.count
        self.statistics.dropped += batch.count

    def record_stop(self) -> None:
        """Record the stop of the App as its last event, and end the batch."""
        self.add(event_prefix(STOPPED))
        self.end_batch()

    def snapshot(self) -> CaptureStatistics:
        """Return the current numbers of written, waiting and dropped events."""
        self.statistics.waiting = self._unconfirmed + len(self._events)
        return self.statistics


def truncate_utf8(name: str, limit: int) -> str:
    """Return the longest beginning of a name that takes at most `limit` bytes of UTF-8.

    AMQP properties that are short strings hold at most 255 bytes (AMQP 0-9-1, section 4.2.5.3).
    """
    return name.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
