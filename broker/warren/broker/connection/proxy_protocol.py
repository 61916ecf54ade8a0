"""PROXY protocol, versions 1 and 2: the header with the client's address that a load balancer sends.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt. A listener that is configured for it requires the header of
every connection. If it were optional, anybody who reaches the listener could claim any address.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from warren.broker.connection.listen_address import Address

logger = logging.getLogger(__name__)

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
MAX_TEXT_HEADER: Final = 107
"""Largest header of version 1 in bytes, line end included."""
MAX_BINARY_HEADER: Final = 1024
"""Most bytes accepted behind the first 16 of a version 2 header: 36 for addresses, the rest for extensions."""
ACCEPT_PAUSE: Final = 0.2
"""Seconds to stop accepting connections after the system refused another socket, for example at its limit of files."""

ProtocolFactory = Callable[[str], asyncio.BaseProtocol]
"""Function that makes the asyncio protocol of a connection, given the address of the client."""
ReadExactly = Callable[[int], Awaitable[bytes]]


class ProxyHeaderError(Exception):
    """Missing or malformed PROXY protocol header at the start of a connection. The text is for the log."""


async def read_header(read: ReadExactly) -> str:
    """Read a PROXY protocol header, and return the client's address; empty if the proxy itself is the client.

    :param read: reads an exact number of bytes, so that nothing behind the header is consumed.
    :raises ProxyHeaderError: if there is no header, or it is malformed.
    """
    head = await read(len(SIGNATURE))
    if head == SIGNATURE:
        return await _read_binary(read)
    if head.startswith(b"PROXY "):
        while not head.endswith(b"\r\n"):
            if len(head) >= MAX_TEXT_HEADER:
                raise ProxyHeaderError("a header of version 1 without an end")
            head += await read(1)
        return _parse_text(head)
    raise ProxyHeaderError("no header of the PROXY protocol")


def _parse_text(line: bytes) -> str:
    words = line.decode("ascii", "replace").removesuffix("\r\n").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return ""
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyHeaderError("a malformed header of version 1")
    try:
        address = ipaddress.ip_address(words[2])
    except ValueError:
        raise ProxyHeaderError("a header of version 1 without an address") from None
    if address.version != (4 if words[1] == "TCP4" else 6):
        raise ProxyHeaderError("a header of version 1 whose address is of the other family")
    return str(address)


async def _read_binary(read: ReadExactly) -> str:
    command, family, *size = await read(4)
    length = int.from_bytes(bytes(size))
    if command >> 4 != 2 or command & 15 > 1 or length > MAX_BINARY_HEADER:
        raise ProxyHeaderError("a malformed header of version 2")
    rest = await read(length) if length else b""
    if command & 15 == 0 or family not in (0x11, 0x21):
        # A health check of the proxy, or a client that does not use TCP.
        return ""
    size_of_address = 4 if family == 0x11 else 16
    if length < 2 * size_of_address + 4:
        raise ProxyHeaderError("a header of version 2 without addresses")
    return str(ipaddress.ip_address(rest[:size_of_address]))


class ProxiedServer:
    """Replacement of `asyncio.Server` for connections that begin with a PROXY protocol header."""

    def __init__(
        self,
        listening: list[socket.socket],
        factory: ProtocolFactory,
        context: ssl.SSLContext | None,
        timeout: float,
    ) -> None:
        self.sockets = listening
        self._factory = factory
        self._context = context
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        for each in listening:
            self._listen(each)

    @classmethod
    async def open(
        cls, address: Address, factory: ProtocolFactory, context: ssl.SSLContext | None, seconds: float
    ) -> ProxiedServer:
        """Listen at an address.

        :param factory: makes the asyncio protocol of a connection, given the client's address.
        :param context: for TLS, which begins behind the header; None for plain connections.
        :param seconds: timeout of the header, and again of the TLS handshake.
        :raises OSError: if the address is in use or is not this machine's.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with contextlib.ExitStack() as undo:
            listening = []
            for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
                each = socket.create_server(where[:2], family=family, backlog=1024)
                undo.callback(each.close)
                each.setblocking(False)
                listening.append(each)
            undo.pop_all()
        return cls(listening, factory, context, seconds)

    def close(self) -> None:
        """Stop accepting, and abort connections that have not sent their header."""
        for task in self._tasks:
            task.cancel()
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()

    async def wait_closed(self) -> None:
        """Wait until the connections that `close` has aborted are gone."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listen(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, peer = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.warning("event=listener.accept_failed reason=%r", str(error))
            self._loop.remove_reader(listening)
            self._loop.call_later(ACCEPT_PAUSE, self._listen, listening)
            return
        accepted.setblocking(False)
        task = asyncio.ensure_future(self._open_connection(accepted, str(peer[0])))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._on_opened(task, accepted))

    def _on_opened(self, task: asyncio.Task[None], accepted: socket.socket) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # If the task had not begun, nothing else closes it.
            accepted.close()

    async def _open_connection(self, accepted: socket.socket, peer: str) -> None:
        async def read(count: int) -> bytes:
            data = bytearray(count)
            view, have = memoryview(data), 0
            while have < count:
                got = await self._loop.sock_recv_into(accepted, view[have:])
                if not got:
                    raise ProxyHeaderError("the connection ended within the header")
                have += got
            return bytes(data)

        try:
            async with asyncio.timeout(self._timeout):
                client = await read_header(read)
            await self._loop.connect_accepted_socket(
                lambda: self._factory(client or peer),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout if self._context else None,
            )
        except (ProxyHeaderError, OSError) as error:
            logger.warning("event=listener.proxied_connection_failed peer=%s reason=%r", peer, str(error))
            accepted.close()
