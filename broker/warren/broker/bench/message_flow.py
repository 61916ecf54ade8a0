"""Hot path of the load tool: encoded publishes in bulk, and counting of confirms and deliveries (compiled with mypyc).

It does no I/O. Frames are parsed in place in the received bytes (AMQP 0-9-1, section 4.2.2), and a frame that is only
counted creates no object.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.wire.content import (
    FRAME_END,
    HEADER_FIXED,
    HEADERS,
    MESSAGE_ID,
    TIMESTAMP,
    content_beginning,
    content_frames,
    join_content,
    make_header,
)
from warren.wire.field_tables import encode as encode_table
from warren.wire.methods import frame

if TYPE_CHECKING:
    from warren.broker.bench.load_topology import PublishTarget

_U64: Final = struct.Struct(">Q")
_STAMP: Final = struct.Struct(">QQ")
_ACK: Final = struct.Struct(">BHIHHQBB")

_METHOD: Final = 1
_HEADER: Final = 2
_BODY: Final = 3

_BUCKETS: Final = 64 * 40

DISTINCT_FLAGS: Final = HEADERS | MESSAGE_ID | TIMESTAMP
"""Property flags of what differs between the messages of `DistinctMessages`."""
_CUSTOMER: Final = b"fedcba98"
_TRACE: Final = b"0123456789abcdef" * 2
_AMOUNT: Final = b"000000000000"
_CONTENT: Final = 4096
"""Bytes by which the places differ at which random content of bodies begins."""
_MIX: Final = 0x9E3779B1
"""Odd number near 2**32 divided by the golden ratio: its multiples, modulo 2**32, are spread evenly."""


class PublishBuffer:
    """Ring buffer of encoded publishes of one size, sent repeatedly.

    Before each use, only the sequence numbers and timestamps in the bodies are overwritten.
    """

    def __init__(
        self,
        addresses: Sequence[PublishTarget],
        size: int,
        capacity: int,
        frame_max: int,
        channel: int,
        prefix: int,
    ) -> None:
        """Encode the messages of the buffer.

        :param addresses: targets of the messages, in turn; publishes to them must be encoded in equally many bytes
        :param size: bytes of each body
        :param capacity: least number of messages in the buffer; it is rounded up to a multiple of the targets
        :param frame_max: largest frame in bytes; a larger body is divided
        :param channel: number of the channel to publish on
        :param prefix: first eight bytes of each body as a number, without sequence number (see `sequence_prefix`)
        """
        turn = [publish_frames(each, size, frame_max, channel) for each in addresses]
        rounds = -(-capacity // len(turn))
        self.length: i64 = len(turn[0])
        """Size in bytes of all frames of one message."""
        self.capacity = rounds * len(turn)
        self.data = bytearray(b"".join(turn) * rounds)
        first = addresses[0]
        method = frame(channel, "basic.publish", 0, first.exchange, first.routing_key, False, False)
        self.body_at: i64 = len(method) + 8 + HEADER_FIXED + len(first.properties) + 7
        self.size: i64 = size
        self.prefix = prefix

        self.at: i64 = 0
        """Index of the message that `encode` uses next."""

    def encode(self, first: int, count: i64, now: int) -> memoryview:
        """Return the frames of up to `count` messages: fewer at the end of the ring. They are valid until the next call.

        :param first: sequence number of the first message
        :param now: timestamp in nanoseconds
        """
        count = min(count, i64(self.capacity) - self.at)
        self.stamp(first, count, now, self.at)
        begin = self.at * self.length
        self.at = (self.at + count) % i64(self.capacity)
        return memoryview(self.data)[begin : begin + count * self.length]

    def count(self, frames: Sized) -> int:
        """Return the number of messages in what `encode` has returned."""
        return len(frames) // int(self.length)

    def stamp(self, first: int, count: i64, now: int, at: i64 = 0) -> None:
        """Write consecutive sequence numbers and one timestamp into the bodies of `count` messages.

        :param first: sequence number of the first message
        :param now: timestamp in nanoseconds
        :param at: index of the first message in the buffer
        """
        data = self.data
        at = at * self.length + self.body_at
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


class DistinctMessages:
    """Encoder of publishes of which no two are alike, as applications send them.

    Each has an id, a timestamp, three headers, a size and content of its own, and one of the targets, which its number
    chooses. The same numbers give the same sizes and targets in every run.
    """

    def __init__(
        self,
        targets: Sequence[PublishTarget],
        least: int,
        most: int,
        frame_max: int,
        channel: int,
        prefix: int,
    ) -> None:
        """Prepare what the messages have in common.

        :param targets: exchanges, routing keys and priorities, one of which each message gets; they have no headers
        :param least: bytes of the smallest body, at least 16
        :param most: bytes of the largest body
        :param frame_max: largest frame in bytes; a larger body is divided
        :param channel: number of the channel to publish on
        :param prefix: first eight bytes of each body as a number, without sequence number (see `sequence_prefix`)
        """
        self.methods = [
            frame(channel, "basic.publish", 0, each.exchange, each.routing_key, False, False)
            for each in targets
        ]
        table = encode_table(
            {"customer": _CUSTOMER.decode(), "trace": _TRACE.decode(), "amount": _AMOUNT.decode()}
        )
        customer, trace, amount = table.index(_CUSTOMER), table.index(_TRACE), table.index(_AMOUNT)
        self.before_customer = len(table).to_bytes(4, "big") + table[:customer]
        self.before_trace = table[customer + len(_CUSTOMER) : trace]
        self.before_amount = table[trace + len(_TRACE) : amount]
        after_amount = table[amount + len(_AMOUNT) :]
        self.before_id = [after_amount + each.properties + b"\x10" for each in targets]
        """Of each target, what is encoded between the last header and the message id."""
        self.flags: i64 = DISTINCT_FLAGS | targets[0].flags
        self.least: i64 = least
        self.span: i64 = most - least + 1
        self.frame_max: i64 = frame_max
        self.channel: i64 = channel
        self.prefix = prefix
        self.content = random.Random(prefix).randbytes(most + _CONTENT)
        self.published: i64 = 0

    def encode(self, first: int, count: i64, now: int) -> bytes:
        """Return the frames of `count` messages.

        :param first: sequence number of the first message
        :param now: timestamp of the bodies in nanoseconds
        """
        seconds = _U64.pack(int(time.time()))
        pieces: list[bytes] = []
        number: i64 = first
        self.published = count
        methods = self.methods
        targets: i64 = len(methods)
        for _ in range(count):
            mixed: i64 = number * _MIX & 0xFFFFFFFF
            target: i64 = (mixed >> 4) % targets
            size: i64 = self.least + (mixed >> 8) % self.span
            numbered = self.prefix + int(number)
            header = b"".join(
                (
                    self.before_customer,
                    b"%08x" % int(mixed),
                    self.before_trace,
                    b"%016x%016x" % (int(mixed), numbered),
                    self.before_amount,
                    b"%012d" % int(number),
                    self.before_id[target],
                    b"%016x" % numbered,
                    seconds,
                )
            )
            header = make_header(size, header, self.flags)
            begin: i64 = mixed % _CONTENT
            body = self.content[begin : begin + size - 16]
            pieces.append(methods[target])
            if size > self.frame_max - 8:
                content = join_content(self.channel, header, _STAMP.pack(numbered, now) + body)
                pieces.append(content_frames(content, self.channel, self.frame_max))
            else:
                pieces.append(content_beginning(self.channel, header, size))
                pieces.append(_STAMP.pack(numbered, now))
                pieces.append(body)
                pieces.append(FRAME_END)
            number += 1
        return b"".join(pieces)

    def count(self, frames: Sized) -> int:
        """Return the number of messages in what `encode` has returned last."""
        return int(self.published)


def publish_frames(address: PublishTarget, size: int, frame_max: int, channel: int) -> bytes:
    """Encode the method, header and body frames of one publish to `address`, with a body of `size` zero bytes.

    :param frame_max: largest frame in bytes; a larger body is divided
    :param channel: number of the channel to publish on
    """
    method = frame(channel, "basic.publish", 0, address.exchange, address.routing_key, False, False)
    header = make_header(size, address.properties, address.flags)
    return method + content_frames(join_content(channel, header, bytes(size)), channel, frame_max)


class ConfirmCounter:
    """Parser and counter of a channel's publisher confirms: single, multiple, or out of order."""

    def __init__(self) -> None:
        self.low: i64 = 0
        """Delivery tag up to which every publish is confirmed or nacked."""
        self.early: set[int] = set()
        """Delivery tags above `low` that are confirmed or nacked."""
        self.nacked: i64 = 0
        self.rest = b""
        self.other: list[bytes] = []
        """Received frames that are no confirms; the caller checks whether they report an error."""

    @property
    def settled(self) -> int:
        """Number of publishes that were confirmed or nacked so far."""
        return self.low + len(self.early)

    def feed(self, data: bytes) -> None:
        """Parse received bytes, and count the confirms in them; an incomplete frame waits for the next call."""
        if self.rest:
            data = self.rest + data
        end: i64 = len(data)
        p: i64 = 0
        while end - p >= 8:
            size: i64 = u32(data, p + 3)
            after: i64 = p + size + 8
            if after > end:
                break
            # basic.ack is 60.80, basic.nack 60.120; both begin with the tag and a bit for `multiple`.
            kind: i64 = data[p + 10] if size == 13 else 0
            if data[p] == _METHOD and (kind == 80 or kind == 120) and data[p + 8] == 60 and data[p + 7] == 0:
                self.settle(u64(data, p + 11), data[p + 19] & 1 == 1, kind == 120)
            else:
                self.other.append(data[p:after])
            p = after
        self.rest = data[p:] if p < end else b""

    def settle(self, tag: i64, multiple: bool, refused: bool) -> None:
        """Count a basic.ack, or a basic.nack if `refused` is true.

        :param tag: delivery tag: number of the publish on the channel, from 1 on
        :param multiple: True if the frame settles all publishes up to `tag`
        """
        before = self.low + len(self.early)
        if multiple:
            if tag > self.low:
                self.low = tag
                if self.early:
                    self.early = {each for each in self.early if each > tag}
        elif tag == self.low + 1:
            self.low = tag
        elif tag > self.low:
            self.early.add(int(tag))
        while self.early and int(self.low + 1) in self.early:
            self.low += 1
            self.early.discard(int(self.low))
        if refused:
            self.nacked += self.low + len(self.early) - before


