"""Tables of a comparison in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison.results import Median, Results, Sample
from benchmarks.comparison.servers import COMPILED, LAVINMQ, LAVINMQ_UNSYNCED, RABBITMQ
from benchmarks.comparison.workloads import Quantity, Workload

MISSING = "–"


def workload_table(results: Results, rows: Sequence[Workload]) -> str:
    """Return a table with one line for each workload and broker."""
    lines = [
        "| Load | Broker | messages/s (lowest-highest) | of RabbitMQ | µs per message | p50, p99 ms | memory after, MB "
        "| load tool, cores | bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        brokers = results.loads.get(row.key, {})
        for broker, samples in brokers.items():
            if samples:
                lines.append(_load_line(row, broker, samples, brokers.get(RABBITMQ, [])))
    return "\n".join(lines)


def measured(results: Results, rows: Sequence[Workload]) -> list[Workload]:
    """Return those of the workloads that have figures."""
    return [row for row in rows if any(results.loads.get(row.key, {}).values())]


def _load_line(row: Workload, broker: str, samples: list[Sample], reference: list[Sample]) -> str:
    rate = Median.of([one.per_second for one in samples])
    processor_time = Median.of([one.microseconds for one in samples])
    p50 = Median.of([one.p50_ms for one in samples]).middle
    p99 = Median.of([one.p99_ms for one in samples])
    memory = Median.of([one.resident_mb for one in samples]).middle
    cores = Median.of([one.load_tool_cores for one in samples]).middle
    ratio_to_reference = ratio(row, samples, reference)
    return (
        f"| {row.name} | {broker} | {rate:,.0f} | {_ratio_text(row, ratio_to_reference)} | {processor_time:.1f} "
        f"| {p50:.3g}, {p99:.3g} | {memory:.0f} | {cores:.2f} | "
        f"{_bound_verdict(row, broker, ratio_to_reference, processor_time.middle)} |"
    )


def ratio(row: Workload, samples: Sequence[Sample], reference: Sequence[Sample]) -> float | None:
    """Return the ratio of two brokers' rates; for a fixed rate that of their p99."""
    if not samples or not reference:
        return None
    if row.by_latency:
        mine, theirs = [s.p99_ms for s in samples], [s.p99_ms for s in reference]
    else:
        mine, theirs = [s.per_second for s in samples], [s.per_second for s in reference]
    return Median.of(mine).middle / Median.of(theirs).middle


def _ratio_text(row: Workload, ratio_to_reference: float | None) -> str:
    if ratio_to_reference is None:
        return MISSING
    return f"p99 {ratio_to_reference:.2f}" if row.by_latency else f"{ratio_to_reference:.2f}"


def _bound_verdict(
    row: Workload, broker: str, ratio_to_reference: float | None, processor_time: float
) -> str:
    """Return the bounds of the compiled build, and whether they hold."""
    promises = []
    if row.least is not None:
        promises.append(
            (f"{row.least:g} times", ratio_to_reference is not None and ratio_to_reference >= row.least)
        )
    if row.by_latency:
        promises.append(("p99 0.5", ratio_to_reference is not None and ratio_to_reference <= 0.5))
    if row.most_us is not None:
        promises.append((f"{row.most_us:g} µs", processor_time <= row.most_us))
    if broker != COMPILED or not promises:
        return ""
    return ", ".join(f"{text}: {'holds' if holds else '**falls short**'}" for text, holds in promises)


def lavinmq_table(results: Results, rows: Sequence[Workload]) -> str:
    """Return a table of Warren's compiled build relative to each LavinMQ; empty without one."""
    others = [name for name in (LAVINMQ, LAVINMQ_UNSYNCED) if name in results.versions]
    if not others:
        return ""
    cells = [f"of {name}: rate | processor time" for name in others]
    lines = [f"| Load | {' | '.join(cells)} |", "|---" * (2 * len(others) + 1) + "|"]
    for row in rows:
        brokers = results.loads.get(row.key, {})
        mine = brokers.get(COMPILED, [])
        found = [text for name in others for text in _compared_with(row, mine, brokers.get(name, []))]
        lines.append(f"| {row.name} | {' | '.join(found)} |")
    return "\n".join(lines)


def _compared_with(row: Workload, mine: Sequence[Sample], theirs: Sequence[Sample]) -> tuple[str, str]:
    ratio_to_reference = ratio(row, mine, theirs)
    if ratio_to_reference is None:
        return MISSING, MISSING
    processor_time = (
        Median.of([s.microseconds for s in mine]).middle / Median.of([s.microseconds for s in theirs]).middle
    )
    return _ratio_text(row, ratio_to_reference), f"{processor_time:.2f}"


