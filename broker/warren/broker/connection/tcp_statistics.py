"""Statistics that the system keeps of a TCP socket (struct tcp_info of Linux), and settings of its keepalive."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Final, Protocol

from warren.core.operating_system.portable_switch import offered, present
from warren.core.operating_system.sockets import unread_bytes

TCP_INFO: Final[int | None] = offered("socket", "TCP_INFO")
"""Socket option that returns the kernel's counters of bytes and packets; None except on Linux."""
ACKNOWLEDGED_AT: Final = 120
"""Byte offset of tcpi_bytes_acked in struct tcp_info."""
RECEIVED_AT: Final = 128
"""Byte offset of tcpi_bytes_received in struct tcp_info."""
SENT_AT: Final = 200
"""Byte offset of tcpi_bytes_sent in struct tcp_info."""
KEEPALIVE_INTERVAL: Final = 10
"""Seconds between two keepalive probes that are not answered."""
KEEPALIVE_PROBES: Final = 6
"""Unanswered keepalive probes after which the system ends a connection."""
KEEPALIVE_IDLE: Final[int | None] = present("socket", "TCP_KEEPIDLE") or present("socket", "TCP_KEEPALIVE")
"""Socket option of the seconds without input after which a socket is probed; macOS has another name for it."""
FULL_SHARE: Final = 4
"""Divisor of a socket's receive buffer: with more unread bytes than this part, the client may be unable to send more."""

_counter_format = struct.Struct("=Q")


class Socket(Protocol):
    """Methods that asyncio's sockets of transports have, too."""

    def fileno(self) -> int: ...

    def getsockopt(self, level: int, option: int, /, *length: Any) -> Any: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def tcp_info(sock: Socket | None) -> bytes:
    """Return the struct tcp_info of a socket; empty if the system has none or the socket is closed."""
    if sock is None or TCP_INFO is None:
        return b""
    try:
        info: bytes = sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
    except OSError:
        return b""
    return info


def bytes_received(sock: Socket | None) -> int | None:
    """Return the number of bytes that have arrived at a socket, read or not; None if the system does not count them."""
    return _counter(sock, RECEIVED_AT)


def bytes_acknowledged(sock: Socket | None) -> int | None:
    """Return the number of bytes that the other end of a socket has acknowledged; None if the system does not count them.

    A system acknowledges no more once the receive buffer of its socket is full.
    """
    return _counter(sock, ACKNOWLEDGED_AT)


def _counter(sock: Socket | None, offset: int) -> int | None:
    """Return a counter of 64 bits in struct tcp_info; None if the system does not have it."""
    info = tcp_info(sock)
    if len(info) < offset + _counter_format.size:
        return None
    found: int = _counter_format.unpack_from(info, offset)[0]
    return found


def bytes_exchanged(sock: Socket | None) -> list[int]:
    """Return the numbers of bytes that a socket has received and sent; 0 where the system does not count them."""
    info = tcp_info(sock)
    if len(info) < SENT_AT + _counter_format.size:
        return [0, 0]
    return [_counter_format.unpack_from(info, RECEIVED_AT)[0], _counter_format.unpack_from(info, SENT_AT)[0]]


def is_receive_buffer_full(sock: Socket | None) -> bool:
    """Return whether so much input waits in a socket that the client may be unable to send more."""
    if sock is None:
        return False
    try:
        unread = unread_bytes(sock.fileno())
        size: int = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    except (OSError, ValueError):
        return False
    return unread * FULL_SHARE >= size


def enable_keepalive(sock: Socket, idle: int) -> None:
    """Let the system find out whether the other end of a socket is still there.

    :param idle: seconds without input after which it is probed; 0 probes nothing.
    """
    if not idle:
        return
    # A system may lack one of the options, and then uses its own default.
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if KEEPALIVE_IDLE is not None:
            sock.setsockopt(socket.IPPROTO_TCP, KEEPALIVE_IDLE, idle)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
