"""Faults of the proxy at a certain frame of the protocol."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from enum import Enum

from tests.support.proxy import End, Lane, Watch
from warren.wire.methods import BY_ID

KINDS = {2: "header", 3: "body", 8: "heartbeat"}
_HEAD = struct.Struct(">BHI")


class Fault(Enum):
    """Fault of the connection that carries the frame."""

    CUT_BEFORE = "cut before"
    CUT_WITHIN = "cut within"
    CUT_AFTER = "cut after"
    HALF_CLOSED = "half-closed"
    DELAYED = "delayed"
    THROTTLED = "throttled"


class FrameSplitter:
    """Frame boundaries in one direction of one connection, whose bytes arrive in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, int, int]]:
        """Yield the frames that end in `data`: name (`basic.publish`, `header`), begin and end as offsets in it."""
        before, whole = len(self._rest), self._rest + data
        position = 0
        while len(whole) - position >= 8:
            if whole.startswith(b"AMQP", position):
                name, end = "protocol header", position + 8
            else:
                kind, _, length = _HEAD.unpack_from(whole, position)
                end = position + 8 + length
                if end > len(whole):
                    break
                method = BY_ID.get(int.from_bytes(whole[position + 7 : position + 11])) if kind == 1 else None
                name = method.name if method is not None else KINDS.get(kind, str(kind))
            yield name, max(0, position - before), end - before
            position = end
        self._rest = whole[position:]


class FrameTrigger:
    """A fault at the n-th frame of a kind: `with FrameTrigger(lane, "basic.publish", Fault.CUT_WITHIN, nth=3) as trigger:`.

    :ivar hit: the fault has happened. It happens once.
    """

    def __init__(self, lane: Lane, frame: str, fault: Fault, *, nth: int = 1) -> None:
        self.hit = False
        self._lane = lane
        self._frame = frame
        self._fault = fault
        self._left = nth

    def __enter__(self) -> FrameTrigger:
        self._lane.watch = self._watch
        return self

    def __exit__(self, *_: object) -> None:
        self._lane.watch = None
        self._lane.bytes_per_second = None
        self._lane.release()

    def _watch(self) -> Watch:
        frames = FrameSplitter()

        def look(data: bytes) -> tuple[int, Callable[[], End | None]] | None:
            due: tuple[int, Callable[[], End | None]] | None = None
            for name, begin, end in frames.feed(data):
                if name != self._frame or self.hit or due is not None:
                    continue
                self._left -= 1
                if self._left == 0:
                    self.hit = True
                    due = self._where(begin, end), self._happen
            return due

        return look

    def _where(self, begin: int, end: int) -> int:
        if self._fault is Fault.CUT_BEFORE:
            return begin
        return end if self._fault is Fault.CUT_AFTER else (begin + end) // 2

    def _happen(self) -> End | None:
        loop = asyncio.get_running_loop()
        if self._fault is Fault.DELAYED:
            self._lane.hold()
            loop.call_later(0.1, self._lane.release)
        elif self._fault is Fault.THROTTLED:
            self._lane.bytes_per_second = 4000
            loop.call_later(0.3, self._free)
        else:
            return End.HALF_CLOSED if self._fault is Fault.HALF_CLOSED else End.CUT
        return None

    def _free(self) -> None:
        self._lane.bytes_per_second = None


class HeldFrame(FrameTrigger):
    """The n-th frame of a kind, held with all that follows until the lane is released, or the block ends.

    :ivar hit: the frame is held.
    """

    def __init__(self, lane: Lane, frame: str, *, nth: int = 1) -> None:
        super().__init__(lane, frame, Fault.CUT_BEFORE, nth=nth)

    def _happen(self) -> End | None:
        self._lane.hold()
        return None
