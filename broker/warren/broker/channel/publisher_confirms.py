"""Publisher confirms of one channel: which publishes are confirmed or refused, in the order in which they arrived.

https://www.rabbitmq.com/docs/confirms
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.model.queue.queue import ACCEPTED, REJECTED, STORED
from warren.wire.methods import ACK, BASIC, NACK

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel

_pack_confirm = struct.Struct(">BHIHHQBB").pack


class ConfirmRange:
    """Consecutive publishes that one batch of the log confirms, or a single one that is refused."""

    def __init__(self, batch: i64, last: i64, refused: bool) -> None:
        self.batch = batch
        self.last = last
        self.refused = refused


class PublisherConfirms:
    """Confirms of one channel. Publishes are numbered from 1; each is settled once, consecutive ones together."""

    published: i64 = 0
    """Number of the last publish."""
    ready: i64 = 0
    """All publishes up to this number may be confirmed, or have been."""
    sent: i64 = 0
    """All publishes up to this number have been confirmed or refused."""
    flush_scheduled: bool = False
    """The next flush of the connection sends confirms of the channel."""
    waiting: bool = False
    """The channel is on the node's list of those that wait for the log."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ranges: deque[ConfirmRange] = deque()
        """Publishes that wait for the log, and what waits behind them."""
        self.captured: Optional[deque[tuple[bytes, Optional[str]]]] = None  # noqa: UP045
        """Exchange and id of each unsettled publish, in order; None if events are not captured."""

    def add(self, outcome: i64) -> None:
        """Add a publish, with its outcome: ACCEPTED, STORED or REJECTED."""
        self.published += 1
        if outcome == ACCEPTED and not self.ranges:
            self.ready = self.published
        else:
            self.enqueue(outcome)
        if not self.flush_scheduled:
            self.channel.connection.schedule_confirms(self)

    def enqueue(self, outcome: i64) -> None:
        """Add the last publish to the waiting ranges. One that needs no disk waits as well: confirms keep their order."""
        ranges = self.ranges
        last = ranges[-1] if ranges else None
        if outcome == REJECTED:
            ranges.append(ConfirmRange(last.batch if last is not None else 0, self.published, True))
        elif outcome == STORED:
            node = self.channel.connection.node
            batch = node.current_batch()
            if last is not None and last.batch == batch and not last.refused:
                last.last = self.published
            else:
                ranges.append(ConfirmRange(batch, self.published, False))
            if not self.waiting:
                self.waiting = True
                node.confirm_waiters.append(self)
        else:
            assert last is not None
            if last.refused:
                ranges.append(ConfirmRange(last.batch, self.published, False))
            else:
                last.last = self.published

    def send(self, synced: i64, failed: bool) -> None:
        """Append what can be settled to the connection's output: acks, each over several publishes, and nacks.

        :param synced: the last batch of the log that is on the disk.
        :param failed: the log has failed: what waits for it is refused.
        """
        ranges = self.ranges
        while ranges and (ranges[0].batch <= synced or failed):
            first = ranges.popleft()
            if first.refused:
                self.settle(first.last - 1, ACK)
                self.settle(first.last, NACK)
            elif first.batch <= synced:
                self.ready = first.last
            else:
                self.settle(self.ready, ACK)
                self.settle(first.last, NACK)
        self.settle(self.ready, ACK)

    def settle(self, last: i64, method: i64) -> None:
        """Confirm (ACK) or refuse (NACK) all publishes up to a number that are not settled yet."""
        count = last - self.sent
        if count <= 0:
            return
        self.sent = last
        self.ready = max(self.ready, last)
        channel = self.channel
        if self.captured is not None:
            self.capture_settled(self.captured, count, method == ACK)
        multiple = 1 if count > 1 else 0
        channel.connection.append_confirm(
            _pack_confirm(1, channel.number, 13, BASIC, method, last, multiple, 0xCE)
        )

    def capture_settled(
        self,
        captured: deque[tuple[bytes, Optional[str]]],  # noqa: UP045
        count: i64,
        ack: bool,
    ) -> None:
        """Capture the events of the oldest publishes that are unsettled, as many as `count`."""
        channel = self.channel
        capture = channel.capture
        assert capture is not None
        while count > 0 and captured:
            exchange, identity = captured.popleft()
            if identity is not None:
                capture.confirmed(exchange, identity, channel.origin, ack)
            count -= 1
