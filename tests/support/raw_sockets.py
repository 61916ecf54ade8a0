"""Sockets of clients that send any bytes, at any pace."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.support.polling import PATIENCE


def connect(url: str) -> socket.socket:
    """Return a socket that is connected to the host and port of a URL."""
    address = urlsplit(url)
    assert address.port is not None
    return socket.create_connection((address.hostname, address.port), timeout=PATIENCE)


def until_it_ends(sock: socket.socket) -> bytes:
    """Return all that arrives until the server ends the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            found += piece
    return found


def answer(url: str, data: bytes) -> bytes:
    """Send bytes, and return all that is answered until the connection ends."""
    with connect(url) as sock:
        # The server may have closed the connection before all is sent: EPIPE, ECONNRESET or ENOTCONN.
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        return until_it_ends(sock)


@contextlib.contextmanager
def many_connections(url: str, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Open many connections that send the same bytes, as far as the server takes them."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            sock = stack.enter_context(connect(url))
            with contextlib.suppress(OSError):
                sock.sendall(data)
            found.append(sock)
        yield found
