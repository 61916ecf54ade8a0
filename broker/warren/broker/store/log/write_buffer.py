"""Write buffer of the log: lays out appended records in blocks and segments until their batch is written."""

from __future__ import annotations

import zlib
from typing import Final

from mypy_extensions import i64

from warren.broker.store.log.record_format import (
    BLOCK_HEADER,
    BUNDLE,
    BUNDLE_ENTRY,
    BUNDLE_HEADER,
    HEADER,
    LARGE_RECORD,
    MESSAGE,
    POSITION_SHIFT,
    UnfinishedHeader,
    checksum,
    encode_block_header,
    encode_bundle,
    encode_record,
    pack_crc,
    pack_header,
    segment_seed,
)
from warren.broker.store.log.segment import Segment
from warren.broker.store.log.writer_jobs import SegmentWrite

SEGMENT_SIZE: Final = 16 * 1024 * 1024
"""Default size of a segment in bytes."""
BUNDLE_SIZE: Final = 8 * 1024
"""Largest size in bytes of a bundle, a record of several messages. One damaged byte makes all of them unreadable."""

JOINED_SIZE: Final = 4096
"""Largest record in bytes whose parts are joined at once, so that the writer thread has fewer pieces to join."""

crc32: Final = zlib.crc32


class WriteBuffer:
    """Buffer that lays appended records out in the blocks of a segment, behind the last record.

    Successive messages of one queue with the same head are bundled: one record, with one header and two checksums for
    all of them. A bundle is encoded when it is finished, before anything else is appended, so that its log
    position is known as soon as it is begun.
    """

    def __init__(self, identity: int, block: i64, segment_size: i64, segment: Segment, offset: i64) -> None:
        self.segment = segment
        """The segment that records are appended to."""
        self.base: i64 = 0
        """Log position at which the segment begins."""
        self.bundle_position: i64 = 0
        """Log position of the open bundle, the record to which further messages of the same queue are added."""
        self.seed = 0
        """Initial value of the checksums of record and block headers in the segment."""
        self.offset: i64 = 0
        """Offset in the segment at which the last record ends, without the open bundle."""
        self.stop: i64 = 0
        """Offset in the segment at which the current block, or the segment, ends."""
        self.size: i64 = 0
        """Bytes appended to the current batch, the open bundle included."""
        self.spilled: i64 = 0
        """Bytes among those of `size` that need not be synced, since they are messages written only to leave memory."""
        self._identity = identity
        self._block: i64 = block
        self._segment_size: i64 = segment_size
        self._start: i64 = 0
        self._pieces: list[bytes | memoryview] = []
        self._headers: list[UnfinishedHeader] = []
        """Headers among the pieces that the writer thread finishes."""
        self._writes: list[SegmentWrite] = []
        # The bundle that collects, if it has contents.
        self._contents: list[bytes] = []
        self._head = b""
        self._head_crc = 0
        self._incarnation: i64 = 0
        self._first: i64 = 0
        self._next: i64 = 0
        self._bundled: i64 = 0
        """Bytes that the open bundle takes in the log. A bundle of one message is written as a MESSAGE record."""
        self._room: i64 = 0
        self.enter(segment, offset)

    def enter(self, segment: Segment, offset: i64) -> None:
        """Begin a segment: the next records are laid out in it from this offset on."""
        self.segment = segment
        self.base = segment.number << POSITION_SHIFT
        self.seed = segment_seed(self._identity, segment.number)
        self.offset = offset
        self._start = offset
        self._set_stop()

    def overflows(self, size: i64) -> bool:
        """Return True if a record of `size` bytes needs a new segment. An empty segment takes a record of any size."""
        return self.offset > 0 and self.offset + size > self._segment_size

    def extend_bundle(self, incarnation: i64, sequence: i64, head: bytes, content: bytes) -> i64:
        """Add a message to the open bundle, a record of successive messages of one queue, if it fits.

        It fits if it is the next message of the bundle's queue, comes with the same bytes object as `head`, and the
        bundle has room for it. The attribute `bundle_position` is then its log position.

        :param incarnation: the number that names the queue in the log.
        :param sequence: the number of the message in its queue.
        :param content: the encoded message without `head`.
        :return: the bytes that the message adds to the batch; 0 if it was not added.
        """
        contents = self._contents
        if (
            not contents
            or head is not self._head
            or sequence != self._next
            or incarnation != self._incarnation
        ):
            return 0
        size: i64 = BUNDLE_ENTRY + len(content)
        if len(contents) == 1:
            size += BUNDLE_HEADER + BUNDLE_ENTRY
        if self._bundled + size > self._room:
            return 0
        contents.append(content)
        self._next += 1
        self._bundled += size
        self.size += size
        return size

    def begin_bundle(self, incarnation: i64, sequence: i64, head: bytes, content: bytes) -> None:
        """Begin a bundle, a record of messages of one queue that all have the same head, with a message.

        The caller has called `finish_bundle` before.

        :param incarnation: the number that names the queue in the log.
        :param sequence: the number of the message in its queue.
        :param head: the beginning of the encoded message, which the messages of the bundle share.
        :param content: the rest of the encoded message.
        """
        size: i64 = HEADER + len(head) + len(content)
        self._contents = [content]
        if head is not self._head:
            self._head = head
            self._head_crc = crc32(head)
        self._incarnation = incarnation
        self._first = sequence
        self._next = sequence + 1
        self._bundled = size
        # It must not overflow the segment: its position has been given out already.
        self._room = min(BUNDLE_SIZE, self._segment_size - self.offset)
        self.bundle_position = self.base + self.offset
        self.size += size

    def finish_bundle(self) -> None:
        """Encode the open bundle, which collects messages of one queue in one record, if there is one."""
        contents = self._contents
        if not contents:
            return
        self._contents = []
        head = self._head
        if len(contents) > 1:
            payload = encode_bundle(head, contents)
            self._lay_out(encode_record(BUNDLE, self._incarnation, self._first, payload, self.seed))
            return
        # In two pieces, not joined: the content may be large.
        content = contents[0]
        if len(content) >= LARGE_RECORD:
            self._lay_out_large(MESSAGE, self._incarnation, self._first, [head, content])
            return
        length: i64 = len(head) + len(content)
        check = checksum(content, self._head_crc)
        header = pack_header(MESSAGE, length, self._incarnation, self._first, check)
        parts = [header, pack_crc(crc32(header, self.seed)), head, content]
        if self.offset + HEADER + length > self.stop:
            self._lay_out_over_blocks(parts)
        else:
            self._pieces += parts
            self.offset += HEADER + length

    def append(self, kind: int, incarnation: i64, sequence: i64, payload: bytes) -> i64:
        """Encode and append a record; return its size in bytes. The caller has finished the open bundle.

        :param kind: the type of the record, such as ACK.
        :param incarnation: the number that names the queue in the log.
        :param sequence: the number of a message in the queue, as the type of the record defines it.
        """
        data = encode_record(kind, incarnation, sequence, payload, self.seed)
        size: i64 = len(data)
        self._lay_out(data)
        self.size += size
        return size

    def append_parts(self, kind: int, incarnation: i64, sequence: i64, parts: list[bytes], check: int) -> i64:
        """Append a record whose payload is given in parts, which are not joined; return its size in bytes.

        The caller has finished the open bundle.

        :param parts: the parts of the payload.
        :param check: CRC-32 of the payload.
        """
        length: i64 = 0
        for part in parts:
            length += len(part)
        header = pack_header(kind, length, incarnation, sequence, check)
        record = [header, pack_crc(crc32(header, self.seed)), *parts]
        size: i64 = HEADER + length
        if size <= JOINED_SIZE:
            record = [b"".join(record)]
        if self.offset + size > self.stop:
            self._lay_out_over_blocks(record)
        else:
            self._pieces += record
            self.offset += size
        self.size += size
        return size

    def append_large(self, kind: int, incarnation: i64, sequence: i64, parts: list[bytes]) -> i64:
        """Append a record with at least `LARGE_RECORD` bytes of payload, which are not copied; return its size in bytes.

        The caller has finished the open bundle.

        :param parts: the parts of the payload.
        """
        size = self._lay_out_large(kind, incarnation, sequence, parts)
        self.size += size
        return size

    def _lay_out_large(self, kind: int, incarnation: i64, sequence: i64, parts: list[bytes]) -> i64:
        header = UnfinishedHeader(kind, int(incarnation), int(sequence), parts, self.seed)
        self._headers.append(header)
        record: list[bytes | bytearray] = [header.data]
        record += parts
        self._lay_out_over_blocks(record)
        return HEADER + header.length

    def _lay_out(self, data: bytes) -> None:
        size: i64 = len(data)
        if self.offset + size > self.stop:
            self._lay_out_over_blocks([data])
        else:
            self._pieces.append(data)
            self.offset += size

    def _lay_out_over_blocks(self, parts: list[bytes] | list[bytes | bytearray]) -> None:
        """Lay out an encoded record that crosses the end of a block, with block headers in between.

        Nothing is copied here: a record may have hundreds of megabytes, and other clients wait meanwhile.

        :param parts: the bytes of the record.
        """
        size: i64 = 0
        for part in parts:
            size += len(part)
        at: i64 = 0
        for part in parts:
            view = memoryview(part)
            length: i64 = len(part)
            position: i64 = 0
            while position < length:
                within: i64 = self.offset % self._block
                if within == 0:
                    rest: i64 = BLOCK_HEADER + size - at
                    first: i64 = BLOCK_HEADER
                    if at > 0:
                        first = rest if rest < self._block else 0
                    self._pieces.append(encode_block_header(self.seed, self.offset // self._block, first))
                    self.offset += BLOCK_HEADER
                    within = BLOCK_HEADER
                count: i64 = min(length - position, self._block - within)
                self._pieces.append(view[position : position + count])
                self.offset += count
                position += count
                at += count
        self._set_stop()

    def close_write(self, batch: i64) -> None:
        """Complete the bytes that a batch writes to the current segment. The next call of `take` returns them.

        :param batch: the number of the batch.
        """
        self.finish_bundle()
        if self._pieces:
            self._writes.append(
                SegmentWrite(self.segment.number, self._start, self.offset, self._pieces, self._headers)
            )
            self._pieces = []
            self._headers = []
            self._start = self.offset
            self.segment.size = self.offset
            self.segment.batch = batch

    def take(self) -> list[SegmentWrite]:
        """Return the bytes to write of the current batch, one item for each segment, and begin the next batch."""
        writes = self._writes
        self._writes = []
        self.size = 0
        self.spilled = 0
        return writes

    def _set_stop(self) -> None:
        end: i64 = (self.offset + self._block - 1) // self._block * self._block
        self.stop = min(end, self._segment_size)


__all__ = ["SEGMENT_SIZE", "WriteBuffer"]
