"""Reads of a connection in small pieces, for a protocol that takes what asyncio passes on."""

from __future__ import annotations

import asyncio
from typing import Final

READ_BYTES: Final = 64 * 1024
"""Bytes that are read from a connection at a time. asyncio reads four times as much, and each byte of a body may be a chunk
of its own, for which the HTTP library makes ten calls."""

_BUFFER: Final = memoryview(bytearray(READ_BYTES))
"""Buffer of all connections: what is read into it is copied at once."""


class SmallReads(asyncio.BufferedProtocol):
    """Protocol of a transport, plain or encrypted, that passes at most `READ_BYTES` on at a time, with a turn of the event
    loop between two pieces.

    :param protocol: gets the data and all other calls of the transport.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.data_received(bytes(_BUFFER[:nbytes]))

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


__all__ = ["READ_BYTES", "SmallReads"]
