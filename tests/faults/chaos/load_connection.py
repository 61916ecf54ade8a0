"""AMQP connection of a load client: asyncio protocol that passes each frame on as soon as it is read."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from pamqp import frame
from pamqp.base import Frame as Method
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel
from pamqp.commands import Connection as ConnectionClass
from pamqp.common import FieldTable
from pamqp.header import ContentHeader

from tests.support.raw_client import PROTOCOL_HEADER

Reply = TypeVar("Reply", bound=Method)
_HEAD = struct.Struct(">BHL")


class ConnectionEnded(Exception):
    """The connection has ended."""


class LoadConnection(asyncio.Protocol):
    """A connection with channel 1 open, created by `connect`.

    :ivar on_deliver: called with each basic.deliver, its properties and its body.
    :ivar on_return: called with each basic.return.
    :ivar on_confirm: called with each basic.ack and basic.nack.
    :ivar lost: completed when the connection has ended, for whatever reason.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.closed_with: Channel.Close | ConnectionClass.Close | None = None
        """The broker's channel.close or connection.close, if it sent one."""
        self.blocked = False
        self.on_deliver: Callable[[Basic.Deliver, Basic.Properties, bytes], None] = _ignore
        self.on_return: Callable[[Basic.Return], None] = _ignore
        self.on_confirm: Callable[[Basic.Ack | Basic.Nack], None] = _ignore
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: deque[asyncio.Future[Method]] = deque()
        self._carrier: Basic.Deliver | Basic.Return | None = None
        self._properties = Basic.Properties()
        self._body: list[bytes] = []
        self._missing = 0

    def send(self, data: bytes) -> None:
        """Send bytes; do nothing once the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def method(self, method: Method, channel: int = 1) -> None:
        self.send(frame.marshal(method, channel))

    async def call(self, method: Method, reply: type[Reply], channel: int = 1) -> Reply:
        """Send a method and return its reply.

        :raises ConnectionEnded: if the connection ends first.
        """
        self.method(method, channel)
        return await self._next(reply)

    async def _next(self, reply: type[Reply]) -> Reply:
        if self.lost.done():
            raise ConnectionEnded
        future: asyncio.Future[Method] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        found = await asyncio.wait_for(future, 30)
        assert isinstance(found, reply), found
        return found

    async def or_lost(self, awaited: Coroutine[Any, Any, object]) -> None:
        """Wait for a coroutine or for the end of the connection.

        :raises ConnectionEnded: if the connection ends first.
        """
        task = asyncio.ensure_future(awaited)
        waiting: set[asyncio.Future[Any]] = {task, self.lost}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        if self.lost.done():
            raise ConnectionEnded

    async def close(self) -> None:
        """Send connection.close and wait for its reply.

        :raises ConnectionEnded: the connection ended without a reply.
        """
        await self.call(ConnectionClass.Close(200, "bye", 0, 0), ConnectionClass.CloseOk, 0)
        self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEAD.size:
            size = _HEAD.unpack_from(self._buffer, at)[2] + _HEAD.size + 1
            if len(self._buffer) - at < size:
                break
            found = frame.unmarshal(bytes(self._buffer[at : at + size]))[2]
            at += size
            self._take(found)
        del self._buffer[:at]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionEnded())
        self._waiting.clear()

    def _take(self, found: object) -> None:
        match found:
            case Basic.Deliver() | Basic.Return():
                self._carrier = found
            case ContentHeader():
                self._properties, self._body, self._missing = found.properties, [], found.body_size
                self._delivered()
            case ContentBody():
                self._body.append(found.value)
                self._missing -= len(found.value)
                self._delivered()
            case Basic.Ack() | Basic.Nack():
                self.on_confirm(found)
            case ConnectionClass.Blocked() | ConnectionClass.Unblocked():
                self.blocked = isinstance(found, ConnectionClass.Blocked)
            case Channel.Close() | ConnectionClass.Close():
                self.closed_with = found
                self.abort()
            case Method() if self._waiting:
                future = self._waiting.popleft()
                if not future.done():
                    future.set_result(found)

    def _delivered(self) -> None:
        if self._missing == 0 and self._carrier is not None:
            carrier, self._carrier = self._carrier, None
            if isinstance(carrier, Basic.Return):
                self.on_return(carrier)
            else:
                self.on_deliver(carrier, self._properties, b"".join(self._body))


async def connect(url: str) -> LoadConnection:
    """Log in and open channel 1.

    :raises OSError: nothing listens at the address.
    :raises ConnectionEnded: the connection ended meanwhile.
    """
    parts = urlsplit(url)
    _, connection = await asyncio.get_running_loop().create_connection(
        LoadConnection, parts.hostname or "127.0.0.1", parts.port or 5672
    )
    try:
        connection.send(PROTOCOL_HEADER)
        await connection._next(ConnectionClass.Start)
        login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
        capabilities: FieldTable = {"capabilities": {"basic.nack": True, "connection.blocked": True}}
        await connection.call(
            ConnectionClass.StartOk(capabilities, "PLAIN", login, "en_US"), ConnectionClass.Tune, 0
        )
        connection.method(ConnectionClass.TuneOk(2047, 131072, 0), 0)
        await connection.call(ConnectionClass.Open("/"), ConnectionClass.OpenOk, 0)
        await connection.call(Channel.Open(), Channel.OpenOk)
    except BaseException:
        connection.abort()
        raise
    return connection


def _ignore(*_: object) -> None:
    return


__all__ = ["ConnectionEnded", "LoadConnection", "connect"]
