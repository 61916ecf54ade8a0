"""Publisher confirms of one channel: basic.ack and basic.nack, in the order of the publishes.

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
    """Consecutive publishes of a channel that may be confirmed together, when the same batch of the log is on disk.

    A publish that a queue refused forms a range of its own, because it gets basic.nack.

    :param batch: number of the log batch that must be on disk before the publishes are confirmed.
    :param last: number of the last publish of the range; the first follows the range before it.
    :param refused: True for a publish that gets basic.nack.
    """

    def __init__(self, batch: i64, last: i64, refused: bool) -> None:
        self.batch = batch
        self.last = last
        self.refused = refused


class PublisherConfirms:
    """Sender of one channel's publisher confirms.

    Publishes are numbered from 1. Each is confirmed or refused once; one frame covers consecutive ones.
    """

    published: i64 = 0
    """Number of the last publish, counted from 1 since confirm.select."""
    ready: i64 = 0
    """Number of the publish up to which all may be confirmed now, or have been confirmed."""
    sent: i64 = 0
    """Number of the publish up to which basic.ack or basic.nack was sent for all."""
    flush_scheduled: bool = False
    """True if the next flush of the connection sends confirms of the channel."""
    waiting: bool = False
    """True while this object is in `BrokerNode.confirm_waiters`, because confirms wait until the log is on disk."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.ranges: deque[ConfirmRange] = deque()
        """Publishes that are not confirmed before the log is on disk, and later ones, whose confirms have to follow."""
        self.captured: Optional[deque[tuple[bytes, Optional[str]]]] = None  # noqa: UP045
        """(exchange, message id) of each unconfirmed publish, in order; None if no life-cycle events are recorded."""

    def add(self, outcome: i64) -> None:
        """Record a publish that is to be confirmed, and schedule the sending of confirms.

        :param outcome: ACCEPTED (confirm at once), STORED (confirm when the log is on disk) or REJECTED (basic.nack).
        """
        self.published += 1
        if outcome == ACCEPTED and not self.ranges:
            self.ready = self.published
        else:
            self.enqueue(outcome)
        if not self.flush_scheduled:
            self.channel.connection.schedule_confirms(self)

    def add_logged(self) -> None:
        """Record a publish that was bulk work, to be confirmed when all records that the log has now are on disk.

        Unlike with `add`, the batch with its record may be closed, or on disk already.
        """
        node = self.channel.connection.node
        batch = node.last_batch()
        if batch <= node.synced_batch():
            self.add(ACCEPTED)
            return
        self.published += 1
        self.enqueue(STORED, batch)
        if not self.flush_scheduled:
            self.channel.connection.schedule_confirms(self)

    def enqueue(self, outcome: i64, batch: i64 = 0) -> None:
        """Add the last publish to those that cannot be confirmed yet (`ranges`).

        Only a STORED publish waits for the disk; any other waits for earlier publishes, to keep confirms in order.

        :param outcome: ACCEPTED, STORED (its confirm waits until the log is on disk) or REJECTED (it gets basic.nack).
        :param batch: number of the log batch that a STORED publish waits for; 0 for the current one.
        """
        ranges = self.ranges
        last = ranges[-1] if ranges else None
        if outcome == REJECTED:
            ranges.append(ConfirmRange(last.batch if last is not None else 0, self.published, True))
        elif outcome == STORED:
            node = self.channel.connection.node
            if not batch:
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
        """Append basic.ack and basic.nack for all publishes that can be settled now to the connection's output.

        :param synced: number of the last log batch that is on disk.
        :param failed: True if the log has failed: publishes that wait for it are refused.
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
        """Send one basic.ack or basic.nack (`method` ACK or NACK) for all unconfirmed publishes up to number `last`."""
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
        """Record life-cycle events for publishes that are being confirmed.

        :param captured: exchange and message id of each unconfirmed publish, oldest first; those confirmed are removed.
        :param count: number of publishes that are being confirmed.
        :param ack: True for basic.ack, False for basic.nack.
        """
        channel = self.channel
        capture = channel.capture
        assert capture is not None
        while count > 0 and captured:
            exchange, identity = captured.popleft()
            if identity is not None:
                capture.confirmed(exchange, identity, channel.origin, ack)
            count -= 1
