"""The process that consumes: it takes what comes, or asks for one message at a time, and acknowledges."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from warren.broker.bench.load_options import Consumed, Load, Schedule
from warren.broker.bench.load_topology import queues_of
from warren.broker.bench.message_flow import Deliveries, tag_of
from warren.broker.bench.worker_process import (
    PATIENCE,
    Meter,
    Progress,
    Ready,
    judge,
    patient,
    read,
    reporting,
)
from warren.core.blocking_connection import CHANNEL, BlockingConnection
from warren.wire import field_tables
from warren.wire.amqp_url import parse_url
from warren.wire.methods import frame

IDLE = 0.05
"""Seconds after which a consumer that gets nothing acknowledges what it holds, and reports."""
EMPTY = 0.001
"""Seconds until a consumer asks again where nothing was."""
CONSUME_OK = b"\0\x3c\0\x15"


def consumer(pipe: Connection, load: Load, index: int) -> None:
    """The whole life of consumer number `index`."""
    reporting(pipe, lambda: _consume(pipe, load, index))


def _consume(pipe: Connection, load: Load, index: int) -> Consumed:
    connection = BlockingConnection(parse_url(load.url), product="warren bench")
    if load.prefetch and load.ack_every and not load.polls:
        connection.call("basic.qos", 0, load.prefetch, False)
    queues = queues_of(load, index)
    deliveries = Deliveries(load.run, max(load.publishers, 1), load.ack_every, CHANNEL, len(queues))
    result = Consumed()
    if not load.polls:
        _subscribe(connection, load, deliveries, queues)
    pipe.send(Ready())
    schedule: Schedule = pipe.recv()
    patient(connection, IDLE)
    meter = Meter(schedule, result.consuming)
    if load.polls:
        _poll(pipe, connection, deliveries, schedule, meter, queues)
    else:
        _deliver(pipe, connection, deliveries, schedule, meter)
    patient(connection, PATIENCE)
    _flush(connection, deliveries)
    deliveries.note()
    result.count = deliveries.count
    result.counts, result.sums = deliveries.counts, deliveries.sums
    result.reordered = deliveries.reordered if load.ordered else 0
    result.redelivered = deliveries.redelivered
    result.foreign, result.latencies = deliveries.foreign, deliveries.latencies
    connection.socket.settimeout(PATIENCE)
    connection.buffer = deliveries.rest
    connection.close()
    return result


def _subscribe(
    connection: BlockingConnection, load: Load, deliveries: Deliveries, queues: list[bytes]
) -> None:
    # Of a stream what this run publishes; if it publishes nothing, what is there.
    start = {"x-stream-offset": "next" if load.publishers else "first"}
    arguments = field_tables.encode({**start} if load.queue_type == "stream" else {})
    flags = (False, not load.ack_every, False, False)
    for place, name in enumerate(queues):
        connection.send("basic.consume", 0, name, tag_of(place), *flags, arguments)
    # What comes together with the answers is the load's already.
    deliveries.feed(connection.buffer, time.monotonic_ns())
    answered = 0
    while answered < len(queues):
        deliveries.feed(read(connection), time.monotonic_ns())
        answered += sum(each[7:11] == CONSUME_OK for each in deliveries.other)
        judge(connection, deliveries.other)


def _deliver(
    pipe: Connection, connection: BlockingConnection, deliveries: Deliveries, schedule: Schedule, meter: Meter
) -> None:
    told = 0
    while True:
        try:
            data = read(connection)
        except (TimeoutError, BlockingIOError):
            data = b""
        now = time.monotonic_ns()
        if data:
            deliveries.feed(data, now)
        if deliveries.acks or not data:
            _flush(connection, deliveries, partly=not data)
        if deliveries.other:
            judge(connection, deliveries.other)
        meter.look(now, deliveries.count)
        deliveries.measuring = meter.measuring
        # Without those of other runs: who waits for what this one published must not count them.
        if (not data or now > schedule.end) and deliveries.count - deliveries.foreign != told:
            told = deliveries.count - deliveries.foreign
            pipe.send(Progress(told))
        if now > schedule.end and pipe.poll():
            return


def _poll(
    pipe: Connection,
    connection: BlockingConnection,
    deliveries: Deliveries,
    schedule: Schedule,
    meter: Meter,
    queues: list[bytes],
) -> None:
    patient(connection, PATIENCE)
    asks = [frame(CHANNEL, "basic.get", 0, name, not deliveries.ack_every) for name in queues]
    turn = told = 0
    while True:
        answers, empty = deliveries.count + deliveries.empty, deliveries.empty
        connection.socket.sendall(b"".join((*deliveries.acks, asks[turn % len(asks)])))
        deliveries.acks.clear()
        deliveries.queue = turn % len(asks)
        turn += 1
        while deliveries.count + deliveries.empty == answers:
            deliveries.feed(read(connection), time.monotonic_ns())
            judge(connection, deliveries.other)
        now = time.monotonic_ns()
        meter.look(now, deliveries.count)
        deliveries.measuring = meter.measuring
        if now > schedule.end and deliveries.count - deliveries.foreign != told:
            told = deliveries.count - deliveries.foreign
            pipe.send(Progress(told))
        if now > schedule.end and pipe.poll():
            return
        if deliveries.empty > empty and len(asks) == 1:
            if deliveries.ack_every:
                deliveries.acknowledge()
            time.sleep(EMPTY)


def _flush(connection: BlockingConnection, deliveries: Deliveries, partly: bool = True) -> None:
    if partly and deliveries.ack_every:
        deliveries.acknowledge()
    if deliveries.acks:
        connection.socket.sendall(b"".join(deliveries.acks))
        deliveries.acks.clear()
