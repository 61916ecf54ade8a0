"""Resource usage of a broker: start time, memory, and connections and channels per second."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.comparison.queue_publisher import QueuePublisher
from benchmarks.comparison.servers import Running, Server
from tests.support.processes import resident_kib
from warren.core.blocking_connection import BlockingConnection
from warren.wire import field_tables
from warren.wire.amqp_url import parse_url

READY_MESSAGES = 500_000
"""Ready messages while memory is measured."""
PAGED = 500_000
"""Messages after which a long queue is on disk only."""
ADDITIONAL_PAGED = 2_000_000
"""Further messages, so many that the temporary buffers of a process, some megabytes, are small in comparison."""
CONNECTIONS = 500
QUEUES = 1_000
OPEN_CLOSE_SECONDS = 1.0
"""Seconds for which connections and channels are opened and closed."""
STABLE_SECONDS = 0.5
"""Seconds without growth after which a broker's memory counts as stable."""


def start(server: Server) -> float:
    """Return milliseconds from the command to the confirm of the first message."""
    begun = time.monotonic()
    with server.run() as running:
        publisher = QueuePublisher(running.url, "first")
        publisher.publish(1)
        spent = time.monotonic() - begun
        publisher.close()
    return spent * 1000


def idle(server: Server) -> float:
    """Return megabytes of memory of a broker without connections."""
    with server.run() as running:
        return _stable_memory(running.pid) / 1e6


def waiting(server: Server) -> float:
    """Return bytes of memory for one transient ready message."""
    with server.run() as running:
        publisher = QueuePublisher(running.url, "waiting")
        # The first messages create what the others reuse: arenas, the queue's process, the parser's caches.
        publisher.publish(1000)
        before = _stable_memory(running.pid)
        publisher.publish(READY_MESSAGES)
        after = _stable_memory(running.pid)
        publisher.close()
    return (after - before) / READY_MESSAGES


def paged(server: Server) -> float:
    """Return bytes of memory for one more message in a long queue whose messages are on disk.

    Warren has a memory limit of 200 MB; RabbitMQ, which pages by its own rules, a lazy queue.
    """
    with server.run(limited=True) as running:
        publisher = QueuePublisher(
            running.url,
            "paged",
            persistent=True,
            arguments={} if server.is_warren else {"x-queue-mode": "lazy"},
        )
        publisher.publish(PAGED)
        before = _stable_memory(running.pid)
        publisher.publish(ADDITIONAL_PAGED)
        after = _stable_memory(running.pid)
        publisher.close()
    return max(0.0, (after - before) / ADDITIONAL_PAGED)


def connection(server: Server) -> float:
    """Return kilobytes of memory for a connection with a channel."""

    def open_all(cleanup: ExitStack, running: Running) -> None:
        for _ in range(CONNECTIONS):
            opened = BlockingConnection(parse_url(running.url))
            cleanup.callback(opened.socket.close)

    return _memory_per_item(server, open_all, CONNECTIONS) / 1000


def queue(server: Server) -> float:
    """Return kilobytes of memory for an empty durable queue."""

    def declare_all(cleanup: ExitStack, running: Running) -> None:
        opened = BlockingConnection(parse_url(running.url))
        cleanup.callback(opened.close)
        flags = (False, True, False, False, False)
        for number in range(QUEUES):
            opened.call("queue.declare", 0, f"queue-{number}".encode(), *flags, field_tables.encode({}))

    return _memory_per_item(server, declare_all, QUEUES) / 1000


def connections(server: Server) -> float:
    """Return how many connections, with a channel each, one client opens and closes per second."""
    with server.run() as running:
        url = parse_url(running.url)
        return _operations_per_second(lambda: BlockingConnection(url).close())


def channels(server: Server) -> float:
    """Return how many channels one client opens and closes per second."""
    with server.run() as running:
        opened = BlockingConnection(parse_url(running.url))

        def operation() -> None:
            opened.call("channel.close", 200, b"done", 0, 0)
            opened.call("channel.open", b"")

        rate = _operations_per_second(operation)
        opened.close()
        return rate


def _operations_per_second(operation: Callable[[], None]) -> float:
    operation()
    begun, count = time.monotonic(), 0
    while (spent := time.monotonic() - begun) < OPEN_CLOSE_SECONDS:
        operation()
        count += 1
    return count / spent


def _memory_per_item(server: Server, make: Callable[[ExitStack, Running], None], count: int) -> float:
    with server.run() as running, ExitStack() as cleanup:
        before = _stable_memory(running.pid)
        make(cleanup, running)
        return (_stable_memory(running.pid) - before) / count


def _stable_memory(pid: int, patience: float = 20.0) -> int:
    """Return a process's resident memory in bytes, once it changes by no more than 1 %."""
    last, since = resident_kib(pid), time.monotonic()
    deadline = since + patience
    while time.monotonic() - since < STABLE_SECONDS and time.monotonic() < deadline:
        time.sleep(0.05)
        now = resident_kib(pid)
        if abs(now - last) > last / 100:
            last, since = now, time.monotonic()
    return resident_kib(pid) * 1024
