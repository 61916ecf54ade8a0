"""A blocking socket to the broker that an AMQP URL names: who logs in there, and bytes, each wait with a deadline."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
from urllib.parse import unquote, urlsplit

GREETING = b"AMQP\x00\x00\x09\x01"


class Link:
    """What clients of different manners stand on; nothing has been said over it yet."""

    def __init__(self, url: str, *, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        """
        :param timeout: seconds until a wait fails
        :param tls: what to trust and to show, for a listener with TLS
        """
        parts = urlsplit(url)
        self.user, self.password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self.virtual_host = unquote(parts.path[1:]) or "/"
        self._buffer = b""
        self._position = 0
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = parts.hostname
        if tls is not None:
            self.secure(tls)

    def secure(self, tls: ssl.SSLContext) -> None:
        """Go on with TLS."""
        self._socket = tls.wrap_socket(self._socket, server_hostname=self._host)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read_bytes(self, count: int) -> bytes:
        """
        :raises ConnectionError: if the broker has closed
        :raises TimeoutError: if they do not come in time
        """
        while len(self._buffer) - self._position < count:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._buffer = self._buffer[self._position :] + data
            self._position = 0
        start = self._position
        self._position += count
        return self._buffer[start : self._position]

    def waits(self, seconds: float = 0.0) -> bool:
        """Whether something has come that was not read yet; waits this long for it."""
        return self._position < len(self._buffer) or bool(select.select([self._socket], [], [], seconds)[0])

    def at_end(self) -> bool:
        """Whether the broker closes the socket without another word."""
        if self._position < len(self._buffer):
            return False
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def hang_up(self) -> None:
        """End both directions from another thread: who waits for bytes gets a ConnectionError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Drop the socket so that the broker gets an error and not the end of the stream."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def finish(self) -> None:
        """Say that nothing more comes and wait until the broker has closed, too, and so has let go of what was held here.

        :raises TimeoutError: if it does not
        """
        with self._socket, contextlib.suppress(ConnectionError):
            with contextlib.suppress(OSError):  # where the broker was first
                self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(65536):
                pass

    def abort(self) -> None:
        """Drop the socket without a word."""
        self._socket.close()
