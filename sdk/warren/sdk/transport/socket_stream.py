"""The socket that aiormq and the SDK share: writing whole frames, and dispatching received frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Protocol, cast, runtime_checkable

from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from yarl import URL

from warren.sdk.logger import log
from warren.wire.delivery_scanner import METHOD, DeliveryScanner, StreamError

CHANNEL_CLOSE: Final = b"\x00\x14\x00\x28"
"""Class and method of channel.close."""
_FRAME: Final = Struct(">BHI")
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
ALIVE_SECONDS = 1.0
"""Seconds between the heartbeat frames that are passed to aiormq while only messages arrive. aiormq sees no messages,
and would close a connection on which it sees no frames as dead."""


class FrameWriter:
    """Writer of frames; all frames of one turn of the event loop are written with one call of the transport."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.transport: asyncio.WriteTransport = writer.transport
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self.before_flush: list[Callable[[], None]] = []
        """Functions that are called once, at the next flush; each may append frames to it."""

    @property
    def closed(self) -> bool:
        return self.transport.is_closing()

    def buffer(self) -> list[bytes]:
        """Return the list of byte strings for the next write, and schedule that write. Append whole frames only."""
        if not self._parts and not self.before_flush:
            self._loop.call_soon(self.flush)
        return self._parts

    def flush(self) -> None:
        """Pass all buffered frames to the transport now."""
        for callback in self.before_flush:
            callback()
        self.before_flush.clear()
        parts = self._parts
        if not parts:
            return
        self._parts = []
        if not self.transport.is_closing():
            self.transport.write(b"".join(parts))

    async def drain(self) -> None:
        """Flush, and wait until the write buffer of the transport is below its limit.

        :raises OSError: if the connection is lost meanwhile.
        """
        self.flush()
        await self._writer.drain()


@runtime_checkable
class ClosableListener(Protocol):
    """Listener of a channel that wants to know when the broker closes it."""

    def broker_closes(self) -> None:
        """Write nothing on the channel from now on: the broker has sent channel.close."""


class FrameDispatcher(asyncio.Protocol):
    """Protocol of the socket: messages and confirms go to their data channels, all other frames to aiormq."""

    def __init__(
        self, stream: asyncio.Protocol, transport: asyncio.Transport, scanner: DeliveryScanner
    ) -> None:
        self._stream = stream
        self._transport = transport
        self._scanner = scanner
        self._loop = asyncio.get_running_loop()
        self._fed = 0.0
        self._received = self._loop.time()
        self._silence_timer: asyncio.TimerHandle | None = None
        self.is_silent: bool = False
        """True if the connection was aborted because the broker sent nothing for the longest time allowed."""
        self.last_frames: bytes = b""
        """The frames that were last passed to aiormq."""

    def limit_silence(self, seconds: float) -> None:
        """Abort the connection once the broker has sent nothing for so many seconds.

        A machine that vanished, or a process that was frozen, closes no connection.
        """
        if self._transport.is_closing():
            return
        left = self._received + seconds - self._loop.time()
        if left > 0:
            self._silence_timer = self._loop.call_later(left, self.limit_silence, seconds)
            return
        self.is_silent = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received = self._loop.time()
        try:
            others = self._scanner.feed(data)
        except StreamError as error:
            log.critical("event=connection.protocol_violated error=%s", error)
            self._transport.abort()
            return
        now = self._received
        if not others and now - self._fed >= ALIVE_SECONDS and self._scanner.listeners:
            others = HEARTBEAT
        if others:
            self._fed = now
            self.last_frames = others
            self._announce_closes(others)
            self._stream.data_received(others)

    def _announce_closes(self, frames: bytes) -> None:
        """Tell channels that the broker closes them, before aiormq answers: nothing may be written after its answer."""
        position = 0
        while position + _FRAME.size <= len(frames):
            kind, channel, length = _FRAME.unpack_from(frames, position)
            payload = position + _FRAME.size
            if kind == METHOD and frames[payload : payload + 4] == CHANNEL_CLOSE:
                listener: object = self._scanner.listeners.get(channel)
                if isinstance(listener, ClosableListener):
                    listener.broker_closes()
            position = payload + length + 1

    def eof_received(self) -> bool | None:
        return self._stream.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self._stream.connection_lost(error)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()


class SocketFactory(TransportFactory):
    """Factory of the stream reader and writer that aiormq uses for a connection.

    It puts a `FrameDispatcher` between the socket and the reader.
    """

    def __init__(self, on_blocked: Callable[[str | None], None]) -> None:
        self.blocked = on_blocked
        self.scanner: DeliveryScanner = DeliveryScanner(self)
        self.writer: asyncio.StreamWriter | None = None
        self._dispatcher: FrameDispatcher | None = None

    @property
    def last_frames(self) -> bytes:
        """The frames that were last passed to aiormq; empty if none was received."""
        return b"" if self._dispatcher is None else self._dispatcher.last_frames

    def limit_silence(self, seconds: float) -> None:
        """Abort the connection once the broker has sent nothing for so many seconds."""
        if self._dispatcher is not None:
            self._dispatcher.limit_silence(seconds)

    @property
    def is_silent(self) -> bool:
        """True if the connection was aborted because the broker was silent."""
        return self._dispatcher is not None and self._dispatcher.is_silent

    async def create(self, url: URL, **keywords: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        inner = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, self.writer = await inner.create(url, **keywords)
        # The transports of uvloop have the methods of asyncio.Transport, but are no subclass.
        transport = cast(asyncio.Transport, self.writer.transport)
        stream = cast(asyncio.Protocol, transport.get_protocol())
        self._dispatcher = FrameDispatcher(stream, transport, self.scanner)
        transport.set_protocol(self._dispatcher)
        return reader, self.writer
