"""Consumer process of the load tool: basic.consume or basic.get, and acknowledgements."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from warren.broker.bench.load_options import ConsumerReport, Load, Schedule
from warren.broker.bench.load_topology import queues_of
from warren.broker.bench.message_flow import DeliveryChecker, consumer_tag
from warren.broker.bench.worker_process import (
    STALL_SECONDS,
    Progress,
    RateMeter,
    Ready,
    raise_if_closed,
    receive,
    run_and_report,
    set_timeouts,
)
from warren.core.blocking_connection import CHANNEL, BlockingConnection
from warren.wire import field_tables
from warren.wire.amqp_url import parse_url
from warren.wire.methods import frame

IDLE = 0.05
"""Seconds without a delivery after which a consumer acknowledges the remaining messages and reports progress."""
EMPTY = 0.001
"""Seconds until the next basic.get after basic.get-empty."""
CONSUME_OK = b"\0\x3c\0\x15"


def consumer(pipe: Connection, load: Load, index: int) -> None:
    """Run consumer number `index` of a load until the coordinator stops it.

    The process of the consumer starts with this function, and talks to the coordinator over `pipe`.
    """
    run_and_report(pipe, lambda: _consume(pipe, load, index))


def _consume(pipe: Connection, load: Load, index: int) -> ConsumerReport:
    connection = BlockingConnection(parse_url(load.url), product="warren bench")
    if load.prefetch and load.ack_every and not load.uses_get:
        connection.call("basic.qos", 0, load.prefetch, False)
    queues = queues_of(load, index)
    deliveries = DeliveryChecker(load.run_id, max(load.publishers, 1), load.ack_every, CHANNEL, len(queues))
    result = ConsumerReport()
    if not load.uses_get:
        _subscribe(connection, load, deliveries, queues)
    pipe.send(Ready())
    schedule: Schedule = pipe.recv()
    set_timeouts(connection, IDLE)
    meter = RateMeter(schedule, result.consuming)
    if load.uses_get:
        _poll(pipe, connection, deliveries, schedule, meter, queues)
    else:
        _deliver(pipe, connection, deliveries, schedule, meter)
    set_timeouts(connection, STALL_SECONDS)
    _flush(connection, deliveries)
    deliveries.flush_counters()
    result.count = deliveries.count
    result.counts, result.sums = deliveries.counts, deliveries.sums
    result.reordered = deliveries.reordered if load.ordered else 0
    result.redelivered = deliveries.redelivered
    result.foreign, result.latencies = deliveries.foreign, deliveries.latencies
    connection.socket.settimeout(STALL_SECONDS)
    connection.buffer = deliveries.rest
    connection.close()
    return result


def _subscribe(
    connection: BlockingConnection, load: Load, deliveries: DeliveryChecker, queues: list[bytes]
) -> None:
    # A stream is read from the end if this run publishes, else from its first message.
    start = {"x-stream-offset": "next" if load.publishers else "first"}
    arguments = field_tables.encode({**start} if load.queue_type == "stream" else {})
    flags = (False, not load.ack_every, False, False)
    for place, name in enumerate(queues):
        connection.send("basic.consume", 0, name, consumer_tag(place), *flags, arguments)
    # Bytes that were received with the replies may already contain deliveries.
    deliveries.feed(connection.buffer, time.monotonic_ns())
    answered = 0
    while answered < len(queues):
        deliveries.feed(receive(connection), time.monotonic_ns())
        answered += sum(each[7:11] == CONSUME_OK for each in deliveries.other)
        raise_if_closed(connection, deliveries.other)


def _deliver(
    pipe: Connection,
    connection: BlockingConnection,
    deliveries: DeliveryChecker,
    schedule: Schedule,
    meter: RateMeter,
) -> None:
    reported = 0
    while True:
        try:
            data = receive(connection)
        except (TimeoutError, BlockingIOError):
            data = b""
        now = time.monotonic_ns()
        if data:
            deliveries.feed(data, now)
        if deliveries.acks or not data:
            _flush(connection, deliveries, partly=not data)
        if deliveries.other:
            raise_if_closed(connection, deliveries.other)
        meter.sample(now, deliveries.count)
        deliveries.measuring = meter.measuring
        # Messages of other runs do not count: the coordinator waits for those that this run published.
        if (not data or now > schedule.end) and deliveries.count - deliveries.foreign != reported:
            reported = deliveries.count - deliveries.foreign
            pipe.send(Progress(reported))
        if now > schedule.end and pipe.poll():
            return


def _poll(
    pipe: Connection,
    connection: BlockingConnection,
    deliveries: DeliveryChecker,
    schedule: Schedule,
    meter: RateMeter,
    queues: list[bytes],
) -> None:
    set_timeouts(connection, STALL_SECONDS)
    asks = [frame(CHANNEL, "basic.get", 0, name, not deliveries.ack_every) for name in queues]
    turn = reported = 0
    while True:
        answers, empty = deliveries.count + deliveries.empty, deliveries.empty
        connection.socket.sendall(b"".join((*deliveries.acks, asks[turn % len(asks)])))
        deliveries.acks.clear()
        deliveries.queue = turn % len(asks)
        turn += 1
        while deliveries.count + deliveries.empty == answers:
            deliveries.feed(receive(connection), time.monotonic_ns())
            raise_if_closed(connection, deliveries.other)
        now = time.monotonic_ns()
        meter.sample(now, deliveries.count)
        deliveries.measuring = meter.measuring
        if now > schedule.end and deliveries.count - deliveries.foreign != reported:
            reported = deliveries.count - deliveries.foreign
            pipe.send(Progress(reported))
        if now > schedule.end and pipe.poll():
            return
        if deliveries.empty > empty and len(asks) == 1:
            if deliveries.ack_every:
                deliveries.acknowledge()
            time.sleep(EMPTY)


def _flush(connection: BlockingConnection, deliveries: DeliveryChecker, partly: bool = True) -> None:
    if partly and deliveries.ack_every:
        deliveries.acknowledge()
    if deliveries.acks:
        connection.socket.sendall(b"".join(deliveries.acks))
        deliveries.acks.clear()
