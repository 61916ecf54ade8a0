"""Pages of a stream: messages from an offset on, read by the threads that read for consumers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Generator
from typing import Final, NamedTuple

from warren.broker.http_api.api_error import ApiError
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.message import Message
from warren.broker.model.stream.stream import Stream
from warren.broker.store.stream.chunk_format import Chunk
from warren.broker.store.stream.chunk_reader import BY_OFFSET, StreamRead

_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct(">H")


class StoredMessage(NamedTuple):
    """Message of a stream.

    :ivar at: time of writing in milliseconds since 1970.
    """

    offset: int
    at: int
    message: Message


async def read_stream(stream: Stream, offset: int) -> tuple[list[StoredMessage], int]:
    """Return some messages of a stream from an offset on, and the offset at which to continue.

    No message, and an offset that is not higher, is the end of the stream. What is damaged on disk is left out.

    :raises ApiError: 500 if the disk cannot be read.
    """
    log = stream.messages
    while not stream.deleted:
        offset = max(offset, int(log.first))
        if offset >= log.committed:
            return [], offset
        segments = list(log.segments)
        segment = next((each for each in reversed(segments) if each.first <= offset), segments[0])
        read = StreamRead(segment, BY_OFFSET, offset, 0)
        await _run(stream, read)
        if read.error:
            raise ApiError(500, "internal_server_error", read.error)
        if read.chunks:
            last = read.chunks[-1]
            return await run_in_slices(_messages(read.chunks, offset)), int(last.first + last.count)
        # The rest of the segment is damaged, or retention has removed it.
        following = [each for each in log.segments if each.first > segment.first]
        if not following:
            return [], offset
        offset = max(offset, int(following[0].first))
    return [], offset


async def _run(stream: Stream, read: StreamRead) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    streams = stream.streams
    assert streams is not None
    streams.read(read, lambda _: None if done.done() else done.set_result(None))
    await done


def _messages(chunks: list[Chunk], first: int) -> Generator[None, None, list[StoredMessage]]:
    """Return the messages of chunks from an offset on."""
    found: list[StoredMessage] = []
    for chunk in chunks:
        payload, at, offset = chunk.payload, 0, int(chunk.first)
        while at < len(payload):
            start = at + 4
            at = start + _U32.unpack_from(payload, start - 4)[0]
            if offset >= first:
                names = start + 2
                key = names + payload[start]
                stop = key + payload[start + 1]
                content = payload[stop:at]
                size = len(content)
                message = Message(
                    payload[names:key], payload[key:stop], content, size, _U16.unpack_from(content, 1)[0]
                )
                message.persistent = True
                found.append(StoredMessage(offset, int(chunk.timestamp), message))
            offset += 1
            if not offset % 64:
                yield
    return found
