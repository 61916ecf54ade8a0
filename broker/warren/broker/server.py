"""The listener: sockets to sessions, bytes in and out, and nothing of their meaning."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import cast

from warren.broker.session.connection import Connection
from warren.broker.session.handshake import Conversation
from warren.broker.session.node import Node

logger = logging.getLogger(__name__)

READ_BYTES = 128 * 1024
"""What is read from one socket before the others get their turn."""
CHOKE_BYTES = 1024 * 1024
"""A consumer's deliveries stop while its socket has this much unsent."""


class AmqpProtocol(asyncio.BufferedProtocol):
    """One socket. It reads into one buffer for ever: a fresh one for each read would cost the kernel new pages each time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=CHOKE_BYTES)
        peer = stream.get_extra_info("peername")
        sock = stream.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conversation = Conversation()
        self._connection = Connection(self._node, conversation, stream, str(peer[0]) if peer else "")
        conversation.later(
            self._connection, self._node.limits.handshake_timeout, conversation.handshake_timeout
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

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


async def listen(node: Node, host: str, port: int) -> asyncio.Server:
    """Accept connections at an address; port 0 takes a free one.

    :raises OSError: if the address is taken or not this machine's.
    """
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: AmqpProtocol(node), host, port, backlog=1024)
