"""Measurements of claims in the literature: reliable publishing methods, normal and lazy queues, long backlogs."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.comparison.queue_publisher import QueuePublisher
from benchmarks.comparison.servers import Server

SECONDS = 2.0
INTO_QUEUE = 200_000


def transactions(server: Server) -> float:
    """Return persistent messages per second, each in a transaction of its own."""
    with server.run() as running:
        publisher = QueuePublisher(running.url, "sure", persistent=True)
        rate = publisher.commit_each(SECONDS)
        publisher.close()
        return rate


def single(server: Server) -> float:
    """Return persistent messages per second, each confirmed before the next."""
    return _confirmed(server, lambda publisher, count: publisher.publish(count, 1), 1_000)


def batches(server: Server) -> float:
    """Return persistent messages per second, confirmed in batches of 100."""
    return _confirmed(server, lambda publisher, count: publisher.publish(count, 100, batched=True), 20_000)


def window(server: Server) -> float:
    """Return persistent messages per second, confirmed in a window of 1,000."""
    return _confirmed(server, lambda publisher, count: publisher.publish(count), 50_000)


def _confirmed(server: Server, publish: Callable[[QueuePublisher, int], float], count: int) -> float:
    with server.run() as running:
        publisher = QueuePublisher(running.url, "sure", persistent=True)
        # The rate of the first round gives the number of messages for a second or two.
        rate = publish(publisher, count)
        rate = publish(publisher, max(count, int(rate * SECONDS)))
        publisher.close()
        return rate


def normal_in(server: Server) -> float:
    """Return persistent messages per second into a normal queue without consumers."""
    return _into(server, {})


def lazy_in(server: Server) -> float:
    """Return persistent messages per second into a lazy queue without consumers."""
    return _into(server, {"x-queue-mode": "lazy"})


def _into(server: Server, arguments: dict[str, str]) -> float:
    with server.run() as running:
        publisher = QueuePublisher(running.url, "long", persistent=True, arguments={**arguments})
        rate = publisher.publish(INTO_QUEUE)
        publisher.close()
        return rate
