"""The confirms of one channel: which publishes are done with, in the order in which they came.

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

_pack_settled = struct.Struct(">BHIHHQBB").pack


class Run:
    """Publishes in a row that one batch of the log confirms, or one that is refused."""

    def __init__(self, batch: i64, last: i64, refused: bool) -> None:
        self.batch = batch
        self.last = last
        self.refused = refused


class Confirms:
    """Numbers from 1, each confirmed once, several at once where they follow each other."""

    published: i64 = 0
    """The number of the last publish."""
    ready: i64 = 0
    """Up to here all may be confirmed, or have been."""
    sent: i64 = 0
    """Up to here all have been confirmed or refused."""
    listed: bool = False
    """The channel is on its connection's list of channels with confirms to send."""
    waiting: bool = False
    """The channel is on the node's list of channels that wait for the log."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.runs: deque[Run] = deque()
        self.captured: Optional[deque[tuple[bytes, Optional[str]]]] = None  # noqa: UP045
        """Exchange and id of what is not settled, in order; None if nobody is told."""

    def add(self, outcome: i64) -> None:
        """One more publish: TAKEN, STORED or REFUSED."""
        self.published += 1
        if outcome == ACCEPTED and not self.runs:
            self.ready = self.published
        else:
            self.queue_up(outcome)
        if not self.listed:
            self.channel.connection.has_confirms(self)

    def queue_up(self, outcome: i64) -> None:
        """Confirms leave in the order of the publishes, so what needs no disk waits for what went before it."""
        runs = self.runs
        last = runs[-1] if runs else None
        if outcome == REJECTED:
            runs.append(Run(last.batch if last is not None else 0, self.published, True))
        elif outcome == STORED:
            node = self.channel.connection.node
            batch = node.collecting()
            if last is not None and last.batch == batch and not last.refused:
                last.last = self.published
            else:
                runs.append(Run(batch, self.published, False))
            if not self.waiting:
                self.waiting = True
                node.confirm_waiters.append(self)
        else:
            assert last is not None
            if last.refused:
                runs.append(Run(last.batch, self.published, False))
            else:
                last.last = self.published

    def send(self, synced: i64, failed: bool) -> None:
        """Write what can be confirmed now: acks over several publishes at once, nacks for what is refused."""
        runs = self.runs
        while runs and (runs[0].batch <= synced or failed):
            run = runs.popleft()
            if run.refused:
                self.settle(run.last - 1, ACK)
                self.settle(run.last, NACK)
            elif run.batch <= synced:
                self.ready = run.last
            else:
                self.settle(self.ready, ACK)
                self.settle(run.last, NACK)
        self.settle(self.ready, ACK)

    def settle(self, last: i64, method: i64) -> None:
        """basic.ack or basic.nack for all that is not yet settled, up to a number."""
        count = last - self.sent
        if count <= 0:
            return
        self.sent = last
        self.ready = max(self.ready, last)
        channel = self.channel
        if self.captured is not None:
            self.tell(self.captured, count, method == ACK)
        multiple = 1 if count > 1 else 0
        channel.connection.out.append(
            _pack_settled(1, channel.number, 13, BASIC, method, last, multiple, 0xCE)
        )
        channel.connection.out_bytes += 21

    def tell(self, captured: deque[tuple[bytes, Optional[str]]], count: i64, ack: bool) -> None:  # noqa: UP045
        """The oldest so many publishes are settled."""
        channel = self.channel
        capture = channel.capture
        assert capture is not None
        while count > 0 and captured:
            exchange, identity = captured.popleft()
            if identity is not None:
                capture.confirmed(exchange, identity, channel.origin, ack)
            count -= 1
