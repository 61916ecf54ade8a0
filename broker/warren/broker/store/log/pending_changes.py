"""Queues and streams with records to write in the next batch, and the time that acknowledgements wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from warren.broker.store.log.queue_log import QueueLog
from warren.broker.store.stream.stream_log import StreamBatch, StreamLog


class PendingChanges:
    """Queues and streams with messages, acknowledgements, delivery counts or stored offsets for the current batch.

    A message is written at once. An acknowledgement, a delivery count or a stored offset waits for a message to be
    written in the same batch, for `ack_delay` seconds at most.

    :param on_delay_over: called when an acknowledgement, delivery count or stored offset has waited for `ack_delay`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ack_delay: float, on_delay_over: Callable[[], None]
    ) -> None:
        self.queues: list[QueueLog] = []
        """Queues with messages, acknowledgements or delivery counts."""
        self.streams: list[StreamLog] = []
        """Streams with messages or stored offsets."""
        self.has_stream_messages = False
        """True if a stream has messages to write, not only stored offsets."""
        self.delay_is_over = False
        """True if `ack_delay` ended while a batch was being written: the next batch is closed right after it."""
        self._loop = loop
        self._ack_delay = ack_delay
        self._on_delay_over = on_delay_over
        self._timer: asyncio.TimerHandle | None = None

    def add_queue(self, queue: QueueLog) -> None:
        """Add a queue to those with messages, acknowledgements or delivery counts to write in the current batch."""
        if not queue.has_changes:
            queue.has_changes = True
            self.queues.append(queue)

    def add_delayed(self, queue: QueueLog) -> None:
        """Add a queue to those with acknowledgements or delivery counts to write, which may wait for `ack_delay`."""
        self.add_queue(queue)
        self.start_delay()

    def add_stream(self, stream: StreamLog) -> None:
        """Add a stream to those with messages or stored offsets to write in the current batch."""
        if not stream.has_changes:
            stream.has_changes = True
            self.streams.append(stream)

    def clear_queues(self) -> None:
        """Forget the queues, because the batch with their changes is closed."""
        self.queues = []
        self.delay_is_over = False

    def take_streams(self) -> list[StreamBatch]:
        """Return each stream's part of the current batch (messages and stored offsets), and forget the streams."""
        parts = []
        for stream in self.streams:
            part = stream.take_batch()
            if part is not None:
                parts.append(part)
        self.streams = []
        self.has_stream_messages = False
        return parts

    def start_delay(self) -> None:
        """Start the `ack_delay` after which the waiting changes are written, unless it is running already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._ack_delay, self._end_delay)

    def cancel_delay(self) -> None:
        """Cancel a running `ack_delay`, because the log is closed and writes nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_delay(self) -> None:
        self._timer = None
        self._on_delay_over()


__all__ = ["PendingChanges"]
