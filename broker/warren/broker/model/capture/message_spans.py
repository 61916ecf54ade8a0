"""Recording of message spans: steps in the life of messages whose headers have a sampled W3C trace context.

The event loop only notes each step, in a bounded queue. A thread makes spans of the steps and exports them
(`warren.broker.span_export`). If spans are off, nothing of this exists: `Queue.capture` is None.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Optional

from mypy_extensions import i64

from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
from warren.broker.model.clock import Clock
from warren.broker.model.message import Message
from warren.broker.model.queue.consumer import Consumer
from warren.wire.content import header_payload

if TYPE_CHECKING:
    from warren.broker.model.queue.queue import Queue

ENQUEUE: Final = "enqueue"
DELIVER: Final = "deliver"
DEAD_LETTER: Final = "dead_letter"
EXPIRE: Final = "expire"
DROP: Final = "drop"

ENCODED_TRACEPARENT: Final = b"\x0btraceparentS\x00\x00\x00\x37"
"""The header `traceparent` as clients encode it: its name, the type of a string, and the 55 bytes of its length."""
LAST_FLAG_DIGIT: Final = 54
"""Position in `traceparent` of the hexadecimal digit whose lowest bit says that the trace is sampled."""
ODD_DIGITS: Final = b"13579bdfBDF"
MAX_PENDING_BYTES: Final = 16 * 1024 * 1024
"""Bytes of encoded properties of the steps that wait at most."""


class MessageStep(NamedTuple):
    """One step in the life of a message, from which a span is made.

    :ivar name: the constant `ENQUEUE`, `DELIVER`, `DEAD_LETTER`, `EXPIRE` or `DROP`.
    :ivar at: time of the step in nanoseconds since 1970.
    :ivar queue: name of the queue; empty if the message reached none.
    :ivar properties: payload of the content header frame.
    :ivar sequence: position in the queue, which identifies the message there; 0 if it is not known.
    :ivar reason: why the message left or missed the queue; empty for ENQUEUE and DELIVER.
    :ivar consumer: the consumer tag of a delivery; empty for basic.get and other steps.
    """

    name: str
    at: int
    vhost: bytes
    queue: bytes
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body_size: int
    sequence: int
    reason: str
    consumer: bytes
    redelivered: bool


class StepQueue:
    """Bounded queue of steps between the event loop, which adds them, and the thread that exports them.

    :param limit: steps that wait at most; a further one is dropped.
    :param batch: number of waiting steps from which on the thread is woken.
    """

    def __init__(self, limit: i64, batch: i64) -> None:
        self.limit = limit
        self.batch = batch
        self.steps: deque[MessageStep] = deque()
        self.wanted = threading.Event()
        """Set when a whole batch waits, or when the thread has to end."""
        self.dropped: i64 = 0
        """Steps that were dropped, because too many waited."""
        self.exported: i64 = 0
        """Spans that the collector has taken."""
        self.failed: i64 = 0
        """Spans that the collector has not taken, or that the broker had no time for when it stopped."""
        # Each is written by one thread only, so that neither needs a lock.
        self._bytes_added: i64 = 0
        self._bytes_taken: i64 = 0

    def add(self, step: MessageStep) -> None:
        """Add a step, or count it as dropped. Called on the event loop."""
        size: i64 = len(step.properties)
        waiting: i64 = len(self.steps)
        if waiting >= self.limit or self._bytes_added + size - self._bytes_taken > MAX_PENDING_BYTES:
            self.dropped += 1
            return
        self.steps.append(step)
        self._bytes_added += size
        if waiting + 1 == self.batch:
            self.wanted.set()

    def take(self, most: int) -> list[MessageStep]:
        """Remove and return the oldest steps. Called on the thread that exports them.

        :param most: number of steps to return at most.
        """
        found: list[MessageStep] = []
        while len(found) < most and self.steps:
            step = self.steps.popleft()
            self._bytes_taken += len(step.properties)
            found.append(step)
        return found


def is_sampled(content: bytes) -> bool:
    """Return True if the headers of a message have a trace context whose flag "sampled" is set.

    :param content: the encoded header frame and body frame, as in `Message.content`.
    """
    if len(content) < 8:
        return False
    end = 7 + int.from_bytes(content[3:7], "big")
    at = content.find(ENCODED_TRACEPARENT, 7, end)
    if at < 0:
        return False
    digit = at + len(ENCODED_TRACEPARENT) + LAST_FLAG_DIGIT
    return digit < end and content[digit] in ODD_DIGITS


class SpanHook(LifeCycleHook):
    """Hook of one virtual host that notes the steps of messages with a sampled trace, and records events if wanted.

    :param stream: the name of the stream for life-cycle events; empty if none are recorded.
    """

    def __init__(
        self, vhost: bytes, stream: bytes, clock: Clock, loop: asyncio.AbstractEventLoop, steps: StepQueue
    ) -> None:
        super().__init__(stream, clock, loop)
        self.vhost = vhost
        self.span_steps = steps

    def note(
        self,
        name: str,
        queue: Optional[Queue],  # noqa: UP045  (a compiled class cannot evaluate the forward reference with |)
        message: Message,
        sequence: i64,
        reason: str,
        consumer: bytes,
    ) -> None:
        """Add a step to the queue of the exporter, if the message has a sampled trace.

        :param queue: the queue that the message is in; None if it reached none.
        :param sequence: position in that queue; 0 if there is none.
        """
        content = message.content
        if not is_sampled(content):
            return
        self.span_steps.add(
            MessageStep(
                name,
                int(self.clock.wall() * 1_000_000_000),
                self.vhost,
                queue.name if queue is not None else b"",
                message.exchange,
                message.routing_key,
                header_payload(content),
                int(message.body_size),
                int(sequence),
                reason,
                consumer,
                bool(message.redelivered),
            )
        )

    # A stream has no sequence: many consumers read one message, and its offset is not known to all steps.

    def enqueued(self, queue: Queue, message: Message) -> None:
        sequence: i64 = 0 if queue.is_stream else queue.next_sequence
        self.note(ENQUEUE, queue, message, sequence, "", b"")
        if self.stream:
            super().enqueued(queue, message)

    def not_enqueued(self, message: Message, reason: str) -> None:
        self.note(DROP, None, message, 0, reason, b"")
        if self.stream:
            super().not_enqueued(message, reason)

    def delivered(self, consumer: Consumer, message: Message, origin: str, no_ack: bool) -> str:
        queue = consumer.queue
        sequence: i64 = 0 if queue.is_stream else message.sequence
        self.note(DELIVER, queue, message, sequence, "", consumer.tag)
        return super().delivered(consumer, message, origin, no_ack) if self.stream else ""

    def dead_lettered(self, queue: Queue, message: Message, reason: str) -> None:
        self.note(DEAD_LETTER, queue, message, message.sequence, reason, b"")
        if self.stream:
            super().dead_lettered(queue, message, reason)

    def dropped(self, queue: Queue, message: Message, reason: str) -> None:
        self.note(EXPIRE if reason == "expired" else DROP, queue, message, message.sequence, reason, b"")
        if self.stream:
            super().dropped(queue, message, reason)

    def add_event(self, prefix: str, identity: str, size: i64) -> None:
        if self.stream:
            super().add_event(prefix, identity, size)
