"""What sees every message: publishes in batches, confirms and deliveries in large pieces.

Nothing here reads or writes a socket; frames are found in the bytes as they came (AMQP 0-9-1, section 4.2.2),
and no object is made for a frame that only has to be counted.
"""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import i64

from warren.wire.content import DELIVERY_MODE, content_frames, join_content, make_header
from warren.wire.methods import frame

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_STAMP: Final = struct.Struct(">QQ")
_ACK: Final = struct.Struct(">BHIHHQBB")

_METHOD: Final = 1
_HEADER: Final = 2
_BODY: Final = 3

_BUCKETS: Final = 64 * 40


class Batch:
    """Publishes of one size, encoded once; only number and time change from one use to the next."""

    def __init__(
        self,
        queue: bytes,
        size: int,
        persistent: bool,
        capacity: int,
        frame_max: int,
        channel: int,
        prefix: int,
    ) -> None:
        """
        :param capacity: how many messages it holds
        :param prefix: which run and publisher they belong to (`prefix_of`)
        """
        method = frame(channel, "basic.publish", 0, b"", queue, False, False)
        header = make_header(size, b"\x02" if persistent else b"", DELIVERY_MODE if persistent else 0)
        content = content_frames(join_content(channel, header, bytes(size)), channel, frame_max)
        self.length: i64 = len(method) + len(content)
        """Bytes of one message, all its frames."""
        self.capacity = capacity
        self.data = bytearray((method + content) * capacity)
        self.body_at: i64 = len(method) + len(header) + 8 + 7
        self.size: i64 = size
        self.prefix = prefix

    def stamp(self, first: int, count: i64, now: int) -> None:
        """Number the batch's first `count` messages from `first` on, and set their time, in nanoseconds."""
        data = self.data
        at = self.body_at
        number = self.prefix + first
        if self.size >= 16:
            for _ in range(count):
                _STAMP.pack_into(data, at, number, now)
                at += self.length
                number += 1
        elif self.size >= 8:
            for _ in range(count):
                _U64.pack_into(data, at, number)
                at += self.length
                number += 1


class Confirms:
    """Counts a channel's confirms, which may come one by one, out of order, or many in one."""

    def __init__(self) -> None:
        self.low: i64 = 0
        """Every publish up to this one is settled."""
        self.early: set[int] = set()
        """Later ones that are settled already."""
        self.nacked: i64 = 0
        self.rest = b""
        self.other: list[bytes] = []
        """Frames that are no confirms, for someone else to judge."""

    @property
    def settled(self) -> int:
        return self.low + len(self.early)

    def feed(self, data: bytes) -> None:
        """Take what the socket gave."""
        if self.rest:
            data = self.rest + data
        end: i64 = len(data)
        p: i64 = 0
        while end - p >= 8:
            size: i64 = _U32.unpack_from(data, p + 3)[0]
            after: i64 = p + size + 8
            if after > end:
                break
            # basic.ack is 60.80, basic.nack 60.120; both begin with the tag and a bit for `multiple`.
            kind: i64 = data[p + 10] if size == 13 else 0
            if data[p] == _METHOD and (kind == 80 or kind == 120) and data[p + 8] == 60 and data[p + 7] == 0:
                self.settle(_U64.unpack_from(data, p + 11)[0], data[p + 19] & 1 == 1, kind == 120)
            else:
                self.other.append(data[p:after])
            p = after
        self.rest = data[p:] if p < end else b""

    def settle(self, tag: int, multiple: bool, refused: bool) -> None:
        before = self.low + len(self.early)
        if multiple:
            if tag > self.low:
                self.low = tag
                if self.early:
                    self.early = {each for each in self.early if each > tag}
        elif tag == self.low + 1:
            self.low = tag
        elif tag > self.low:
            self.early.add(tag)
        while self.early and self.low + 1 in self.early:
            self.low += 1
            self.early.discard(self.low)
        if refused:
            self.nacked += self.low + len(self.early) - before


def prefix_of(run: int, publisher: int) -> int:
    """The upper bits of a body's first eight bytes: run (11 bits), publisher (12), number from 1 (40)."""
    return (run & 0x7FF) << 52 | (publisher & 0xFFF) << 40


