"""Tampering with messages in the proxy: drop, repeat and swap publishes, drop acknowledgements."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from tests.support.frames import BASIC_ACK, BASIC_PUBLISH, BODY, HEADER, METHOD
from tests.support.raw_client import PROTOCOL_HEADER


class Tampering:
    """Tampering plan for all connections through a lane: `lane.rewrite = Tampering(...)`.

    :param drop, repeat, swap: bodies of publishes: left out; sent twice; sent after the one that follows
    :param forget: acknowledgements of this delivery tag and later ones are left out
    """

    def __init__(
        self,
        *,
        drop: Iterable[bytes] = (),
        repeat: Iterable[bytes] = (),
        swap: Iterable[bytes] = (),
        forget: int | None = None,
    ) -> None:
        self.drop = set(drop)
        self.repeat = set(repeat)
        self.swap = set(swap)
        self.forget = forget

    def __call__(self) -> Callable[[bytes], bytes]:
        return Stream(self).rewrite


class Stream:
    """Rewriter of one connection. It passes on whole frames, and a publish together with its content."""

    def __init__(self, plan: Tampering) -> None:
        self._plan = plan
        self._rest = b""
        self._begun = False
        self._contents: dict[int, list[bytes]] = {}
        """Frames of incomplete publishes, by channel."""
        self._missing: dict[int, int] = {}
        """Bytes of the body that are missing, by channel; -1 before the header."""
        self._held = b""

    def rewrite(self, data: bytes) -> bytes:
        data = self._rest + data
        at, passed = 0, []
        if not self._begun:
            self._begun, at = True, len(PROTOCOL_HEADER)
            passed.append(data[:at])
        while len(data) - at >= 8:
            kind, channel, size = struct.unpack_from(">BHL", data, at)
            end = at + size + 8
            if len(data) < end:
                break
            passed.append(self._frame(kind, channel, data[at:end]))
            at = end
        self._rest = data[at:]
        return b"".join(passed)

    def _frame(self, kind: int, channel: int, frame: bytes) -> bytes:
        payload = frame[7:-1]
        if kind == METHOD:
            method = struct.unpack_from(">HH", payload)
            if method == BASIC_PUBLISH:
                self._contents[channel], self._missing[channel] = [frame], -1
                return b""
            forget = self._plan.forget
            if (
                method == BASIC_ACK
                and forget is not None
                and struct.unpack_from(">Q", payload, 4)[0] >= forget
            ):
                return b""
            return frame
        if channel not in self._contents or kind not in (HEADER, BODY):
            return frame
        self._contents[channel].append(frame)
        if kind == HEADER:
            self._missing[channel] = struct.unpack_from(">Q", payload, 4)[0]
        else:
            self._missing[channel] -= len(payload)
        return b"" if self._missing[channel] else self._publish(self._contents.pop(channel))

    def _publish(self, frames: list[bytes]) -> bytes:
        whole, body = b"".join(frames), b"".join(frame[7:-1] for frame in frames[2:])
        if body in self._plan.drop:
            return b""
        if body in self._plan.swap:
            self._held = whole
            return b""
        held, self._held = self._held, b""
        return whole + held + (whole if body in self._plan.repeat else b"")
