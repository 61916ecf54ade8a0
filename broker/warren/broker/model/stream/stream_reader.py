"""Position of one consumer in a stream: chunks read from disk for it, messages delivered, messages acknowledged."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.stream.entry_codec import with_identity
from warren.broker.store.stream.chunk_format import Chunk
from warren.broker.store.stream.stream_segment import StreamSegment

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer
    from warren.broker.model.stream.stream import Stream
    from warren.broker.model.stream.stream_filter import StreamFilter
    from warren.broker.store.stream.chunk_reader import StreamRead
    from warren.broker.store.stream.stream_log import StreamLog

STORED_AFTER: Final = 1000
"""Messages that a filter passes over before the position of its consumer is stored again."""
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct("<I")


class StreamMessage(Message):
    """A message of a stream, as delivered to one consumer. Its attribute `sequence` is its offset in the stream."""

    def __init__(
        self,
        reader: StreamReader,
        offset: i64,
        exchange: bytes,
        routing_key: bytes,
        content: bytes,
        channel: i64,
    ) -> None:
        super().__init__(exchange, routing_key, content, 0, channel)
        self.sequence = offset
        self.reader = reader


class StreamReader:
    """Position of one consumer in a stream. Takes the messages for it from chunks (batches) of the stream.

    Chunks that were read from disk for it wait in `ready_chunks`.

    :param name: name under which the server stores how far the consumer has acknowledged; empty to store nothing.
    :param offset: the first offset to deliver.
    :param since: time of the first message to deliver, in milliseconds since 1970; -1 to begin at `offset`.
    """

    def __init__(self, stream: Stream, consumer: Consumer, name: bytes, offset: i64, since: i64) -> None:
        self.stream = stream
        self.consumer = consumer
        self.name = name
        self.next_offset = offset
        """Offset of the next message to deliver."""
        self.start_time = since
        self.ready_chunks: deque[Chunk] = deque()
        self.reading = False
        """True while chunks are being read from the segment files."""
        self.filter: Optional[StreamFilter] = None  # noqa: UP045
        """Filter of the consumer; None if it gets all messages."""
        self.shows_identity = False
        """True if each message gets a header with the stream's identity."""
        self.passed_over: i64 = 0
        """Messages that the filter has not accepted since `store_progress` has looked."""
        self.filtering = False
        """True while bulk work looks for messages that the filter accepts: it delivers them."""
        self.closed = False
        """True after the consumer was cancelled or the stream deleted: the result of a read is ignored."""
        self.segment: Optional[StreamSegment] = None  # noqa: UP045
        """Segment file that was read last; None if the segment with `next_offset` has to be searched."""
        self.position: i64 = 0
        """Position in the file `segment` at which the next read begins."""
        self.outstanding: deque[int] = deque()
        """Offsets that were delivered and are not acknowledged, the oldest first.

        Empty if the position is not stored.
        """
        self.acknowledged_early: set[int] = set()
        """Offsets that were acknowledged although an older one in `outstanding` is not."""
        self._payload = b""
        """Entries of the current chunk, encoded."""
        self._at: i64 = 0
        """Position of the next entry in the current chunk's `_payload`."""
        self._offset: i64 = 0
        """Offset of the next entry in the current chunk."""
        self._head = b"\xff"
        """Encoded exchange and routing key of the last entry. Most entries repeat them and need no decoding."""
        self._exchange = b""
        self._key = b""

    def open(self, chunk: Chunk) -> bool:
        """Set the chunk (batch of messages) from which `take` returns messages.

        Return False if there is none to take, because all its messages have been delivered before. If the filter accepts
        none of them, `take` returns none.
        """
        if chunk.first + chunk.count <= self.next_offset:
            return False
        if self.filter is not None and not self.filter.may_match(chunk.payload):
            self.passed_over += chunk.first + chunk.count - self.next_offset
            self.next_offset = chunk.first + chunk.count
            self._payload = b""
            self._at = 0
            return True
        self._payload = chunk.payload
        self._at = 0
        self._offset = chunk.first
        while self._offset < self.next_offset:
            self._at += 4 + i64(_U32.unpack_from(self._payload, self._at)[0])
            self._offset += 1
        return True

    def take(self) -> Optional[StreamMessage]:  # noqa: UP045
        """Return the next message of the chunk (batch of messages) that `open` has set; None if it has no more."""
        at = self._at
        payload = self._payload
        if at >= len(payload):
            return None
        start: i64 = at + 4
        end: i64 = start + i64(_U32.unpack_from(payload, at)[0])
        head = self._head
        if not payload.startswith(head, start):
            names: i64 = start + 2
            key: i64 = names + i64(payload[start])
            stop: i64 = key + i64(payload[start + 1])
            head = payload[start:stop]
            self._head = head
            self._exchange = payload[names:key]
            self._key = payload[key:stop]
        content = payload[start + len(head) : end]
        if self.shows_identity:
            content = with_identity(content, self.stream.identity)
        offset = self._offset
        self._at = end
        self._offset = offset + 1
        self.next_offset = offset + 1
        if self.name:
            self.outstanding.append(offset)
        return StreamMessage(
            self, offset, self._exchange, self._key, content, _U16.unpack_from(content, 1)[0]
        )

    def at_end(self) -> bool:
        """Return True if the chunk (batch of messages) that `open` has set has no more messages."""
        return self._at >= len(self._payload)

    def continue_filtering(self, end: float) -> bool:
        """Look at further messages until a time, and deliver those that the filter accepts; a step of bulk work.

        :param end: the time by `time.monotonic()`.
        """
        finished = self.closed or self.stream.deliver_until(self, end)
        self.filtering = not finished
        return finished

    def pass_over(self) -> None:
        """Leave out the message that `take` returned last, because the filter does not accept it."""
        self.passed_over += 1
        if self.name:
            self.outstanding.pop()

    def store_progress(self, log: StreamLog) -> None:
        """Store the position of a consumer, if the filter has passed over many messages since.

        Without this, a consumer that continues at its stored position would have to pass over all of them again.

        :param log: the log of the stream, which stores the position.
        """
        if self.passed_over >= STORED_AFTER:
            self.passed_over = 0
            if self.name:
                outstanding = self.outstanding
                log.store_offset(self.name, outstanding[0] if outstanding else self.next_offset)

    def read_done(self, read: StreamRead) -> None:
        """Hand the result of a read from disk to the stream, which delivers the messages."""
        self.stream.read_finished(self, read)

    def close(self) -> None:
        """Drop the chunks that were read, because the consumer is cancelled or the stream deleted."""
        self.closed = True
        self.ready_chunks.clear()

    def acknowledge(self, offset: i64, log: StreamLog) -> None:
        """Record that the consumer has acknowledged the message at an offset, and store its progress on the server.

        The number stored is the lowest offset that is not acknowledged.

        :param log: the log of the stream, which stores this number.
        """
        outstanding = self.outstanding
        if not outstanding or outstanding[0] != offset:
            self.acknowledged_early.add(offset)
            return
        outstanding.popleft()
        done = self.acknowledged_early
        while outstanding and outstanding[0] in done:
            done.discard(outstanding.popleft())
        log.store_offset(self.name, outstanding[0] if outstanding else self.next_offset)


__all__ = ["StreamMessage", "StreamReader"]
