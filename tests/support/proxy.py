"""TCP proxy that cuts, holds, delays, throttles and half-closes connections on command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit

CHUNK = 64 * 1024
OPENING = 1024
"""Bytes that a client sends at least until its connection is open, its properties among them."""

Watch = Callable[[bytes], "tuple[int, Callable[[], End | None]] | None"]
"""Inspects a piece of data; returns the offset in it and the function to call there, or None."""


Rewrite = Callable[[bytes], bytes]
"""Returns the data to pass on instead of a piece; it may keep a part for the next call."""


class End(Enum):
    """End of one direction of a connection; the rest of its bytes is lost."""

    CUT = "both ends are reset"
    HALF_CLOSED = "the receiver sees the end of the stream"


class Lane:
    """One direction of every connection through the proxy; its faults can be changed at any time."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds that every piece waits before it is passed on."""
        self.bytes_per_second: int | None = None
        """None: unlimited."""
        self.passed = 0
        """Bytes passed on so far."""
        self.watch: Callable[[], Watch] | None = None
        """Creates the watcher of each new connection."""
        self.rewrite: Callable[[], Rewrite] | None = None
        """Creates the rewriter of each new connection."""
        self._cut_after: int | None = None
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Hold all data until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    @property
    def held(self) -> bool:
        return not self._open.is_set()

    def cut_after(self, count: int) -> None:
        """Cut the connection in which the `count`-th byte from now on passes, right after that byte; once."""
        self._cut_after = count

    async def _admit(self, data: bytes) -> tuple[bytes, bool]:
        """Wait until data may pass; return that part of it, and whether the connection is cut afterwards."""
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._open.wait()
        if self._cut_after is None:
            return data, False
        if len(data) < self._cut_after:
            self._cut_after -= len(data)
            return data, False
        admitted, self._cut_after = data[: self._cut_after], None
        return admitted, True


class Proxy:
    """`async with Proxy(url) as proxy:` then connect to `proxy.url`."""

    def __init__(self, target: str) -> None:
        """:param target: an AMQP or other URL with host and port"""
        parts = urlsplit(target)
        self._parts = parts
        self._host = parts.hostname or "127.0.0.1"
        self._target_port = parts.port or 5672
        self.port = 0
        self.accepted = 0
        """Connections accepted so far."""
        self.to_server = Lane()
        self.to_client = Lane()
        self._refusing = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: dict[tuple[asyncio.StreamWriter, asyncio.StreamWriter], bytearray] = {}
        """Open connections, with the first bytes of their clients."""

    @property
    def url(self) -> str:
        login = self._parts.netloc.rpartition("@")[0]
        place = f"127.0.0.1:{self.port}"
        return urlunsplit(self._parts._replace(netloc=f"{login}@{place}" if login else place))

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def cut(self, opened_with: bytes = b"") -> None:
        """Reset every open connection on both sides, as a lost network does once it is noticed.

        :param opened_with: bytes that the client sent when it opened the connection, such as its name; other connections
            go on.
        """
        for pair, opening in list(self._connections.items()):
            if opened_with in opening:
                for writer in pair:
                    writer.transport.abort()

    def half_close(self, lane: Lane) -> None:
        """End one direction of every open connection (a FIN); the other goes on."""
        for client, server in self._connections:
            writer = server if lane is self.to_server else client
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()

    def lead_to(self, target: str) -> None:
        """Connect new connections to another server; the open ones go on, as after a change of a DNS name."""
        parts = urlsplit(target)
        self._host, self._target_port = parts.hostname or "127.0.0.1", parts.port or self._target_port

    def refuse(self) -> None:
        """Reset new connections at once until `accept`; the open ones go on."""
        self._refusing = True

    def accept(self) -> None:
        self._refusing = False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._connections[pair] = bytearray()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(self.to_server, reader, far_writer, pair))
                both.create_task(self._pass(self.to_client, far_reader, writer, pair))
        finally:
            self._connections.pop(pair, None)
            for end in pair:
                end.close()

    async def _pass(
        self,
        lane: Lane,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        look = None if lane.watch is None else lane.watch()
        change = None if lane.rewrite is None else lane.rewrite()
        try:
            opening = self._connections[pair] if lane is self.to_server else None
            while data := await reader.read(CHUNK):
                if opening is not None and len(opening) < OPENING:
                    opening += data
                data = data if change is None else change(data)
                due = None if look is None else look(data)
                if due is not None:
                    after, happen = due
                    await self._write(lane, writer, data[:after])
                    data = data[after:]
                    over = happen()
                    if over is End.CUT:
                        for one in pair:
                            one.transport.abort()
                        return
                    if over is End.HALF_CLOSED:
                        break
                admitted, cut = await lane._admit(data)
                await self._write(lane, writer, admitted)
                if cut:
                    for end in pair:
                        end.transport.abort()
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
        except OSError:
            for end in pair:
                end.transport.abort()

    async def _write(self, lane: Lane, writer: asyncio.StreamWriter, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            rate = lane.bytes_per_second
            piece = data[sent : sent + (max(rate // 20, 1) if rate else len(data))]
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            lane.passed += len(piece)
            if rate:
                await asyncio.sleep(len(piece) / rate)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connected(reader, writer)
        except asyncio.CancelledError:
            # Only __aexit__ cancels; asyncio's server would report it as an unhandled error.
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()
