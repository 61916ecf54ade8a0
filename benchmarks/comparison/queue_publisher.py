"""Publishing of a number of messages into one queue, with each kind of confirmation."""

from __future__ import annotations

import time
from collections.abc import Mapping

from warren.broker.bench.load_topology import PublishTarget
from warren.broker.bench.message_flow import ConfirmCounter, PublishBuffer, publish_frames
from warren.core.blocking_connection import CHANNEL, BlockingConnection
from warren.wire import field_tables
from warren.wire.amqp_url import parse_url
from warren.wire.content import DELIVERY_MODE
from warren.wire.methods import frame

PATIENCE = 120.0
WINDOW = 1000


class QueuePublisher:
    """Connection that publishes 16 B messages into a queue of its own, which `close` deletes."""

    def __init__(
        self,
        url: str,
        queue: str,
        persistent: bool = False,
        arguments: Mapping[str, field_tables.Value] | None = None,
    ) -> None:
        self.connection = BlockingConnection(parse_url(url))
        self.connection.socket.settimeout(PATIENCE)
        self._queue = queue.encode()
        flags = (False, persistent, False, False, False)
        table = field_tables.encode(dict(arguments or {}))
        self.connection.call("queue.declare", 0, self._queue, *flags, table)
        self._address = (
            PublishTarget(b"", self._queue, b"\x02", DELIVERY_MODE)
            if persistent
            else PublishTarget(b"", self._queue)
        )
        self._confirms = ConfirmCounter()
        self._sent = 0
        self._confirming = False

    def publish(self, count: int, window: int = WINDOW, batched: bool = False) -> float:
        """Publish messages and wait until all are confirmed; return messages per second.

        :param batched: wait for all confirms of a window before the next window, instead of for a quarter of them
        """
        if not self._confirming:
            self.connection.call("confirm.select", False)
            self._confirming = True
        piece = window if batched else max(1, window // 4)
        batch = PublishBuffer([self._address], 16, piece, self.connection.frame_max, CHANNEL, 0)
        view = memoryview(batch.data)
        begun, first = time.monotonic(), self._sent
        last = first + count
        while self._confirms.settled < last:
            unconfirmed = self._sent - self._confirms.settled
            size = min(piece, last - self._sent)
            if size and unconfirmed + size <= window:
                batch.stamp(self._sent + 1, size, time.monotonic_ns())
                self.connection.socket.sendall(view[: size * batch.length])
                self._sent += size
                continue
            data = self.connection.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._confirms.feed(data)
            for other in self._confirms.other:
                self.connection.raise_if_closed(other)
            self._confirms.other.clear()
        assert not self._confirms.nacked, "the broker refused messages"
        return count / (time.monotonic() - begun)

    def commit_each(self, seconds: float) -> float:
        """Publish each message in a transaction of its own; return messages per second."""
        assert not self._confirming
        self.connection.call("tx.select")
        one = publish_frames(self._address, 16, self.connection.frame_max, CHANNEL)
        one += frame(CHANNEL, "tx.commit")
        begun, count = time.monotonic(), 0
        while (spent := time.monotonic() - begun) < seconds:
            self.connection.socket.sendall(one)
            self.connection.expect("tx.commit-ok")
            count += 1
        return count / spent

    def close(self) -> None:
        """Delete the queue and close the connection."""
        if self._confirming:
            self.connection.buffer = self._confirms.rest
        self.connection.call("queue.delete", 0, self._queue, False, False, False)
        self.connection.close()
