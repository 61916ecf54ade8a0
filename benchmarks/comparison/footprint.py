"""What a broker costs while nothing moves: its start, its memory, and that of what waits in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.comparison.filling import Filling
from benchmarks.comparison.servers import Running, Server
from tests.support.processes import resident_kib
from warren.core.blocking_connection import BlockingConnection
from warren.wire import field_tables
from warren.wire.amqp_url import parse_url

WAITING = 500_000
"""Messages that wait while memory is measured."""
PAGED = 500_000
"""Messages after which what waits is on disk only."""
PAGED_MORE = 2_000_000
"""So many more that what a process has for the moment, some megabytes, is small beside what they would take."""
CONNECTIONS = 500
QUEUES = 1_000
OPENINGS = 1.0
"""Seconds for which connections and channels are opened and closed."""
STILL = 0.5
"""Seconds without more memory after which a broker's memory counts as settled."""


def start(server: Server) -> float:
    """Milliseconds from the command to the confirm of the first message."""
    begun = time.monotonic()
    with server.run() as running:
        filling = Filling(running.url, "first")
        filling.publish(1)
        spent = time.monotonic() - begun
        filling.close()
    return spent * 1000


def idle(server: Server) -> float:
    """Megabytes that a broker has in memory when nobody has come yet."""
    with server.run() as running:
        return _settled(running.pid) / 1e6


def waiting(server: Server) -> float:
    """Bytes of memory for one transient message that waits."""
    with server.run() as running:
        filling = Filling(running.url, "waiting")
        # The first ones make what the others find there: arenas, the queue's process, the parser's caches.
        filling.publish(1000)
        before = _settled(running.pid)
        filling.publish(WAITING)
        after = _settled(running.pid)
        filling.close()
    return (after - before) / WAITING


def paged(server: Server) -> float:
    """Bytes of memory for one more message in a long queue whose messages are on disk.

    Warren has 200 MB to stay in; RabbitMQ, which pages by its own rules, a lazy queue.
    """
    with server.run(limited=True) as running:
        filling = Filling(
            running.url,
            "paged",
            persistent=True,
            arguments={} if server.is_warren else {"x-queue-mode": "lazy"},
        )
        filling.publish(PAGED)
        before = _settled(running.pid)
        filling.publish(PAGED_MORE)
        after = _settled(running.pid)
        filling.close()
    return max(0.0, (after - before) / PAGED_MORE)


def connection(server: Server) -> float:
    """Kilobytes of memory for a connection with a channel."""

    def open_all(held: ExitStack, running: Running) -> None:
        for _ in range(CONNECTIONS):
            opened = BlockingConnection(parse_url(running.url))
            held.callback(opened.socket.close)

    return _each(server, open_all, CONNECTIONS) / 1000


def queue(server: Server) -> float:
    """Kilobytes of memory for an empty durable queue."""

    def declare_all(held: ExitStack, running: Running) -> None:
        opened = BlockingConnection(parse_url(running.url))
        held.callback(opened.close)
        flags = (False, True, False, False, False)
        for number in range(QUEUES):
            opened.call("queue.declare", 0, f"queue-{number}".encode(), *flags, field_tables.encode({}))

    return _each(server, declare_all, QUEUES) / 1000


def connections(server: Server) -> float:
    """Connections that one client opens and closes a second, with a channel each."""
    with server.run() as running:
        url = parse_url(running.url)
        return _rate(lambda: BlockingConnection(url).close())


def channels(server: Server) -> float:
    """Channels that one client opens and closes a second."""
    with server.run() as running:
        opened = BlockingConnection(parse_url(running.url))

        def once() -> None:
            opened.call("channel.close", 200, b"done", 0, 0)
            opened.call("channel.open", b"")

        rate = _rate(once)
        opened.close()
        return rate


def _rate(once: Callable[[], None]) -> float:
    once()
    begun, count = time.monotonic(), 0
    while (spent := time.monotonic() - begun) < OPENINGS:
        once()
        count += 1
    return count / spent


def _each(server: Server, make: Callable[[ExitStack, Running], None], count: int) -> float:
    with server.run() as running, ExitStack() as held:
        before = _settled(running.pid)
        make(held, running)
        return (_settled(running.pid) - before) / count


def _settled(pid: int, patience: float = 20.0) -> int:
    """Bytes of a process in memory, once they no longer change by more than a hundredth."""
    last, since = resident_kib(pid), time.monotonic()
    deadline = since + patience
    while time.monotonic() - since < STILL and time.monotonic() < deadline:
        time.sleep(0.05)
        now = resident_kib(pid)
        if abs(now - last) > last / 100:
            last, since = now, time.monotonic()
    return resident_kib(pid) * 1024
