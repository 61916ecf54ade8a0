"""Metrics from the statistics of an App. They are read when the meter
provider collects, so they cost nothing per message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from warren.sdk.app.statistics import Statistics
from warren.sdk.telemetry.semantic_conventions import DESTINATION

Measurement = tuple[float, str | None]
"""A value, and the name of the queue that it is about; None if it is about the whole App."""


class StatisticsSource(Protocol):
    """Interface of one run of an App (`Runtime`), from which the metrics read the statistics."""

    @property
    def name(self) -> str: ...

    def statistics(self) -> Statistics: ...


class Metric(NamedTuple):
    """Name, unit and description of a metric of the App's statistics.

    :param read: returns the values of the metric from the statistics, each with the queue that it belongs to, or None.
    :param now: true for a gauge that goes up and down, false for a count since the start of the App.
    """

    name: str
    unit: str
    description: str
    read: Callable[[Statistics], Iterable[Measurement]]
    now: bool = False


def _of_publisher(field: str) -> Callable[[Statistics], Iterable[Measurement]]:
    return lambda statistics: [(getattr(statistics.publisher, field), None)]


def _of_calls(field: str) -> Callable[[Statistics], Iterable[Measurement]]:
    return lambda statistics: [(getattr(statistics.calls, field), None)]


def _by_queue(part: str, field: str) -> Callable[[Statistics], Iterable[Measurement]]:
    return lambda statistics: [
        (getattr(one, field), queue) for queue, one in getattr(statistics, part).items()
    ]


METRICS = (
    Metric(
        "warren.publisher.unconfirmed",
        "{message}",
        "Published and not confirmed yet.",
        _of_publisher("unconfirmed"),
        True,
    ),
    Metric("warren.publisher.confirmed", "{message}", "Confirmed by the broker.", _of_publisher("confirmed")),
    Metric("warren.publisher.nacked", "{message}", "Nacked by the broker.", _of_publisher("nacked")),
    Metric(
        "warren.publisher.returned",
        "{message}",
        "Returned because no queue matched.",
        _of_publisher("returned"),
    ),
    Metric("warren.publisher.timed_out", "{message}", "Not confirmed in time.", _of_publisher("timed_out")),
    Metric(
        "warren.publisher.republished",
        "{message}",
        "Published again after a lost connection or a nack.",
        _of_publisher("republished"),
    ),
    Metric(
        "warren.publisher.blocked",
        "s",
        "Time for which the broker blocked publishers.",
        _of_publisher("blocked_seconds"),
    ),
    Metric(
        "warren.connection.reconnects",
        "{connection}",
        "Connections opened again after a loss.",
        lambda s: [(s.reconnects, None)],
    ),
    Metric(
        "warren.consumer.running",
        "{message}",
        "In handlers now.",
        _by_queue("subscriptions", "running"),
        True,
    ),
    Metric(
        "warren.consumer.waiting",
        "{message}",
        "Prefetched and waiting for a handler.",
        _by_queue("subscriptions", "waiting"),
        True,
    ),
    Metric(
        "warren.consumer.redelivered",
        "{message}",
        "Delivered with the redelivered flag.",
        _by_queue("subscriptions", "redelivered"),
    ),
    Metric(
        "warren.consumer.stale",
        "{message}",
        "Handled on a connection that was lost before the acknowledgement.",
        _by_queue("subscriptions", "stale"),
    ),
    Metric("warren.handler.handled", "{message}", "Handled successfully.", _by_queue("handlers", "handled")),
    Metric(
        "warren.handler.retries",
        "{attempt}",
        "Further attempts in the process.",
        _by_queue("handlers", "retried"),
    ),
    Metric(
        "warren.handler.delayed",
        "{message}",
        "Delayed on the broker for another attempt.",
        _by_queue("handlers", "delayed"),
    ),
    Metric(
        "warren.handler.dead_lettered", "{message}", "Dead-lettered.", _by_queue("handlers", "dead_lettered")
    ),
    Metric(
        "warren.handler.dropped",
        "{message}",
        "Dropped without a dead letter.",
        _by_queue("handlers", "dropped"),
    ),
    Metric("warren.calls.in_flight", "{call}", "Calls waiting for a reply.", _of_calls("in_flight"), True),
    Metric("warren.calls.timed_out", "{call}", "Calls without a reply in time.", _of_calls("timed_out")),
    Metric(
        "warren.calls.discarded_replies",
        "{message}",
        "Nobody waited for them.",
        _of_calls("discarded_replies"),
    ),
)

_sources: WeakKeyDictionary[MeterProvider, MeterSources] = WeakKeyDictionary()


class MeterSources:
    """The observable instruments of one meter provider, and the App runs whose statistics they report.

    A provider gets one such object, also if several Apps of the process use it.
    """

    def __init__(self, meters: MeterProvider) -> None:
        self.sources: WeakSet[StatisticsSource] = WeakSet()
        self._meter = meters.get_meter("warren.sdk")
        self._components: set[str] = set()
        for metric in METRICS:
            make = (
                self._meter.create_observable_up_down_counter
                if metric.now
                else self._meter.create_observable_counter
            )
            make(metric.name, [self._reader(metric.read)], metric.unit, metric.description)

    def add(self, source: StatisticsSource) -> None:
        """Report the statistics of a run of an App from now on, including those of its components."""
        self.sources.add(source)
        for key, value in source.statistics().components.items():
            kind = key.partition(" ")[0]
            for field in fields(value):
                self._component(kind, field.name)

    def _component(self, kind: str, field: str) -> None:
        name = f"warren.{kind}.{field}"
        if name in self._components:
            return
        self._components.add(name)

        def read(options: CallbackOptions) -> Iterator[Observation]:
            for source in list(self.sources):
                for key, value in source.statistics().components.items():
                    figure = getattr(value, field, None) if key.partition(" ")[0] == kind else None
                    if isinstance(figure, int | float):
                        yield Observation(figure, {"warren.app": source.name, "warren.component": key})

        self._meter.create_observable_gauge(name, [read])

    def _reader(
        self, read: Callable[[Statistics], Iterable[Measurement]]
    ) -> Callable[..., Iterator[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for source in list(self.sources):
                for value, queue in read(source.statistics()):
                    attributes: dict[str, Any] = {"warren.app": source.name}
                    if queue is not None:
                        attributes[DESTINATION] = queue
                    yield Observation(value, attributes)

        return observe


def observe_run(meters: MeterProvider, source: StatisticsSource) -> None:
    """Export the statistics of a run each time the meter provider collects its metrics, until `stop_observing`."""
    sources_of = _sources.get(meters)
    if sources_of is None:
        # Once for each provider: it keeps the first instrument of a name, with its callbacks.
        sources_of = _sources[meters] = MeterSources(meters)
    sources_of.add(source)


def stop_observing(meters: MeterProvider, source: StatisticsSource) -> None:
    """Stop exporting the statistics of a run of an App that has ended."""
    sources_of = _sources.get(meters)
    if sources_of is not None:
        sources_of.sources.discard(source)