def sequence_prefix(run: int, publisher: int) -> int:
    """Return the first eight bytes of a publisher's message bodies as a number, with sequence number 0.

    The number has 11 bits for the run, then 12 for the publisher, then 40 to which a sequence number is added.
    """
    return (run & 0x7FF) << 52 | (publisher & 0xFFF) << 40


def u32(data: bytes, at: i64) -> i64:
    """Return the four bytes from `data[at]` on as an unsigned big-endian number, without creating an object."""
    return i64(data[at]) << 24 | i64(data[at + 1]) << 16 | i64(data[at + 2]) << 8 | i64(data[at + 3])


def u64(data: bytes, at: i64) -> i64:
    """Return the eight bytes from `data[at]` on as a big-endian number, which must be below 2**63."""
    return (u32(data, at) & 0x7FFFFFFF) << 32 | u32(data, at + 4)


def consumer_tag(place: int) -> bytes:
    """Encode the number of a queue (`place`, below 2**18) as a consumer tag of three printable bytes."""
    return bytes(48 + (place >> shift & 63) for shift in (12, 6, 0))


class DeliveryChecker:
    """Parser of a consumer's input: checks and counts deliveries, and encodes the acknowledgements."""

    def __init__(self, run: int, publishers: int, ack_every: int, channel: int, queues: int = 1) -> None:
        """Create the checker for the deliveries of one run to one consumer.

        :param run: identifier of the run; messages of other runs are only counted
        :param publishers: number of publishers; sequence numbers are checked for each
        :param ack_every: deliveries that one basic.ack acknowledges; 0 for automatic acknowledgement
        :param channel: number of the channel, for the basic.ack frames
        :param queues: number of consumed queues. The order of messages is checked within each of them; deliveries from
            queue number N must have the consumer tag `consumer_tag(N)`
        """
        self.run: i64 = run
        self.publishers: i64 = publishers
        self.ack_every: i64 = ack_every
        self.channel = channel
        self.queues: i64 = queues
        self.count: i64 = 0
        self.unacked: i64 = 0
        self.tag: i64 = 0
        self.redelivered: i64 = 0
        self.reordered: i64 = 0
        self.foreign: i64 = 0
        self.empty: i64 = 0
        """Number of basic.get-empty received."""
        self.queue: i64 = 0
        """Number of the queue, from 0 on, that the message being received comes from."""
        self.counts = [0] * publishers
        self.sums = [0] * publishers
        self.highest = [0] * (publishers * queues)
        self.latest: i64 = -1
        """Index in the list `highest` for publisher and queue of the last message; -1 before the first message.

        The attributes `latest_count`, `latest_sum` and `latest_highest` refer to the same publisher and queue.
        """
        self.latest_count: i64 = 0
        self.latest_sum: i64 = 0
        self.latest_highest: i64 = 0
        self.measuring = False
        """True during the measured span of the run, in which latencies are recorded."""
        self.latencies = [0] * _BUCKETS
        self.acks: list[bytes] = []
        """Encoded basic.ack frames that the caller has to send."""
        self.other: list[bytes] = []
        """Received frames that belong to no delivery; the caller checks whether they report an error."""
        self.rest = b""
        self.missing: i64 = 0
        """Bytes of the body being received that have not arrived yet."""
        self.fresh = False
        """True if the next body frame is the first of its message, which begins with the sequence number."""

    def feed(self, data: bytes, now: i64) -> None:
        """Parse bytes received at the time `now` (nanoseconds), and check the deliveries in them."""
        if self.rest:
            data = self.rest + data
        end: i64 = len(data)
        p: i64 = 0
        while end - p >= 8:
            size: i64 = u32(data, p + 3)
            after: i64 = p + size + 8
            if after > end:
                break
            kind: i64 = data[p]
            if kind == _METHOD:
                self.method(data, p, after)
            elif kind == _HEADER:
                self.missing = u64(data, p + 11)
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

    def method(self, data: bytes, p: i64, after: i64) -> None:
        """Process the method frame `data[p:after]`.

        Read the delivery tag of basic.deliver (60.60) and basic.get-ok (60.71), count basic.get-empty (60.72), and
        keep any other frame in `other`.
        """
        number: i64 = data[p + 10] if data[p + 8] == 60 and data[p + 7] == 0 else 0
        if number == 60:
            length: i64 = data[p + 11]
            at: i64 = p + 12 + length
            if self.queues > 1 and length == 3:
                place = (
                    (i64(data[p + 12]) - 48) << 12 | (i64(data[p + 13]) - 48) << 6 | i64(data[p + 14]) - 48
                )
                self.queue = place if 0 <= place < self.queues else 0
            self.tag = u64(data, at)
            self.redelivered += i64(data[at + 8]) & 1
        elif number == 71:
            self.tag = u64(data, p + 11)
            self.redelivered += i64(data[p + 19]) & 1
        elif number == 72:
            self.empty += 1
        else:
            self.other.append(data[p:after])

    def check(self, data: bytes, at: i64, size: i64, now: i64) -> None:
        """Check run, publisher and sequence number of the body that starts at `data[at]`, and record its latency.

        :param size: size of the body frame's payload in bytes
        :param now: time at which the bytes were received, in nanoseconds
        """
        number: i64 = u64(data, at)
        publisher: i64 = (number >> 40) & 0xFFF
        if number >> 52 != self.run or publisher >= self.publishers:
            self.foreign += 1
            return
        number &= 0xFFFFFFFFFF
        place: i64 = self.queue * self.publishers + publisher
        if place != self.latest:
            self.flush_counters()
            self.latest = place
            self.latest_highest = self.highest[place]
        self.latest_count += 1
        self.latest_sum += number
        if number > self.latest_highest:
            self.latest_highest = number
        else:
            self.reordered += 1
        if self.measuring and size >= 16:
            self.latencies[bucket((now - u64(data, at + 8)) // 1000)] += 1

    def flush_counters(self) -> None:
        """Add the counters of the current publisher and queue to the lists `counts`, `sums` and `highest`.

        The lists hold, for each publisher, the count of its messages and the sum of their sequence numbers, and, for
        each publisher and queue, the highest sequence number. Consecutive messages of one publisher and queue are
        counted in plain attributes, which is faster; the lists are updated when a message of another publisher or
        queue arrives, and at the end of the run.
        """
        if self.latest >= 0:
            publisher = self.latest % self.publishers
            self.counts[publisher] += self.latest_count
            self.sums[publisher] += self.latest_sum
            self.highest[self.latest] = self.latest_highest
            self.latest_count = self.latest_sum = 0

    def complete(self) -> None:
        """Count a completely received message, and call `acknowledge` if `ack_every` messages are unacknowledged."""
        self.count += 1
        if self.ack_every:
            self.unacked += 1
            if self.unacked >= self.ack_every:
                self.acknowledge()

    def acknowledge(self) -> None:
        """Append to `acks` one basic.ack for all unacknowledged deliveries."""
        if self.unacked:
            multiple = 1 if self.unacked > 1 else 0
            self.acks.append(_ACK.pack(_METHOD, self.channel, 13, 60, 80, self.tag, multiple, 0xCE))
            self.unacked = 0


def bucket(value: i64) -> i64:
    """Return the index of the bucket of the latency histogram into which a value, in microseconds, falls.

    Each value below 128 has its own bucket; the others are at most 1/64 of their values wide.
    """
    exponent: i64 = 0
    if value < 0:
        return 0
    while value >= 128:
        value >>= 1
        exponent += 1
    place: i64 = exponent * 64 + value
    return place if place < _BUCKETS else _BUCKETS - 1


def bucket_value(place: i64) -> i64:
    """Return the smallest latency, in microseconds, in the histogram bucket with the index `place`."""
    if place < 128:
        return place
    exponent: i64 = place // 64 - 1
    return (place - exponent * 64) << exponent
