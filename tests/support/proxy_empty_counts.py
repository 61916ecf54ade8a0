"""Replies of a RabbitMQ whose quorum queue has no leader, in the proxy: 0 messages and 0 consumers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection

from tests.support.frames import METHOD, QUEUE_DECLARE_OK


class EmptyCounts:
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
        if frame[0] != METHOD:
            return frame
        method = struct.unpack_from(">HH", frame, 7)
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
        counts = 12 + frame[11]
        return frame[:counts] + bytes(8) + frame[counts + 8 :]