def quantity_table(results: Results, quantities: Sequence[Quantity]) -> str:
    """Return a table with one line for each quantity and one column for each broker."""
    shown = [one for one in quantities if results.quantities.get(one.key)]
    brokers = list(results.versions)
    lines = [
        f"| | {' | '.join(brokers)} | bound |",
        "|---" * (len(brokers) + 2) + "|",
    ]
    for one in shown:
        found = results.quantities[one.key]
        cells = [_quantity_text(one, found.get(broker, [])) for broker in brokers]
        lines.append(f"| {one.name} | {' | '.join(cells)} | {_quantity_verdict(one, found)} |")
    return "\n".join(lines)


def _quantity_text(one: Quantity, values: Sequence[float]) -> str:
    if not values:
        return MISSING
    middle = Median.of(values).middle
    return f"{middle:,.0f} {one.unit}" if middle >= 10 else f"{middle:.1f} {one.unit}"


def _quantity_verdict(one: Quantity, found: dict[str, list[float]]) -> str:
    if one.most is None:
        return ""
    values = found.get(COMPILED)
    holds = bool(values) and Median.of(values or [0.0]).middle <= one.most
    return f"{one.most:g} {one.unit}: {'holds' if holds else '**falls short**'}"


def machine_table(results: Results) -> str:
    """Return a table of the machine and its limits."""
    here = results.machine
    versions = "\n".join(f"| {name} | {version} |" for name, version in results.versions.items())
    return (
        "| | |\n|---|---|\n"
        f"| Measured | {results.date}, commit {results.commit} |\n"
        f"| Runs | medians of {results.runs} alternating runs of {results.seconds:g} s after {results.warmup:g} s |\n"
        f"{f'| Note | {results.note} |{chr(10)}' if results.note else ''}"
        f"| Machine | {here.processor}, {here.cores} cores, {here.memory_gb:.0f} GB, Linux {here.kernel} |\n"
        f"| Loopback alone | {here.loopback_bytes_per_second / 1e6:,.0f} MB/s over one connection |\n"
        f"| Disk alone | {here.syncs_per_second:,.0f} writes of 4 KiB per second, each synced (fdatasync) |\n"
        f"{versions}"
    )


def claims_table(results: Results, full: Results) -> str:
    """Return a table of claims in the literature, and the measurements on RabbitMQ and on Warren (compiled)."""
    lines = ["| Claim | RabbitMQ | Warren, compiled |", "|---|---|---|"]
    cells = {
        "Persistence costs a factor of ten": (results, _persistence),
        "Transactions are slowest, then single confirms, then batches; asynchronous confirms are fastest": (
            full,
            _confirm_methods,
        ),
        "Headers exchanges are the slowest of the four types": (full, _exchanges),
        "13,000 messages per second into a normal queue, 24,000 into a lazy one": (full, _queues),
    }
    for claim, (source, cell) in cells.items():
        lines.append(f"| {claim} | {cell(source, RABBITMQ)} | {cell(source, COMPILED)} |")
    return "\n".join(lines)


def _rate(results: Results, row: str, broker: str) -> float | None:
    samples = results.loads.get(row, {}).get(broker, [])
    return Median.of([one.per_second for one in samples]).middle if samples else None


def _value(results: Results, quantity: str, broker: str) -> float | None:
    values = results.quantities.get(quantity, {}).get(broker, [])
    return Median.of(values).middle if values else None


def _persistence(results: Results, broker: str) -> str:
    transient, persistent = _rate(results, "confirmed", broker), _rate(results, "persistent", broker)
    return f"a factor of {transient / persistent:.1f}" if transient and persistent else MISSING


def _named(values: dict[str, float | None]) -> str:
    known = [(name, value) for name, value in values.items() if value is not None]
    return ", ".join(f"{name} {value:,.0f}" for name, value in known) or MISSING


def _confirm_methods(results: Results, broker: str) -> str:
    names = {
        "transactions": "transactions",
        "single": "single",
        "batches": "batches",
        "window": "asynchronous",
    }
    return _named({name: _value(results, key, broker) for key, name in names.items()})


def _exchanges(results: Results, broker: str) -> str:
    return _named(
        {kind: _rate(results, f"by-{kind}", broker) for kind in ("fanout", "direct", "topic", "headers")}
    )


def _queues(results: Results, broker: str) -> str:
    return _named(
        {"normal": _value(results, "normal-in", broker), "lazy": _value(results, "lazy-in", broker)}
    )
