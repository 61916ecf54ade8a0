"""The listener: sockets to sessions, bytes in and out, and nothing of their meaning."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import cast

from warren.broker.session.connection import Connection
from warren.broker.session.handshake import Conversation
from warren.broker.session.node import Node
from warren.broker.session.sasl import Peer

logger = logging.getLogger(__name__)

READ_BYTES = 128 * 1024
"""What is read from one socket before the others get their turn."""
SLOWED_BYTES = 16 * 1024
"""The same for a connection that publishes faster than its queue is consumed."""
CHOKE_BYTES = 1024 * 1024
"""A consumer's deliveries stop while its socket has this much unsent."""
LAST_WORDS_SECONDS = 2.0
"""How long a stop waits for clients to read what was written to them, the reason for it included."""


class AmqpProtocol(asyncio.BufferedProtocol):
    """One socket. What is read is copied at once, so all of a listener's read into the same buffer."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._node = listener.node
        self._view = listener.view
        self._slowed = listener.slowed
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=CHOKE_BYTES)
        peer = stream.get_extra_info("peername")
        sock = stream.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = str(peer[0]) if peer else ""
        conversation = Conversation(Peer(address))
        self._connection = Connection(self._node, conversation, stream, address)
        self._node.connections[self._connection] = True
        self._listener.opened(stream)
        conversation.later(
            self._connection, self._node.limits.handshake_timeout, conversation.handshake_timeout
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._connection is not None
        return self._slowed if self._connection.crowding else self._view

    def buffer_updated(self, nbytes: int) -> None:
        assert self._connection is not None
        self._connection.feed(bytes(self._view[:nbytes]))

    def pause_writing(self) -> None:
        assert self._connection is not None
        self._connection.choke()

    def resume_writing(self) -> None:
        assert self._connection is not None
        self._connection.unchoke()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        assert self._connection is not None
        self._connection.conversation.drop(self._connection)
        self._listener.lost(self._connection.transport)


class Listener:
    """One address that connections are accepted at, and the sockets that came of it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.view = memoryview(bytearray(READ_BYTES))
        self.slowed = self.view[:SLOWED_BYTES]
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.Transport] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def open(self, host: str, port: int) -> int:
        """Accept connections; port 0 takes a free one. The port.

        :raises OSError: if the address is taken or not this machine's.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: AmqpProtocol(self), host, port, backlog=1024)
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Wait until the sockets, which their sessions have closed, are gone; cut off who does not read what is left."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._empty.wait()
        except TimeoutError:
            for transport in self._transports:
                transport.abort()
            await self._empty.wait()
        if self._server is not None:
            await self._server.wait_closed()

    def opened(self, transport: asyncio.Transport) -> None:
        self._transports.add(transport)
        self._empty.clear()

    def lost(self, transport: asyncio.Transport) -> None:
        self._transports.discard(transport)
        if not self._transports:
            self._empty.set()
