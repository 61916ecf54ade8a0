"""One connection of a script: reconnects after the broker closed it, and tracks unconfirmed publishes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from pamqp import base, body, commands, frame, header

from tests.support.frames import HEADER
from tests.support.raw_client import RawClient, content, encoded

CARRIERS = (commands.Basic.Deliver, commands.Basic.GetOk, commands.Basic.Return)


@dataclass
class Channel:
    """State of an open channel."""

    confirming: bool = False
    published: int = 0
    unsettled: set[int] = field(default_factory=set)
    consumers: set[str] = field(default_factory=set)

    def settle(self, tag: int, multiple: bool) -> list[int]:
        """Remove and return the publishes that a confirm settles."""
        found = [number for number in self.unsettled if number == tag or (multiple and number <= tag)]
        self.unsettled -= set(found)
        return sorted(found)


@dataclass(frozen=True)
class ReceivedMethod:
    """Method with its content."""

    channel: int
    method: base.Frame
    header: bytes = b""
    body: bytes = b""


class ScriptConnection:
    """Connection that is opened when it is needed, and again after its end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.channels: dict[int, Channel] = {}
        self._peer: RawClient | None = None

    @property
    def connected(self) -> bool:
        return self._peer is not None

    @property
    def peer(self) -> RawClient:
        if self._peer is None:
            self._peer = RawClient(self.url).connect()
        return self._peer

    def has_input(self, seconds: float = 0.0) -> bool:
        return self._peer is not None and self._peer.has_input(seconds)

    def disconnect(self) -> None:
        """Close the socket after the connection has ended and the broker has processed that."""
        if self._peer is not None:
            self._peer.finish()
        self._peer = None
        self.channels.clear()

    def send(self, command: base.Frame, channel: int) -> None:
        self.peer.send(command, channel)

    def publish(
        self, method: base.Frame, message: bytes, properties: commands.Basic.Properties, channel: int
    ) -> None:
        state = self.channels[channel]
        if state.confirming:
            state.published += 1
            state.unsettled.add(state.published)
        data = encoded(method, channel) + content(message, properties, channel=channel)
        self.peer.send_bytes(data)

    def read_method(self) -> ReceivedMethod:
        """Read the next method, with its content.

        :raises ConnectionError: if the broker has closed the socket
        """
        peer = self.peer
        channel, method = peer.read_method()
        if not isinstance(method, CARRIERS):
            return ReceivedMethod(channel, method)
        head = peer.read_bytes(7)
        kind, number, size = struct.unpack(">BHI", head)
        assert (kind, number) == (HEADER, channel)
        payload = peer.read_bytes(size + 1)
        _, _, found = frame.unmarshal(head + payload)
        assert isinstance(found, header.ContentHeader)
        received = b""
        while len(received) < found.body_size:
            _, piece = peer.read()
            assert isinstance(piece, body.ContentBody), piece
            received += piece.value or b""
        return ReceivedMethod(channel, method, payload[:-1], received)
