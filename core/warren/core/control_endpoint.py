"""Place at which a broker's control socket is reached: a Unix socket, or a port of the loopback interface with a secret.

On systems without Unix sockets, the file at the path of the control socket holds the port and the secret. Who may read
that file may operate the broker: it has mode 0600 (on Windows the permissions of its folder).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from warren.core.operating_system.files import BINARY
from warren.core.operating_system.sockets import LONG_SOCKET_PATHS, UNIX_FAMILY

PATH_LIMIT: Final = 100
"""Longest path of a Unix socket, in bytes, that every supported system accepts (`sun_path` has 104 or 108)."""
LOOPBACK: Final = "127.0.0.1"
MOST_BYTES: Final = 1000
"""Most bytes that are read of a file that may describe an endpoint."""


class LoopbackEndpoint(NamedTuple):
    """Port of the loopback interface at which a broker accepts control connections."""

    port: int
    secret: str
    """First line of each connection, as hexadecimal digits."""


def uses_unix_socket(path: Path) -> bool:
    """Return whether a broker on this system listens on a Unix socket at a path."""
    return UNIX_FAMILY is not None and (LONG_SOCKET_PATHS or len(os.fsencode(path)) <= PATH_LIMIT)


def write_loopback_endpoint(path: Path, port: int) -> LoopbackEndpoint:
    """Write the file that describes a port, with a new secret, and return both.

    :raises OSError: the file cannot be written.
    """
    endpoint = LoopbackEndpoint(port, secrets.token_hex(32))
    partial = path.with_name(path.name + ".new")
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(json.dumps(endpoint._asdict()).encode() + b"\n")
    partial.replace(path)
    return endpoint


def read_loopback_endpoint(path: Path) -> LoopbackEndpoint | None:
    """Return the port that a file describes; None if the path is a Unix socket, is missing, or has another content.

    :raises OSError: the file cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            found = json.loads(file.read(MOST_BYTES))
        return LoopbackEndpoint(int(found["port"]), str(found["secret"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def connect(path: Path, timeout: float | None) -> socket.socket:
    """Return a connection to the broker whose control socket has a path.

    :param timeout: seconds for each step, also of what is sent and received later; None is no limit.
    :raises OSError: no broker listens there.
    """
    endpoint = read_loopback_endpoint(path)
    if endpoint is not None:
        sock = socket.create_connection((LOOPBACK, endpoint.port), timeout)
        try:
            sock.sendall(endpoint.secret.encode() + b"\n")
        except BaseException:
            sock.close()
            raise
        return sock
    if UNIX_FAMILY is None:
        raise FileNotFoundError(path)
    sock = socket.socket(UNIX_FAMILY, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with short_address(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Provide the address of a Unix socket, short enough for the system: through a descriptor of its folder if needed."""
    if len(os.fsencode(path)) <= PATH_LIMIT or not LONG_SOCKET_PATHS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


__all__ = [
    "LOOPBACK",
    "LoopbackEndpoint",
    "connect",
    "read_loopback_endpoint",
    "short_address",
    "uses_unix_socket",
    "write_loopback_endpoint",
]
