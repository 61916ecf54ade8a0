"""Report of a benchmark run: rates, latencies, processor time for each message, and check of deliveries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from warren.broker.bench.load_options import (
    MIN_NUMBERED_SIZE,
    MIN_TIMESTAMPED_SIZE,
    ConsumerReport,
    Load,
    SpanCounts,
)
from warren.broker.bench.measurement import Measurement
from warren.broker.bench.message_flow import bucket_value


@dataclass(frozen=True)
class Latency:
    """Percentiles of the latency in milliseconds, from just before a message is written until it has been read.

    Publisher and consumer run on the same machine, and read the same clock.
    """

    p50: float
    p95: float
    p99: float
    p999: float
    highest: float


@dataclass(frozen=True)
class Verdict:
    """Result of the check of deliveries for loss, duplicates and order, as numbers of messages.

    :ivar checked: False if message bodies are too small to carry a sequence number.
    :ivar foreign: deliveries of messages that another run has left in the queues.
    """

    checked: bool
    published: int
    consumed: int
    nacked: int
    lost: int
    duplicated: int
    reordered: int
    redelivered: int
    foreign: int

    @property
    def holds(self) -> bool:
        """True if no message was lost, duplicated or out of order."""
        return not self.lost and not self.duplicated and not self.reordered


@dataclass(frozen=True)
class Report:
    """Results of a benchmark run, as `warren bench` prints them."""

    published_per_second: float
    confirmed_per_second: float
    consumed_per_second: float
    latency_ms: Latency | None
    processor_us_per_message: float | None
    """Processor time (user and system) of the broker for each message, in microseconds.

    The number of messages is the mean of those published and consumed; in a fan-out each copy is a message.
    """
    broker_cores: float | None
    """Processor cores that the broker kept busy on average; None if its process id is unknown."""
    load_tool_cores: float
    """Processor cores that the workers kept busy on average.

    If they kept all cores busy, the workers were the bottleneck, not the broker.
    """
    verdict: Verdict

    @staticmethod
    def of(load: Load, outcome: Measurement) -> Report:
        """Compute the report of a run from the raw results."""
        sending = [one.sending for one in outcome.published]
        consuming = [one.consuming for one in outcome.consumed]
        published = sum(rates.per_second for rates in sending)
        consumed = sum(rates.per_second for rates in consuming)
        # If one side is faster, the broker also works for it: a message is half publish and half delivery. In a fan-out
        # each copy is a message.
        messages = (
            (published * load.copies + consumed) / 2
            if load.publishers and load.consumers
            else published + consumed
        )
        cores = outcome.processor / outcome.span if outcome.processor is not None else None
        return Report(
            published_per_second=published,
            confirmed_per_second=sum(one.confirming.per_second for one in outcome.published)
            if load.window
            else 0.0,
            consumed_per_second=consumed,
            latency_ms=_latency(load, outcome.consumed),
            processor_us_per_message=cores * 1e6 / messages if cores is not None and messages else None,
            broker_cores=cores,
            load_tool_cores=_cores(sending) + _cores(consuming),
            verdict=_verdict(load, outcome),
        )

    def as_json(self) -> str:
        """Return the report as a JSON object."""
        return json.dumps(asdict(self))

    def as_text(self, load: Load) -> str:
        """Return the report as lines of text for people."""
        lines = [_line("published", f"{self.published_per_second:12,.0f} /s")] if load.publishers else []
        if load.publishers and load.window:
            lines.append(_line("confirmed", f"{self.confirmed_per_second:12,.0f} /s"))
        if load.consumers:
            lines.append(_line("consumed", f"{self.consumed_per_second:12,.0f} /s"))
        if self.latency_ms is not None:
            values = asdict(self.latency_ms).values()
            names = ("p50", "p95", "p99", "p99.9", "max")
            lines.append(
                _line("latency", "  ".join(f"{n} {v:.3g} ms" for n, v in zip(names, values, strict=True)))
            )
        if self.processor_us_per_message is not None:
            lines.append(
                _line("broker", f"{self.processor_us_per_message:12.2f} µs of processor time a message")
            )
        lines.append(_line("load tool", f"{self.load_tool_cores:12.2f} cores"))
        return "\n".join([*lines, _line("messages", self.verdict_text())])

    def verdict_text(self) -> str:
        verdict = self.verdict
        counts = f"{verdict.published:,} published, {verdict.consumed:,} consumed"
        if verdict.nacked:
            counts += f", {verdict.nacked:,} refused"
        if verdict.foreign:
            counts += f", {verdict.foreign:,} of other runs"
        if not verdict.checked:
            return f"{counts} (not verified)"
        if verdict.holds:
            return f"{counts}: none lost, none twice, none out of order"
        found = f"{verdict.lost:,} lost, {verdict.duplicated:,} twice, {verdict.reordered:,} out of order"
        return f"{counts}: {found}"


def _line(name: str, text: str) -> str:
    return f"{name:<10} {text}"


def _cores(rates: Sequence[SpanCounts]) -> float:
    return sum(one.processor * 1e9 / (one.ended - one.began) for one in rates if one.ended > one.began)


def _latency(load: Load, consumed: Sequence[ConsumerReport]) -> Latency | None:
    if load.size < MIN_TIMESTAMPED_SIZE:
        return None
    counts = [sum(column) for column in zip(*(one.latencies for one in consumed), strict=True)]
    total = sum(counts)
    if not total:
        return None

    def at(share: float) -> float:
        seen = 0
        for place, count in enumerate(counts):
            seen += count
            if count and seen >= share * total:
                return bucket_value(place) / 1000
        return 0.0

    return Latency(at(0.5), at(0.95), at(0.99), at(0.999), at(1.0))


def _verdict(load: Load, outcome: Measurement) -> Verdict:
    sent = sum(one.sent for one in outcome.published)
    nacked = sum(one.nacked for one in outcome.published)
    lost = duplicated = 0
    checked = bool(load.size >= MIN_NUMBERED_SIZE and load.publishers and load.consumers and not nacked)
    if checked:
        for one in outcome.published:
            count = sum(each.counts[one.publisher] for each in outcome.consumed)
            total = sum(each.sums[one.publisher] for each in outcome.consumed)
            due = one.sent * load.copies
            lost += max(0, due - count)
            duplicated += max(0, count - due)
            if count == due and total != load.copies * one.sent * (one.sent + 1) // 2:
                # The count is right but the sum is not: at least one message was lost and another duplicated.
                lost, duplicated = lost + 1, duplicated + 1
    return Verdict(
        checked=checked,
        published=sent,
        consumed=sum(one.count for one in outcome.consumed),
        nacked=nacked,
        lost=lost,
        duplicated=duplicated,
        reordered=sum(one.reordered for one in outcome.consumed),
        redelivered=sum(one.redelivered for one in outcome.consumed),
        foreign=sum(one.foreign for one in outcome.consumed),
    )
