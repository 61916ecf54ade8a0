"""The PROXY protocol, versions 1 and 2: a load balancer says in front of each connection who it is for.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt. Once it is configured it is expected of everybody: without it,
whoever reaches the listener could claim any address.
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
LONGEST_TEXT: Final = 107
"""Bytes of a header of version 1, its line end included."""
LONGEST_BINARY: Final = 1024
"""Bytes behind the head of version 2; addresses take 36, the rest are extensions."""
FULL_PAUSE: Final = 0.2
"""Seconds that nothing is accepted for after the system had no room for another socket."""

Make = Callable[[str], asyncio.BaseProtocol]
"""Makes the protocol of a connection, whose client it is told."""
Read = Callable[[int], Awaitable[bytes]]


class NotProxied(Exception):
    """What came first is no header of the PROXY protocol. The text is for the log."""


async def read_header(read: Read) -> str:
    """The address of the client that a header names; empty if it is the proxy itself that connects.

    :param read: reads exactly so many bytes, so that nothing behind the header is taken.
    :raises NotProxied: if there is none, or it is malformed.
    """
    head = await read(len(SIGNATURE))
    if head == SIGNATURE:
        return await _binary(read)
    if head.startswith(b"PROXY "):
        while not head.endswith(b"\r\n"):
            if len(head) >= LONGEST_TEXT:
                raise NotProxied("a header of version 1 without an end")
            head += await read(1)
        return _text(head)
    raise NotProxied("no header of the PROXY protocol")


def _text(line: bytes) -> str:
    words = line.decode("ascii", "replace").removesuffix("\r\n").split(" ")
    if words[1:2] == ["UNKNOWN"]:
        return ""
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise NotProxied("a malformed header of version 1")
    try:
        address = ipaddress.ip_address(words[2])
    except ValueError:
        raise NotProxied("a header of version 1 without an address") from None
    if address.version != (4 if words[1] == "TCP4" else 6):
        raise NotProxied("a header of version 1 whose address is of the other family")
    return str(address)


async def _binary(read: Read) -> str:
    command, family, *size = await read(4)
    length = int.from_bytes(bytes(size))
    if command >> 4 != 2 or command & 15 > 1 or length > LONGEST_BINARY:
        raise NotProxied("a malformed header of version 2")
    rest = await read(length) if length else b""
    if command & 15 == 0 or family not in (0x11, 0x21):
        # The proxy looks whether we are well, or its client does not come over TCP.
        return ""
    size_of_address = 4 if family == 0x11 else 16
    if length < 2 * size_of_address + 4:
        raise NotProxied("a header of version 2 without addresses")
    return str(ipaddress.ip_address(rest[:size_of_address]))


class ProxiedServer:
    """Accepts connections that begin with a header; in the place of an `asyncio.Server`."""

    def __init__(
        self, listening: list[socket.socket], made: Make, context: ssl.SSLContext | None, seconds: float
    ) -> None:
        self.sockets = listening
        self._made = made
        self._context = context
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        for each in listening:
            self._listen(each)

    @classmethod
    async def open(
        cls, address: Address, made: Make, context: ssl.SSLContext | None, seconds: float
    ) -> ProxiedServer:
        """
        :param context: for TLS, which begins behind the header.
        :param seconds: from connecting to the end of the header, and then again to that of the TLS handshake.
        :raises OSError: if the address is taken or not this machine's.
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
        return cls(listening, made, context, seconds)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()

    async def wait_closed(self) -> None:
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
            logger.warning("event=accept_failed reason=%r", str(error))
            self._loop.remove_reader(listening)
            self._loop.call_later(FULL_PAUSE, self._listen, listening)
            return
        accepted.setblocking(False)
        task = asyncio.ensure_future(self._begin(accepted, str(peer[0])))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._began(task, accepted))

    def _began(self, task: asyncio.Task[None], accepted: socket.socket) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # Perhaps before it had begun.
            accepted.close()

    async def _begin(self, accepted: socket.socket, peer: str) -> None:
        async def read(count: int) -> bytes:
            data = bytearray(count)
            view, have = memoryview(data), 0
            while have < count:
                got = await self._loop.sock_recv_into(accepted, view[have:])
                if not got:
                    raise NotProxied("the connection ended within the header")
                have += got
            return bytes(data)

        try:
            async with asyncio.timeout(self._seconds):
                client = await read_header(read)
            await self._loop.connect_accepted_socket(
                lambda: self._made(client or peer),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds if self._context else None,
            )
        except (NotProxied, OSError) as error:
            logger.warning("event=not_proxied peer=%s reason=%r", peer, str(error))
            accepted.close()
