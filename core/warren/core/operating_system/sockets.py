"""Sockets: counting their unread bytes, watching them on an event loop, and Unix sockets."""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Final

from warren.core.operating_system.portable_switch import PORTABLE, offered

if TYPE_CHECKING:
    import asyncio

UNIX_FAMILY: Final[int | None] = offered("socket", "AF_UNIX")
"""Address family of Unix sockets; None if there are none."""
LONG_SOCKET_PATHS: Final = sys.platform == "linux" and not PORTABLE
"""True if a Unix socket whose path is too long for the system can be reached through a descriptor of its folder."""

_ioctl: Final[Any] = offered("fcntl", "ioctl")
_SO_PEERCRED: Final[int | None] = offered("socket", "SO_PEERCRED")
_CREDENTIALS: Final = struct.Struct("3i")
_FIONREAD: Final[Any] = offered("termios", "FIONREAD")

COUNTS_UNREAD: Final = _ioctl is not None and _FIONREAD is not None
"""True if the system counts the bytes that a socket has received and nobody has read."""


def unread_bytes(descriptor: int) -> int:
    """Return the number of bytes that a socket has received and nobody has read; 0 if it is closed, or not counted.

    :param descriptor: file descriptor of the socket.
    """
    if not COUNTS_UNREAD:
        return 0
    try:
        return int.from_bytes(_ioctl(descriptor, _FIONREAD, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        return 0


def peer_process(sock: socket.socket) -> tuple[int, int] | None:
    """Return user id and process id of the other end of a Unix socket; None if the system does not tell.

    They are those of the process that connected (Linux, unix(7), SO_PEERCRED).
    """
    if _SO_PEERCRED is None or sock.family != UNIX_FAMILY:
        return None
    try:
        pid, user, _ = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _CREDENTIALS.size)
        )
    except OSError:
        return None
    return user, pid


def watches_descriptors(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether an event loop has `add_reader`. The default one of Windows (IOCP) has not."""
    # Commands that need no event loop start faster without its library.
    import asyncio

    proactor = getattr(asyncio, "ProactorEventLoop", None)
    return not PORTABLE and not (proactor is not None and isinstance(loop, proactor))


__all__ = ["COUNTS_UNREAD", "LONG_SOCKET_PATHS", "UNIX_FAMILY", "unread_bytes", "watches_descriptors"]
