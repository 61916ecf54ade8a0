"""The process that publishes: it fills its window, then waits until a part of it is confirmed."""

from __future__ import annotations

import select
import time
from multiprocessing.connection import Connection

from warren.broker.bench.load_options import Load, Published, Schedule
from warren.broker.bench.load_topology import addresses
from warren.broker.bench.message_flow import Batch, Confirms, prefix_of, publish_frames
from warren.broker.bench.worker_process import PATIENCE, Meter, Ready, judge, patient, read, reporting
from warren.core.blocking_connection import CHANNEL, BlockingConnection
from warren.wire.amqp_url import parse_url

WRITE = 1 << 18
"""Bytes of publishes written at a time, if one message is not longer."""


def publisher(pipe: Connection, load: Load, index: int) -> None:
    """The whole life of publisher number `index`."""
    reporting(pipe, lambda: _publish(pipe, load, index))


def _publish(pipe: Connection, load: Load, index: int) -> Published:
    connection = BlockingConnection(parse_url(load.url), product="warren bench")
    if load.window:
        connection.call("confirm.select", False)
    batch = _batch(load, index, connection.frame_max)
    result = Published(index)
    confirms = Confirms()
    pipe.send(Ready())
    schedule: Schedule = pipe.recv()
    time.sleep(max(0.0, (schedule.start - time.monotonic_ns()) / 1e9))
    _Publishing(connection, load, batch, confirms, schedule, result).run()
    result.confirmed = confirms.settled - confirms.nacked
    result.nacked = confirms.nacked
    # Without confirms, its answer is what proves that the broker has processed every publish.
    connection.socket.settimeout(PATIENCE)
    connection.buffer = confirms.rest
    connection.close()
    return result


def _batch(load: Load, index: int, frame_max: int) -> Batch:
    turn = addresses(load)
    # A publisher without a window writes as much at a time, so that it is not the limit.
    fitting = WRITE // len(publish_frames(turn[0], load.size, frame_max, CHANNEL))
    capacity = max(1, min(load.window or 1000, fitting))
    return Batch(turn, load.size, capacity, frame_max, CHANNEL, prefix_of(load.run, index))


class _Publishing:
    """The loop of a publisher."""

    def __init__(
        self,
        connection: BlockingConnection,
        load: Load,
        batch: Batch,
        confirms: Confirms,
        schedule: Schedule,
        result: Published,
    ) -> None:
        self.connection = connection
        self.socket = connection.socket
        self.batch = batch
        self.view = memoryview(batch.data)
        self.at = 0
        """The batch's next message."""
        self.most = max(1, min(batch.capacity, WRITE // batch.length))
        self.confirms = confirms
        self.schedule = schedule
        self.result = result
        self.window = load.window
        self.rate = load.rate / load.publishers
        # Small writes for each confirm that comes would cost the broker and this process more than the wait.
        self.least = 1 if self.rate else max(1, load.window // 4)
        self.sending = Meter(schedule, result.sending)
        self.confirming = Meter(schedule, result.confirming)

    def run(self) -> None:
        patient(self.connection, PATIENCE)
        while (now := time.monotonic_ns()) < self.schedule.end:
            self._measure(now)
            room, wait = self._room(now)
            if room:
                self._send(min(room, self.most, self.batch.capacity - self.at), now)
                if not self.window and select.select([self.socket], [], [], 0)[0]:
                    self._hear()
            elif wait:
                if select.select([self.socket], [], [], wait)[0]:
                    self._hear()
            else:
                self._hear()
        self._measure(time.monotonic_ns())
        while self.window and self.confirms.settled < self.result.sent:
            self._hear()

    def _measure(self, now: int) -> None:
        self.sending.look(now, self.result.sent)
        self.confirming.look(now, self.confirms.settled)

    def _room(self, now: int) -> tuple[int, float]:
        """How many messages may be sent now; if none, the seconds until one is due (0: await confirms)."""
        room = self.window - (self.result.sent - self.confirms.settled) if self.window else self.most
        if room < self.least:
            return 0, 0.0
        if not self.rate:
            return room, 0.0
        due = int((now - self.schedule.start) * self.rate / 1e9) + 1 - self.result.sent
        if due > 0:
            return min(room, due), 0.0
        return 0, max(self.schedule.start / 1e9 + self.result.sent / self.rate - now / 1e9, 1e-5)

    def _send(self, count: int, now: int) -> None:
        self.batch.stamp(self.result.sent + 1, count, now, self.at)
        begin = self.at * self.batch.length
        try:
            self.socket.sendall(self.view[begin : begin + count * self.batch.length])
        except OSError:
            # The reason, if the broker gave one, comes before the end of the stream.
            self._hear()
            raise
        self.at = (self.at + count) % self.batch.capacity
        self.result.sent += count

    def _hear(self) -> None:
        self.confirms.feed(read(self.connection))
        if self.confirms.other:
            judge(self.connection, self.confirms.other)
