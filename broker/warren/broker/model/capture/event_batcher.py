"""Collection of life-cycle events of messages (published, delivered, acknowledged and so on) in batches for a stream.

A batch ends when it has 500 events or after 0.1 seconds. Then it goes to a writer.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from typing import Final, Optional

from mypy_extensions import i64

from warren.broker.model.clock import Clock
from warren.core import capture_events as e
from warren.core.capture_events import Event, EventBatch, event_prefix

APPLICATION: Final = "warren broker"
BATCH_EVENTS: Final = 500
"""Events in a full batch. One batch is one message of the event stream."""
BATCH_SECONDS: Final = 0.1
"""Seconds after the first event of a batch until the batch ends, even if it is not full."""


def decode_name(name: bytes) -> str:
    """Decode a name from the wire. Bytes that are not UTF-8 become surrogates (the error handler `surrogateescape`)."""
    return name.decode("utf-8", "surrogateescape")


class EventBatcher:
    """Collector of the life-cycle events of one virtual host, which it hands in batches to the writer of a stream.

    The events of one run of the broker are numbered from 1, and each batch names this run. A batch that cannot be
    written is dropped. Its numbers are not used again, so that a reader of the stream can count the lost events.

    :param stream: the name of the stream that the batches are written to.
    """

    def __init__(self, stream: bytes, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.stream = stream
        self.source = f"broker.{os.getpid()}.{secrets.token_hex(4)}"
        self.clock = clock
        self.loop = loop
        self.write: Optional[Callable[[EventBatch], bool]] = None  # noqa: UP045
        """Function that writes a batch to the stream. It returns False if it cannot, and the batch is dropped."""
        self.events: list[Event] = []
        self.next_sequence = 1
        self.dropped_events = 0
        self.timer: Optional[asyncio.TimerHandle] = None  # noqa: UP045
        self.add_event(event_prefix(e.STARTED), "", -1)

    def add_event(self, prefix: str, identity: str, size: i64) -> None:
        """Add an event, with the current time, to the batch.

        :param prefix: the beginning of the event's JSON object, as `event_prefix` returns it. It has all fields except
            three: the time, and the id and size of the message.
        :param identity: the message's id; empty if there is none.
        :param size: bytes of the message's body; -1 if the event has no size.
        """
        events = self.events
        events.append((prefix, int(self.clock.wall() * 1_000_000), identity, int(size)))
        if len(events) >= BATCH_EVENTS:
            self.end_batch()
        elif self.timer is None:
            self.timer = self.loop.call_later(BATCH_SECONDS, self.end_batch)

    def end_batch(self) -> None:
        """Write the events that were added since the last batch as a new batch, unless there are none."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        events = self.events
        if not events:
            return
        self.events = []
        sequence = self.next_sequence
        self.next_sequence += len(events)
        batch = EventBatch(self.source, "broker", APPLICATION, sequence, events, decode_name(self.stream))
        write = self.write
        if write is None or not write(batch):
            self.dropped_events += len(events)

    def close(self) -> None:
        """Write a last batch, which ends with the event "the broker stopped". Later events are not written."""
        self.add_event(event_prefix(e.STOPPED), "", -1)
        self.end_batch()
        self.abort()

    def abort(self) -> None:
        """Stop without writing: events that are not in the stream yet are lost."""
        self.write = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
