"""What a broker has yet to work off before a virtual clock may move on: bytes, confirms, definitions, reads."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
import termios
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.connection.node import Node

IGNORED_AFTER: Final = 0.05
"""A client that leaves bytes unread for so many seconds of real time is waiting for something else: for its test, say."""


class PendingWork:
    """A probe for `VirtualClock.watch`; the kernel tells it of both ends of a connection whose client is in this process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._clients: dict[Connection, Client | None] = {}

    def __call__(self) -> str:
        """The first thing that is unfinished; empty if there is none."""
        node = self._node
        if not node.alarm:
            if node.commit_waiters:
                return "a definition that is not on the disk"
            if node.sync_waiters or node.confirm_waiters:
                return "a publish that is not on the disk"
        for topology in node.vhosts.values():
            if topology.vhost.streams is not None and topology.vhost.streams.reading:
                return "a read of a stream"
        for connection in list(self._clients):
            if connection not in node.connections:
                del self._clients[connection]
        for connection in list(node.connections):
            what = self._connection(connection)
            if what:
                return f"{what} {connection.peer}"
        return ""

    def _connection(self, connection: Connection) -> str:
        if connection.closed:
            return ""
        sock = connection.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return ""
        if connection.out or connection.flushing:
            return "output for"
        if connection.reading and not connection.stalled and unread(sock.fileno()):
            return "input from"
        if connection not in self._clients:
            self._clients[connection] = Client.of(sock.getsockname(), sock.getpeername())
        client = self._clients[connection]
        if client is not None:
            waiting = connection.transport.get_write_buffer_size()
            if client.reads(waiting):
                return "unread output for"
        return ""


class Client:
    """The other end of a connection, if this process has it."""

    def __init__(self, number: int, address: object) -> None:
        self._number = number
        self._address = address
        self._left = 0
        self._since = 0.0

    @staticmethod
    def of(here: object, there: object) -> Client | None:
        """The socket that is connected from `there` to `here`."""
        try:
            numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        except OSError:
            return None  # not Linux: what a client has not read cannot be seen from here
        for number in numbers:
            if address(number, peer=True) == here and address(number) == there:
                return Client(number, there)
        return None

    def reads(self, waiting: int) -> bool:
        """Whether there is something to read for it, which it has not left lying.

        :param waiting: bytes that have not even reached its end.
        """
        left = waiting + (unread(self._number) if address(self._number) == self._address else 0)
        now = time.monotonic()
        if left != self._left:
            self._left = left
            self._since = now
        return left > 0 and now - self._since < IGNORED_AFTER


def unread(number: int) -> int:
    """How many bytes have arrived at a socket that nobody has read; 0 if it is gone."""
    try:
        answer = fcntl.ioctl(number, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return 0
    size: int = struct.unpack("i", answer)[0]
    return size


def address(number: int, *, peer: bool = False) -> object:
    """An end of the socket with this file number; None if it is no socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as copy:
            return copy.getpeername() if peer else copy.getsockname()
    except OSError:
        return None
