"""Where one consumer is in a stream, what of it has been read for it, and what of that it has acknowledged."""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.store.stream.chunk_format import Chunk
from warren.broker.store.stream.stream_segment import StreamSegment

if TYPE_CHECKING:
    from warren.broker.model.queue.consumer import Consumer
    from warren.broker.model.stream.stream import Stream
    from warren.broker.store.stream.chunk_reader import StreamRead
    from warren.broker.store.stream.stream_log import StreamLog

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct("<I")


class StreamMessage(Message):
    """A message of a stream on its way to one consumer; `sequence` is its offset."""

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
    """One consumer's place. Chunks that were read wait in `ready`; the messages of one are handed out in turn.

    :param name: under which its place is stored; empty if it is not.
    :param since: the time in milliseconds since 1970 that it begins at; -1 if it begins at `offset`.
    """

    def __init__(self, stream: Stream, consumer: Consumer, name: bytes, offset: i64, since: i64) -> None:
        self.stream = stream
        self.consumer = consumer
        self.name = name
        self.next_offset = offset
        self.start_time = since
        self.ready_chunks: deque[Chunk] = deque()
        self.reading = False
        self.closed = False
        """Its consumer has left."""
        self.segment: Optional[StreamSegment] = None  # noqa: UP045
        """The segment that was read last, and how far; None where the offset has to be looked for."""
        self.position: i64 = 0
        self.outstanding: deque[int] = deque()
        """Offsets that were delivered and are not acknowledged yet, where its place is stored."""
        self.acknowledged_early: set[int] = set()
        """Offsets that were acknowledged before an earlier one."""
        self._payload = b""
        self._at: i64 = 0
        self._offset: i64 = 0
        """Of the entry at `_at`."""
        self._head = b"\xff"
        """How the last entry began: most begin in the same way."""
        self._exchange = b""
        self._key = b""

    def open(self, chunk: Chunk) -> bool:
        """Go on with this chunk; False if all of it has been delivered before."""
        if chunk.first + chunk.count <= self.next_offset:
            return False
        self._payload = chunk.payload
        self._at = 0
        self._offset = chunk.first
        while self._offset < self.next_offset:
            self._at += 4 + i64(_U32.unpack_from(self._payload, self._at)[0])
            self._offset += 1
        return True

    def take(self) -> Optional[StreamMessage]:  # noqa: UP045
        """The next message of the chunk; None if the chunk is at its end."""
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
        offset = self._offset
        self._at = end
        self._offset = offset + 1
        self.next_offset = offset + 1
        if self.name:
            self.outstanding.append(offset)
        return StreamMessage(
            self, offset, self._exchange, self._key, content, _U16.unpack_from(content, 1)[0]
        )

    def read_done(self, read: StreamRead) -> None:
        """A read that was asked for is done."""
        self.stream.read_finished(self, read)

    def close(self) -> None:
        """The consumer goes; what was read for it is let go of."""
        self.closed = True
        self.ready_chunks.clear()

    def acknowledge(self, offset: i64, log: StreamLog) -> None:
        """A message is acknowledged: the place that is stored is the first one that is not."""
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
