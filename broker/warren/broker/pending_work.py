"""Detection of work that a broker must finish before a test's virtual clock may advance.

Such work is unread input, unsent output, bulk work, and confirms, definitions or stream reads that wait for the disk.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from typing import TYPE_CHECKING, Final

from warren.core.operating_system.descriptors import open_descriptors
from warren.core.operating_system.sockets import COUNTS_UNREAD, unread_bytes

if TYPE_CHECKING:
    from warren.broker.connection.broker_node import BrokerNode
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.connection.listener import Listener

UNSEEN_BYTES_SECONDS: Final = 0.02
"""Seconds of real time without input from a client after which no bytes are on their way any more.

For systems that do not count the bytes that wait in a socket. A local connection delivers within microseconds, and the
event loop polls several times meanwhile, also after this process stood still.
"""
UNREAD_GRACE: Final = 0.05
"""Seconds of real time after which unread bytes of a client are no longer pending work.

A client that has read nothing for so long probably waits for something else, such as the virtual clock to advance.
"""


class PendingWork:
    """Callable for `VirtualClock.watch` that describes work which the broker, or a client, has not finished yet.

    Clients are considered only if they run in the same process: the broker's output to them is pending until they
    have read it from their sockets. On systems that do not count unread bytes, each input of a client counts once as
    pending work, and the clock waits until there has been none for UNSEEN_BYTES_SECONDS.
    """

    def __init__(self, node: BrokerNode, listener: Listener) -> None:
        self._node = node
        self._listener = listener
        self._inputs = 0
        self._clients: dict[ClientSession, ClientSocket | None] = {}

    def __call__(self) -> str:
        """Return a description of the first pending work found; empty if there is none."""
        node = self._node
        if not node.flow.alarm:
            if node.commit_waiters:
                return "a definition that is not on the disk"
            if node.sync_waiters or node.confirm_waiters:
                return "a publish that is not on the disk"
        if not node.virtual_hosts.bulk_work.is_idle:
            return "bulk work"
        for declarations in node.vhosts.values():
            if declarations.vhost.streams is not None and declarations.vhost.streams.reading:
                return "a read of a stream"
        if self._listener.inputs != self._inputs:
            self._inputs = self._listener.inputs
            if not COUNTS_UNREAD:
                return "input from a client"
        for session in list(self._clients):
            if session not in node.connections:
                del self._clients[session]
        for session in list(node.connections):
            if pending := self._session_work(session):
                return f"{pending} {session.peer}"
        return ""

    def _session_work(self, session: ClientSession) -> str:
        sock = session.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return ""
        if pending := session.pending_work():
            return pending
        if session not in self._clients:
            self._clients[session] = ClientSocket.find(sock.getsockname(), sock.getpeername())
        client = self._clients[session]
        if client is not None and client.is_reading(session.unsent_bytes()):
            return "unread output for"
        return ""


class ClientSocket:
    """Client's end of a connection, where client and broker run in the same process."""

    def __init__(self, descriptor: int, address: object) -> None:
        self._descriptor = descriptor
        self._address = address
        self._unread = 0
        self._unread_since = 0.0

    @staticmethod
    def find(here: object, there: object) -> ClientSocket | None:
        """Return the client's socket of a connection, if it is in this process, else None.

        :param here: address of the broker's end of the connection.
        :param there: address of the client's end.
        """
        for descriptor in open_descriptors():
            if socket_address(descriptor, peer=True) == here and socket_address(descriptor) == there:
                return ClientSocket(descriptor, there)
        return None

    def is_reading(self, waiting: int) -> bool:
        """Return whether the client has unread bytes, and still seems to be reading them.

        A client whose number of unread bytes has not changed for UNREAD_GRACE seconds is taken not to be reading.

        :param waiting: bytes in the broker's write buffer for the client, added to those in the client's socket.
        """
        is_open = socket_address(self._descriptor) == self._address
        unread = waiting + (unread_bytes(self._descriptor) if is_open else 0)
        now = time.monotonic()
        if unread != self._unread:
            self._unread = unread
            self._unread_since = now
        return unread > 0 and now - self._unread_since < UNREAD_GRACE


def socket_address(descriptor: int, *, peer: bool = False) -> object:
    """Return the local address of a socket, as `socket.getsockname` does; None if the descriptor is no socket.

    :param peer: True for the address of the other end of the connection instead.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as copy:
            return copy.getpeername() if peer else copy.getsockname()
    except OSError:
        return None