class Deliveries:
    """Counts, checks and acknowledges a consumer's deliveries."""

    def __init__(self, run: int, publishers: int, ack_every: int, channel: int) -> None:
        """
        :param run: messages of other runs are only counted
        :param ack_every: one acknowledgement for this many messages; 0: none (auto-ack)
        """
        self.run: i64 = run
        self.publishers: i64 = publishers
        self.ack_every: i64 = ack_every
        self.channel = channel
        self.count: i64 = 0
        self.unacked: i64 = 0
        self.tag: i64 = 0
        self.redelivered: i64 = 0
        self.reordered: i64 = 0
        self.foreign: i64 = 0
        self.counts = [0] * publishers
        self.sums = [0] * publishers
        self.highest = [0] * publishers
        self.measuring = False
        """Whether latencies are recorded now."""
        self.latencies = [0] * _BUCKETS
        self.acks: list[bytes] = []
        """Acknowledgements to be sent."""
        self.other: list[bytes] = []
        """Frames that belong to no delivery, for someone else to judge."""
        self.rest = b""
        self.missing: i64 = 0
        """Bytes of the current message's body that have not come."""
        self.fresh = False
        """Whether the next body frame is its message's first."""

    def feed(self, data: bytes, now: i64) -> None:
        """Take what the socket gave at the time `now`, in nanoseconds."""
        if self.rest:
            data = self.rest + data
        end: i64 = len(data)
        p: i64 = 0
        while end - p >= 8:
            size: i64 = _U32.unpack_from(data, p + 3)[0]
            after: i64 = p + size + 8
            if after > end:
                break
            kind: i64 = data[p]
            if kind == _METHOD:
                if data[p + 8] == 60 and data[p + 10] == 60 and data[p + 7] == 0:
                    at: i64 = p + 12 + i64(data[p + 11])
                    self.tag = _U64.unpack_from(data, at)[0]
                    self.redelivered += i64(data[at + 8]) & 1
                else:
                    self.other.append(data[p:after])
            elif kind == _HEADER:
                self.missing = _U64.unpack_from(data, p + 11)[0]
                self.fresh = True
                if self.missing == 0:
                    self.complete()
            elif kind == _BODY:
                if self.fresh:
                    self.fresh = False
                    if size >= 8:
                        self.check(data, p + 7, size, now)
                self.missing -= size
                if self.missing == 0:
                    self.complete()
            p = after
        self.rest = data[p:] if p < end else b""

    def check(self, data: bytes, at: i64, size: i64, now: i64) -> None:
        number: i64 = _U64.unpack_from(data, at)[0] & 0x7FFFFFFFFFFFFFFF
        publisher: i64 = (number >> 40) & 0xFFF
        if number >> 52 != self.run or publisher >= self.publishers:
            self.foreign += 1
            return
        number &= 0xFFFFFFFFFF
        self.counts[publisher] += 1
        self.sums[publisher] += number
        if number > self.highest[publisher]:
            self.highest[publisher] = number
        else:
            self.reordered += 1
        if self.measuring and size >= 16:
            sent: i64 = _U64.unpack_from(data, at + 8)[0]
            self.latencies[bucket((now - sent) // 1000)] += 1

    def complete(self) -> None:
        self.count += 1
        if self.ack_every:
            self.unacked += 1
            if self.unacked >= self.ack_every:
                self.acknowledge()

    def acknowledge(self) -> None:
        """Add an acknowledgement of everything that has been delivered to `acks`."""
        if self.unacked:
            multiple = 1 if self.unacked > 1 else 0
            self.acks.append(_ACK.pack(_METHOD, self.channel, 13, 60, 80, self.tag, multiple, 0xCE))
            self.unacked = 0


def bucket(value: i64) -> i64:
    """The place of a value in a histogram whose buckets are 1/64 of their value wide, exact below 128."""
    exponent: i64 = 0
    if value < 0:
        return 0
    while value >= 128:
        value >>= 1
        exponent += 1
    place: i64 = exponent * 64 + value
    return place if place < _BUCKETS else _BUCKETS - 1


def bucket_value(place: i64) -> i64:
    """The smallest value of a bucket."""
    if place < 128:
        return place
    exponent: i64 = place // 64 - 1
    return (place - exponent * 64) << exponent
