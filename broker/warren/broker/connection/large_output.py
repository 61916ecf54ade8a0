"""Large output of a connection, which its transport gets bit by bit."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

JOINED_BYTES: Final = 65536
"""Bytes below which pieces of large output are joined before the transport gets them."""


class LargeOutput:
    """Output that waits until the transport of a connection has written what it holds.

    The transport copies what it gets until Python 3.11, and copies its buffer again each time that this grows: with all of
    a message of 128 MiB in it, this keeps other clients waiting for 60 ms many times.

    :param pieces: encoded frames.
    """

    size: i64 = 0
    """Bytes that the transport has yet to get."""
    is_scheduled: bool = False
    """True if the next iteration of the event loop calls `proceed`."""
    closes_socket: bool = False
    """True if the socket is closed once the transport has got everything."""

    def __init__(self, connection: Connection, pieces: list[bytes | memoryview]) -> None:
        self.connection = connection
        self.pieces: deque[bytes | memoryview] = deque()
        self.add(pieces)

    def add(self, pieces: list[bytes | memoryview]) -> None:
        """Append pieces."""
        for piece in pieces:
            self.size += len(piece)
        self.pieces.extend(pieces)

    def proceed(self) -> None:
        """Pass pieces to the transport until its write buffer is full; then `Connection.on_write_buffer_low` continues."""
        connection = self.connection
        self.is_scheduled = False
        if connection.large_output is not self:
            # The socket was lost meanwhile.
            return
        if not self._pass(time.monotonic() + connection.node.virtual_hosts.bulk_work.slice_seconds):
            connection.deliveries_paused = True
            if not connection.write_buffer_full:
                self.is_scheduled = True
                connection.node.loop.call_soon(self.proceed)
            return
        connection.large_output = None
        if self.closes_socket:
            connection.lifecycle.close_socket()
        elif connection.deliveries_paused and not connection.write_buffer_full:
            connection.resume_deliveries()

    def _pass(self, end: float) -> bool:
        """Pass pieces to the transport until its write buffer is full, or until a time; return True if none is left.

        Small pieces are joined: since Python 3.12, the transport counts all its pieces each time that it gets one.

        :param end: the time by `time.monotonic()`.
        """
        connection, pieces = self.connection, self.pieces
        small: list[bytes | memoryview] = []
        size: i64 = 0
        # It logs each write to a connection that it has found to be lost.
        while pieces and not connection.transport.is_closing():
            if connection.write_buffer_full:
                # Nothing is in `small`: the last write has filled the buffer.
                return False
            piece = pieces.popleft()
            self.size -= len(piece)
            if len(piece) < JOINED_BYTES:
                small.append(piece)
                size += len(piece)
                if size < JOINED_BYTES and pieces:
                    continue
            if small:
                connection.transport.write(b"".join(small))
                small = []
                size = 0
            if len(piece) >= JOINED_BYTES:
                connection.transport.write(piece)
            if pieces and time.monotonic() >= end:
                return False
        return True
