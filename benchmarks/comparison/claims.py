"""What books say of brokers' speed, measured: the ways to be sure, normal and lazy queues, long backlogs."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.comparison.filling import Filling
from benchmarks.comparison.servers import Server

SECONDS = 2.0
INTO_QUEUE = 200_000


def transactions(server: Server) -> float:
    """Persistent messages a second, each committed by itself."""
    with server.run() as running:
        filling = Filling(running.url, "sure", persistent=True)
        rate = filling.commit_each(SECONDS)
        filling.close()
        return rate


def single(server: Server) -> float:
    """Persistent messages a second, each confirmed before the next."""
    return _confirmed(server, lambda filling, count: filling.publish(count, 1), 1_000)


def batches(server: Server) -> float:
    """The same in batches of 100."""
    return _confirmed(server, lambda filling, count: filling.publish(count, 100, batched=True), 20_000)


def window(server: Server) -> float:
    """The same with 1,000 on the way."""
    return _confirmed(server, lambda filling, count: filling.publish(count), 50_000)


def _confirmed(server: Server, publish: Callable[[Filling, int], float], count: int) -> float:
    with server.run() as running:
        filling = Filling(running.url, "sure", persistent=True)
        # As long as the first round needs tells how many make a second or two.
        rate = publish(filling, count)
        rate = publish(filling, max(count, int(rate * SECONDS)))
        filling.close()
        return rate


def normal_in(server: Server) -> float:
    """Persistent messages a second into a normal queue that nobody consumes."""
    return _into(server, {})


def lazy_in(server: Server) -> float:
    """The same into a lazy one."""
    return _into(server, {"x-queue-mode": "lazy"})


def _into(server: Server, arguments: dict[str, str]) -> float:
    with server.run() as running:
        filling = Filling(running.url, "long", persistent=True, arguments={**arguments})
        rate = filling.publish(INTO_QUEUE)
        filling.close()
        return rate
