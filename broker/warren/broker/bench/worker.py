"""The processes that make the load: each publisher and each consumer is one, with one connection.

A worker says `Ready`, gets a `Schedule` and reports at the end; a consumer also says now and then how far it
is, and goes on until it is told to stop. What goes wrong is told as `Trouble`.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from warren.broker.bench.flow import Batch, Confirms, Deliveries, prefix_of
from warren.broker.bench.load import Consumed, Load, Published, Rates, Schedule
from warren.wire import tables
from warren.wire.conversation import CHANNEL, Conversation, Refused
from warren.wire.url import parse_url

READ = 1 << 18
"""Bytes read at a time."""
WRITE = 1 << 18
"""Bytes of publishes written at a time, if one message is not longer."""
PATIENCE = 30.0
"""Seconds without progress after which the broker counts as stuck."""
IDLE = 0.05
"""Seconds after which a consumer that gets nothing acknowledges what it holds, and reports."""


@dataclass(frozen=True)
class Ready:
    """The worker is connected and waits for its schedule."""


@dataclass(frozen=True)
class Progress:
    """How many messages a consumer has seen so far."""

    count: int


@dataclass(frozen=True)
class Stop:
    """Tells a consumer to report."""


@dataclass(frozen=True)
class Trouble:
    """Why a worker gave up, in one line; and whether what was asked for is at fault."""

    text: str
    wrong_use: bool = False


def publisher(pipe: Connection, load: Load, index: int) -> None:
    """The whole life of publisher number `index`."""
    _report(pipe, lambda: _publish(pipe, load, index))


def consumer(pipe: Connection, load: Load) -> None:
    """The whole life of a consumer."""
    _report(pipe, lambda: _consume(pipe, load))


def _report(pipe: Connection, work: Callable[[], Published | Consumed]) -> None:
    try:
        pipe.send(work())
    except Refused as refused:
        pipe.send(Trouble(str(refused), refused.wrong_use))
    except TimeoutError:
        pipe.send(Trouble(f"the broker did nothing for {PATIENCE:g} s"))
    except (OSError, EOFError) as error:
        pipe.send(Trouble(str(error) or type(error).__name__))
    except KeyboardInterrupt:
        pass


class _Meter:
    """Takes the value of a counter at the two ends of the measured span."""

    def __init__(self, schedule: Schedule, rates: Rates) -> None:
        self._from = schedule.measured_from
        self._until = schedule.measured_until
        self._rates = rates
        self.measuring = False

    def look(self, now: int, count: int) -> None:
        rates = self._rates
        if self.measuring:
            if now >= self._until:
                self.measuring = False
                rates.ended, rates.last = now, count
                rates.processor = time.process_time() - rates.processor
        elif not rates.began and now >= self._from:
            self.measuring = True
            rates.began, rates.first, rates.processor = now, count, time.process_time()


def _publish(pipe: Connection, load: Load, index: int) -> Published:
    connection = Conversation(parse_url(load.url), product="warren bench")
    if load.window:
        connection.call("confirm.select", False)
    batch = _batch(load, index, connection.frame_max)
    result = Published(index)
    confirms = Confirms()
    pipe.send(Ready())
    schedule: Schedule = pipe.recv()
    _sleep_until(schedule.start)
    _Publishing(connection, load, batch, confirms, schedule, result).run()
    result.confirmed = confirms.settled - confirms.nacked
    result.nacked = confirms.nacked
    # Without confirms, its answer is what proves that the broker has processed every publish.
    connection.socket.settimeout(PATIENCE)
    connection.buffer = confirms.rest
    connection.close()
    return result


def _batch(load: Load, index: int, frame_max: int) -> Batch:
    def batch(capacity: int) -> Batch:
        prefix = prefix_of(load.run, index)
        return Batch(load.queue.encode(), load.size, load.persistent, capacity, frame_max, CHANNEL, prefix)

    # A publisher without a window writes as much at a time, so that it is not the limit.
    return batch(max(1, min(load.window or 1000, WRITE // batch(1).length)))


class _Publishing:
    """The loop of a publisher: fill the window, then wait until a part of it is confirmed."""

    def __init__(
        self,
        connection: Conversation,
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
        self.confirms = confirms
        self.schedule = schedule
        self.result = result
        self.window = load.window
        self.rate = load.rate / load.publishers
        # Small writes for each confirm that comes would cost the broker and this process more than the wait.
        self.least = 1 if self.rate else max(1, load.window // 4)
        self.sending = _Meter(schedule, result.sending)
        self.confirming = _Meter(schedule, result.confirming)

    def run(self) -> None:
        self.socket.settimeout(PATIENCE)
        while (now := time.monotonic_ns()) < self.schedule.end:
            self._measure(now)
            room, wait = self._room(now)
            if room:
                self._send(min(room, self.batch.capacity), now)
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
        room = (
            self.window - (self.result.sent - self.confirms.settled) if self.window else self.batch.capacity
        )
        if room < self.least:
            return 0, 0.0
        if not self.rate:
            return room, 0.0
        due = int((now - self.schedule.start) * self.rate / 1e9) + 1 - self.result.sent
        if due > 0:
            return min(room, due), 0.0
        return 0, max(self.schedule.start / 1e9 + self.result.sent / self.rate - now / 1e9, 1e-5)

    def _send(self, count: int, now: int) -> None:
        self.batch.stamp(self.result.sent + 1, count, now)
        try:
            self.socket.sendall(self.view[: count * self.batch.length])
        except OSError:
            # The reason, if the broker gave one, comes before the end of the stream.
            self._hear()
            raise
        self.result.sent += count

    def _hear(self) -> None:
        self.confirms.feed(_read(self.connection))
        _judge(self.connection, self.confirms.other)


def _consume(pipe: Connection, load: Load) -> Consumed:
    connection = Conversation(parse_url(load.url), product="warren bench")
    if load.prefetch and load.ack_every:
        connection.call("basic.qos", 0, load.prefetch, False)
    deliveries = Deliveries(load.run, max(load.publishers, 1), load.ack_every, CHANNEL)
    result = Consumed()
    # Of a stream what this run publishes; if it publishes nothing, what is there.
    start = {"x-stream-offset": "next" if load.publishers else "first"} if load.queue_type == "stream" else {}
    flags = (False, not load.ack_every, False, False)
    connection.call("basic.consume", 0, load.queue.encode(), b"", *flags, tables.encode({**start}))
    pipe.send(Ready())
    schedule: Schedule = pipe.recv()
    # What came together with consume-ok is the load's already.
    deliveries.feed(connection.buffer, time.monotonic_ns())
    connection.socket.settimeout(IDLE)
    _deliver(pipe, connection, deliveries, schedule, result)
    _flush(connection, deliveries)
    result.count = deliveries.count
    result.counts, result.sums = deliveries.counts, deliveries.sums
    result.reordered, result.redelivered = deliveries.reordered, deliveries.redelivered
    result.foreign, result.latencies = deliveries.foreign, deliveries.latencies
    connection.socket.settimeout(PATIENCE)
    connection.buffer = deliveries.rest
    connection.close()
    return result


def _deliver(
    pipe: Connection, connection: Conversation, deliveries: Deliveries, schedule: Schedule, result: Consumed
) -> None:
    meter = _Meter(schedule, result.consuming)
    told = 0
    while True:
        try:
            data = _read(connection)
        except TimeoutError:
            data = b""
        now = time.monotonic_ns()
        if data:
            deliveries.feed(data, now)
        if deliveries.acks or not data:
            _flush(connection, deliveries, partly=not data)
        _judge(connection, deliveries.other)
        meter.look(now, deliveries.count)
        deliveries.measuring = meter.measuring
        if (not data or now > schedule.end) and deliveries.count != told:
            told = deliveries.count
            pipe.send(Progress(told))
        if now > schedule.end and pipe.poll():
            return


def _flush(connection: Conversation, deliveries: Deliveries, partly: bool = True) -> None:
    if partly and deliveries.ack_every:
        deliveries.acknowledge()
    if deliveries.acks:
        connection.socket.settimeout(PATIENCE)
        connection.socket.sendall(b"".join(deliveries.acks))
        connection.socket.settimeout(IDLE)
        deliveries.acks.clear()


def _read(connection: Conversation) -> bytes:
    data = connection.socket.recv(READ)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return data


def _judge(connection: Conversation, frames: list[bytes]) -> None:
    for each in frames:
        connection.hear(each)
    frames.clear()


def _sleep_until(moment: int) -> None:
    time.sleep(max(0.0, (moment - time.monotonic_ns()) / 1e9))
