"""Operating log of an App: what it runs with when it has started, and what it has done when it stops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from warren.core.worker_number import worker_number
from warren.sdk.app.statistics import Statistics
from warren.sdk.consume.endpoint import Endpoint
from warren.sdk.logger import log
from warren.wire.amqp_url import parse_url


def log_start(name: str, url: str, server: tuple[str, str], queues: int, seconds: float) -> None:
    """Log that an App has started: its broker, without the password, and its number among the workers.

    :param server: product and version of the broker.
    :param queues: number of queues that the App consumes.
    :param seconds: duration of the start.
    """
    broker = parse_url(url)
    log.info(
        "event=app.started name=%s worker=%s warren=%s broker=%s virtual_host=%s product=%s queues=%s seconds=%.1f",
        name, worker_number(), _version(), broker.masked, broker.virtual_host, " ".join(server).strip(), queues, seconds,
    )  # fmt: skip


def log_waiting(name: str, url: str, waiting: Sequence[str]) -> None:
    """Log that an App has started without its broker, for which it waits in the background.

    :param waiting: the parts that are not ready.
    """
    log.info(
        "event=app.waiting name=%s worker=%s warren=%s broker=%s waiting=%s",
        name, worker_number(), _version(), parse_url(url).masked, ",".join(waiting),
    )  # fmt: skip


def log_consumer(queue: str, endpoint: Endpoint) -> None:
    """Log the handlers of a queue that the App consumes, and how many messages they handle at the same time."""
    log.info(
        "event=consumer.started queue=%s handlers=%s concurrency=%s prefetch=%s",
        queue, ",".join(_unique(handler.name for handler in endpoint.handlers)), endpoint.options.concurrency,
        endpoint.options.prefetch,
    )  # fmt: skip


def log_stop(name: str, statistics: Statistics, requeued: int, seconds: float) -> None:
    """Log that an App has stopped: what it did since its start, and what it left.

    :param requeued: messages that were returned to their queues during the stop, because no handler had finished them.
    :param seconds: time since the start.
    """
    log.info(
        "event=app.stopped name=%s worker=%s seconds=%.1f handled=%s failed=%s dead_lettered=%s published=%s requeued=%s"
        " unconfirmed=%s",
        name, worker_number(), seconds, statistics.handled, statistics.failed, statistics.dead_lettered,
        statistics.publisher.published, requeued, statistics.publisher.unconfirmed,
    )  # fmt: skip


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


@cache
def _version() -> str:
    try:
        return version("warrenmq")
    except PackageNotFoundError:
        return "-"
