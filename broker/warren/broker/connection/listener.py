"""The listener: sockets to sessions, bytes in and out, and nothing of their meaning."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from typing import NamedTuple, cast

from warren.broker.access.sasl import Peer
from warren.broker.connection.connection import Connection
from warren.broker.connection.handshake import Conversation
from warren.broker.connection.listen_address import Address
from warren.broker.connection.node import Node
from warren.broker.connection.proxy_protocol import ProxiedServer
from warren.broker.connection.sockets import Sockets
from warren.broker.connection.tls import Secured

logger = logging.getLogger(__name__)

CHOKE_BYTES = 1024 * 1024
"""A consumer's deliveries stop while its socket has this much unsent."""
LAST_WORDS_SECONDS = 2.0
"""How long a stop waits for clients to read what was written to them, the reason for it included."""


class AmqpProtocol(asyncio.BufferedProtocol):
    """One socket. What `Sockets` does not read for it, because it is encrypted or the loop is somebody's own, comes here."""

    def __init__(self, listener: Listener, tls: Secured | None, client: str = "") -> None:
        """:param client: the address of who is behind a proxy"""
        self._listener = listener
        self._tls = tls
        self._client = client
        self._node = listener.node
        self._sockets = listener.sockets
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=CHOKE_BYTES)
        peer = stream.get_extra_info("peername")
        sock = stream.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = self._client or (str(peer[0]) if peer else "")
        secured = stream.get_extra_info("ssl_object")
        conversation = Conversation(
            Peer(address, self._tls.config.user(secured) if self._tls and secured else None)
        )
        self._connection = Connection(self._node, conversation, stream, address)
        self._node.connections[self._connection] = True
        if self._listener.prompt and sock is not None and secured is None:
            self._connection.descriptor = sock.fileno()
            self._sockets.connections[sock.fileno()] = self._connection
        self._listener.opened(stream)
        conversation.later(
            self._connection, self._node.limits.handshake_timeout, conversation.handshake_timeout
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._connection is not None
        return (self._sockets.slowed if self._connection.crowding else self._sockets.whole)[0]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._connection is not None
        self._connection.feed(bytes(self._sockets.view[:nbytes]))

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
        self._sockets.connections.pop(self._connection.descriptor, None)
        self._connection.descriptor = -1
        self._connection.conversation.lost(self._connection)
        self._listener.lost(self._connection.transport)


class Bound(NamedTuple):
    """Where connections are accepted."""

    scheme: str
    """`amqp`, or `amqps` with TLS."""
    address: Address

    def __str__(self) -> str:
        return f"{self.scheme}://{self.address}"


class ListenError(OSError):
    """An address cannot be listened at. The text is one line: why, and what to do."""

    def __init__(self, address: Address, error: OSError) -> None:
        super().__init__(error.errno, cannot_listen(address, error))

    def __str__(self) -> str:
        return str(self.strerror)


class Listener:
    """The addresses that connections are accepted at, and the sockets that came of it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        sockets = getattr(node.loop, "sockets", None)
        # A loop that is not `warren broker`'s may mean something else by the name.
        self.prompt = isinstance(sockets, Sockets)
        """The loop reads plain sockets as soon as they have something."""
        self.sockets = sockets if isinstance(sockets, Sockets) else Sockets()
        self.bound: list[Bound] = []
        self._servers: list[asyncio.Server | ProxiedServer] = []
        self._transports: set[asyncio.Transport] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def open(self, address: Address, tls: Secured | None = None, *, behind_proxy: bool = False) -> None:
        """Accept connections at one more address; port 0 takes a free one.

        :param behind_proxy: each connection begins with a header of the PROXY protocol.
        :raises ListenError: if the address is taken or not this machine's.
        """
        loop = asyncio.get_running_loop()
        seconds = self.node.limits.handshake_timeout
        context = tls.context if tls else None
        server: asyncio.Server | ProxiedServer
        try:
            if behind_proxy:
                server = await ProxiedServer.open(
                    address, lambda client: AmqpProtocol(self, tls, client), context, seconds
                )
            else:
                server = await loop.create_server(
                    lambda: AmqpProtocol(self, tls),
                    *address,
                    backlog=1024,
                    ssl=context,
                    ssl_handshake_timeout=seconds if tls else None,
                    ssl_shutdown_timeout=LAST_WORDS_SECONDS if tls else None,
                )
        except OSError as error:
            raise ListenError(address, error) from None
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        self.bound.append(Bound("amqps" if tls else "amqp", Address(address.host, port)))

    def stop_accepting(self) -> None:
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Wait until the sockets, which their sessions have closed, are gone; cut off who does not read what is left."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._empty.wait()
        except TimeoutError:
            for transport in self._transports:
                transport.abort()
            await self._empty.wait()
        with contextlib.suppress(TimeoutError):
            # From Python 3.12 on it waits for sockets in the middle of a TLS handshake, too.
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                for server in self._servers:
                    await server.wait_closed()

    def opened(self, transport: asyncio.Transport) -> None:
        self._transports.add(transport)
        self._empty.clear()

    def lost(self, transport: asyncio.Transport) -> None:
        self._transports.discard(transport)
        if not self._transports:
            self._empty.set()


def cannot_listen(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {address.port} at {address.host} is taken; choose another with --port, or 0 for any free one"
    if error.errno == errno.EACCES:
        return f"not allowed to listen at {address}; choose a port above 1023 with --port"
    return f"cannot listen at {address}: {error.strerror or error}; choose an address of this machine with --host"
