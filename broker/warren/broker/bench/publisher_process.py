"""Publisher process of the load tool: it publishes until its confirm window is full, then awaits confirms."""

from __future__ import annotations

import select
import time
from multiprocessing.connection import Connection

from warren.broker.bench.load_options import Load, PublisherReport, Schedule
from warren.broker.bench.load_topology import publish_targets
from warren.broker.bench.message_flow import (
    ConfirmCounter,
    DistinctMessages,
    PublishBuffer,
    publish_frames,
    sequence_prefix,
)
from warren.broker.bench.worker_process import (
    STALL_SECONDS,
    RateMeter,
    Ready,
    raise_if_closed,
    receive,
    run_and_report,
    set_timeouts,
)
from warren.core.blocking_connection import CHANNEL, BlockingConnection
from warren.wire.amqp_url import parse_url

WRITE = 1 << 18
"""Most bytes of encoded publishes in one write to the socket; a longer message is written alone."""
OVERHEAD = 256
"""Bytes of a distinct message beside its body, about: to keep to `WRITE`."""


def publisher(pipe: Connection, load: Load, index: int) -> None:
    """Run publisher number `index` of a load to the end of its schedule.

    The process of the publisher starts with this function, and talks to the coordinator over `pipe`.
    """
    run_and_report(pipe, lambda: _publish(pipe, load, index))


def _publish(pipe: Connection, load: Load, index: int) -> PublisherReport:
    connection = BlockingConnection(parse_url(load.url), product="warren bench")
    if load.window:
        connection.call("confirm.select", False)
    messages = _messages(load, index, connection.frame_max)
    result = PublisherReport(index)
    confirms = ConfirmCounter()
    pipe.send(Ready())
    schedule: Schedule = pipe.recv()
    time.sleep(max(0.0, (schedule.start - time.monotonic_ns()) / 1e9))
    _Publishing(connection, load, messages, confirms, schedule, result).run()
    result.confirmed = confirms.settled - confirms.nacked
    result.nacked = confirms.nacked
    # Without confirms, the reply to connection.close proves that the broker has processed every publish.
    connection.socket.settimeout(STALL_SECONDS)
    connection.buffer = confirms.rest
    connection.close()
    return result


def _messages(load: Load, index: int, frame_max: int) -> PublishBuffer | DistinctMessages:
    turn = publish_targets(load)
    prefix = sequence_prefix(load.run_id, index)
    if load.distinct:
        return DistinctMessages(turn, load.size, load.largest, frame_max, CHANNEL, prefix)
    # A publisher without a window uses 1000, so that the size of its writes is not the limit.
    fitting = WRITE // len(publish_frames(turn[0], load.size, frame_max, CHANNEL))
    capacity = max(1, min(load.window or 1000, fitting))
    return PublishBuffer(turn, load.size, capacity, frame_max, CHANNEL, prefix)


class _Publishing:
    """Loop of a publisher that sends messages within its rate and confirm window, and counts confirms."""

    def __init__(
        self,
        connection: BlockingConnection,
        load: Load,
        messages: PublishBuffer | DistinctMessages,
        confirms: ConfirmCounter,
        schedule: Schedule,
        result: PublisherReport,
    ) -> None:
        self.connection = connection
        self.socket = connection.socket
        self.messages = messages
        if load.single_writes:
            self.max_per_write = 1
        elif isinstance(messages, PublishBuffer):
            self.max_per_write = max(1, min(messages.capacity, WRITE // messages.length))
        else:
            self.max_per_write = max(1, WRITE // (load.largest + OVERHEAD))
        self.confirms = confirms
        self.schedule = schedule
        self.result = result
        self.window = load.window
        self.rate = load.rate / load.publishers
        # A small write after each confirm would cost the broker and this process more than waiting for more room.
        self.min_room = 1 if self.rate or load.single_writes else max(1, load.window // 4)
        self.sending = RateMeter(schedule, result.sending)
        self.confirming = RateMeter(schedule, result.confirming)

    def run(self) -> None:
        set_timeouts(self.connection, STALL_SECONDS)
        while (now := time.monotonic_ns()) < self.schedule.end:
            self._measure(now)
            room, wait = self._room(now)
            if room:
                self._send(min(room, self.max_per_write), now)
                if not self.window and select.select([self.socket], [], [], 0)[0]:
                    self._receive_confirms()
            elif wait:
                if select.select([self.socket], [], [], wait)[0]:
                    self._receive_confirms()
            else:
                self._receive_confirms()
        self._measure(time.monotonic_ns())
        while self.window and self.confirms.settled < self.result.sent:
            self._receive_confirms()

    def _measure(self, now: int) -> None:
        self.sending.sample(now, self.result.sent)
        self.confirming.sample(now, self.confirms.settled)

    def _room(self, now: int) -> tuple[int, float]:
        """Return (number of messages that may be sent now, seconds to wait if that is 0 due to the rate limit).

        (0, 0) means that too many publishes are unconfirmed (see `Load.window`): confirms have to be awaited first.

        :param now: current `time.monotonic_ns()`
        """
        room = self.window - (self.result.sent - self.confirms.settled) if self.window else self.max_per_write
        if room < self.min_room:
            return 0, 0.0
        if not self.rate:
            return room, 0.0
        due = int((now - self.schedule.start) * self.rate / 1e9) + 1 - self.result.sent
        if due > 0:
            return min(room, due), 0.0
        return 0, max(self.schedule.start / 1e9 + self.result.sent / self.rate - now / 1e9, 1e-5)

    def _send(self, count: int, now: int) -> None:
        frames = self.messages.encode(self.result.sent + 1, count, now)
        try:
            self.socket.sendall(frames)
        except OSError:
            # If the broker sent a reason, it precedes the end of the stream; reading it raises the better error.
            self._receive_confirms()
            raise
        self.result.sent += self.messages.count(frames)

    def _receive_confirms(self) -> None:
        self.confirms.feed(receive(self.connection))
        if self.confirms.other:
            raise_if_closed(self.connection, self.confirms.other)
