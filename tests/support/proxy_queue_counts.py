"""Counts of queue.declare-ok that a proxy changes: none for a queue without a leader, too many or too few for messages
that are delivered later."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection

from tests.support.frames import (
    BASIC_DELIVER,
    BODY,
    CHANNEL_CLOSE_OK,
    CONNECTION_START,
    HEADER,
    METHOD,
    QUEUE_DECLARE_OK,
)


class FrameRewriter:
    """Rewriter of the frames of all connections through a lane of a proxy; a subclass defines `_rewrite`."""

    def __call__(self) -> Callable[[bytes], bytes]:
        rest = b""

        def rewrite(data: bytes) -> bytes:
            nonlocal rest
            rest += data
            passed = []
            while len(rest) >= 8:
                (size,) = struct.unpack_from(">L", rest, 3)
                if len(rest) < size + 8:
                    break
                passed.append(self._rewrite(rest[: size + 8]))
                rest = rest[size + 8 :]
            return b"".join(passed)

        return rewrite

    def _rewrite(self, frame: bytes) -> bytes:
        """Return what is passed on in place of a frame."""
        raise NotImplementedError


def method_of(frame: bytes) -> tuple[int, int] | None:
    """Return the class id and method id of a method frame, and None for other frames."""
    return struct.unpack_from(">HH", frame, 7) if frame[0] == METHOD else None


def counts_of(declare_ok: bytes) -> tuple[int, int]:
    """Return the numbers of messages and consumers in a frame of queue.declare-ok."""
    return struct.unpack_from(">LL", declare_ok, 12 + declare_ok[11])


def with_counts(declare_ok: bytes, messages: int, consumers: int) -> bytes:
    """Return a frame of queue.declare-ok with these numbers."""
    start = 12 + declare_ok[11]
    return declare_ok[:start] + struct.pack(">LL", messages, consumers) + declare_ok[start + 8 :]


class EmptyCounts(FrameRewriter):
    """Plan for all connections through a proxy: `proxy.to_client.rewrite = EmptyCounts(5)`.

    queue.declare-ok reports 0 messages and 0 consumers, as RabbitMQ does for a quorum queue whose leader does not answer
    within 250 ms.

    :param left: number of replies to rewrite; a test may change it at any time.
    :param after: methods; the first replies are rewritten after one of these has passed. Empty: from the beginning.
    :param drop: methods without content whose frames are left out.
    :ivar rewritten: number of replies that were rewritten.
    :ivar seen: number of queue.declare-ok that passed, rewritten or not.
    """

    def __init__(
        self,
        left: int,
        *,
        after: Collection[tuple[int, int]] = (),
        drop: Collection[tuple[int, int]] = (),
    ) -> None:
        self.left = left
        self.rewritten = self.seen = 0
        self._after = set(after)
        self._started = not after
        self._drop = set(drop)

    def _rewrite(self, frame: bytes) -> bytes:
        method = method_of(frame)
        if method is None:
            return frame
        if method in self._drop:
            return b""
        self._started = self._started or method in self._after
        if method != QUEUE_DECLARE_OK:
            return frame
        self.seen += 1
        if not self._started or self.left <= 0:
            return frame
        self.left -= 1
        self.rewritten += 1
        return with_counts(frame, 0, 0)


class UncountedDeliveries(EmptyCounts):
    """Plan for one connection at a time: the leader is lost after a first reply of queue.declare-ok.

    No delivery passes before the last rewritten reply.

    :param first: counts of messages and consumers in the first reply
    :param left: number of later replies that report 0 messages and 0 consumers
    """

    def __init__(self, first: tuple[int, int], left: int) -> None:
        super().__init__(left)
        self._first: tuple[int, int] | None = first
        self._held: list[bytes] = []

    def __call__(self) -> Callable[[bytes], bytes]:
        self._held.clear()
        return super().__call__()

    def _rewrite(self, frame: bytes) -> bytes:
        kind, method = frame[0], method_of(frame)
        if method == QUEUE_DECLARE_OK and self._first is not None:
            first, self._first = self._first, None
            return with_counts(frame, *first)
        if (method == BASIC_DELIVER and self.left > 0) or (self._held and kind in (HEADER, BODY)):
            self._held.append(frame)
            return b""
        passed = super()._rewrite(frame)
        if self.left <= 0:
            passed += b"".join(self._held)
            self._held.clear()
        return passed


class CountedDeliveries(FrameRewriter):
    """Plan for all connections: the broker counts messages as ready which it delivers while the channel is closed.

    :param passing: number of deliveries that pass at once
    """

    def __init__(self, passing: int) -> None:
        self._passing = passing
        self._held: list[bytes] = []
        self.held = 0
        """Number of messages that are delivered only before channel.close-ok."""

    def _rewrite(self, frame: bytes) -> bytes:
        kind, method = frame[0], method_of(frame)
        if method == BASIC_DELIVER:
            self._passing -= 1
            self.held += self._passing < 0
        if self._passing < 0 and (method == BASIC_DELIVER or kind in (HEADER, BODY)):
            self._held.append(frame)
            return b""
        if method == CHANNEL_CLOSE_OK:
            passed = b"".join(self._held) + frame
            self._held.clear()
            return passed
        if method == QUEUE_DECLARE_OK and self._held:
            messages, consumers = counts_of(frame)
            return with_counts(frame, messages + self.held, consumers)
        return frame


class LateDeliveries(FrameRewriter):
    """Plan for one connection: RabbitMQ that is slow after messages were published to a stream.

    It reports 0 messages, as RabbitMQ does for up to 5 s, and delivers only after the given number of replies.
    """

    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._held: list[bytes] = []

    def _rewrite(self, frame: bytes) -> bytes:
        method = method_of(frame)
        if self._replies and method == QUEUE_DECLARE_OK:
            self._replies -= 1
            frame = with_counts(frame, 0, counts_of(frame)[1])
        elif self._replies and (self._held or method == BASIC_DELIVER):
            self._held.append(frame)
            return b""
        if method == CONNECTION_START:
            # A broker named Warren reports exact numbers.
            frame = frame.replace(b"\x06Warren", b"\x06Rabbit")
        if self._replies:
            return frame
        passed = frame + b"".join(self._held)
        self._held.clear()
        return passed
