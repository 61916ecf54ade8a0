"""Connections of clients inside the broker's own process, such as shovels: a pair of transports in the place of a socket."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from warren.broker.access.login_chain import Login
from warren.broker.access.sasl_authentication import PeerIdentity
from warren.broker.connection.connection import Connection

if TYPE_CHECKING:
    from warren.broker.connection.broker_node import BrokerNode

ADDRESS: Final = "127.0.0.1"
"""Address that such a client has for login delays and loopback users."""
PIECE: Final = 32 * 1024
"""Bytes of input that one end gets in a turn of the event loop, so that other clients get their turns."""
WRITE_BUFFER_HIGH: Final = 256 * 1024
"""Bytes that wait for the other end above which an end should pause writing."""

CLOSE_TIMEOUT: Final = 3.0
"""Seconds after the end of one side within which the other side has to read what was sent before."""

SERIALS: Final = itertools.count(1)


class StreamProtocol(Protocol):
    """Protocol of one end: that of asyncio, whose input comes as bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class InProcessTransport(asyncio.Transport):
    """One end of a connection whose other end is in the same process.

    What one end writes, the other gets in a later turn of the event loop, in pieces.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: StreamProtocol, name: str) -> None:
        super().__init__({"peername": name, "sockname": "broker"})
        self.other: InProcessTransport
        """The other end."""
        self._loop = loop
        self._protocol = protocol
        self._inbox: deque[bytes] = deque()
        self._unread = 0
        self._high = WRITE_BUFFER_HIGH
        self._reading_paused = False
        self._writing_paused = False
        self._scheduled = False
        self._closing = False
        self._other_closed = False
        self._lost = False

    # -- writing

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        other = self.other
        other._inbox.append(bytes(data))
        other._unread += len(data)
        other._schedule()
        if not self._writing_paused and other._unread > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.other._unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WRITE_BUFFER_HIGH if high is None else high

    def can_write_eof(self) -> bool:
        return False

    # -- reading

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule()

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def _schedule(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Pass the next piece of input to the protocol, and the loss of the connection behind the last one."""
        self._scheduled = False
        if self._lost:
            return
        if self._closing or (self._other_closed and not self._inbox):
            self._lose()
            return
        if self._reading_paused or not self._inbox:
            return
        pieces, size = [self._inbox.popleft()], 0
        size = len(pieces[0])
        while self._inbox and size + len(self._inbox[0]) <= PIECE:
            pieces.append(self._inbox.popleft())
            size += len(pieces[-1])
        data = b"".join(pieces)
        if size > PIECE:
            self._inbox.appendleft(data[PIECE:])
            data = data[:PIECE]
        self._unread -= len(data)
        self._protocol.data_received(data)
        other = self.other
        if other._writing_paused and self._unread <= other._high // 4:
            other._writing_paused = False
            other._protocol.resume_writing()
        if self._inbox or self._other_closed or self._closing:
            self._schedule()

    # -- the end

    def close(self) -> None:
        """Close this end. The other end gets what was written so far, and then the loss of the connection."""
        if self._closing:
            return
        self._closing = True
        self._inbox.clear()
        self._unread = 0
        self._schedule()
        self.other._other_closed = True
        self.other._schedule()
        self._loop.call_later(CLOSE_TIMEOUT, self.other._lose)

    def abort(self) -> None:
        """Close this end; what the other one has not read yet is lost."""
        self.other._inbox.clear()
        self.other._unread = 0
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._closing = True
            self._protocol.connection_lost(None)


class BrokerEnd(asyncio.Protocol):
    """Protocol of the broker's end: it passes the client's input to a `Connection`."""

    def __init__(self, node: BrokerNode, identity: PeerIdentity) -> None:
        self._node = node
        self._identity = identity
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection = Connection(self._node, transport, self._identity)
        self._node.connections[self._connection] = True
        self._connection.lifecycle.start()

    def data_received(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.data_received(data)

    def pause_writing(self) -> None:
        assert self._connection is not None
        self._connection.on_write_buffer_full()

    def resume_writing(self) -> None:
        assert self._connection is not None
        self._connection.on_write_buffer_low()

    def connection_lost(self, error: Exception | None) -> None:
        assert self._connection is not None
        self._connection.lifecycle.on_socket_lost()


def connect_in_process(node: BrokerNode, client: StreamProtocol, login: Login | None) -> None:
    """Connect a client in this process to the broker.

    :param client: protocol of the client, which performs the handshake of AMQP.
    :param login: user that the client is logged in as, whatever it sends; None if it has to send a user's password.
    """
    name = f"in-process:{next(SERIALS)}"
    broker_end = BrokerEnd(node, PeerIdentity(ADDRESS, login=login))
    ours = InProcessTransport(node.loop, broker_end, name)
    theirs = InProcessTransport(node.loop, client, name)
    ours.other, theirs.other = theirs, ours
    broker_end.connection_made(ours)
    client.connection_made(theirs)
