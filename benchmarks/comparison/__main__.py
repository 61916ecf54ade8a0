"""Comparison of Warren, plain and compiled, with RabbitMQ (and LavinMQ) in alternating runs, and its results page.

The figures of every run are stored at once (--out), so that they survive an interruption; the page uses those of a
complete comparison.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.backlog import drain, fill
from benchmarks.comparison import literature_claims, machine, page, resource_usage
from benchmarks.comparison.load_run import MeasurementError, measure
from benchmarks.comparison.results import Results
from benchmarks.comparison.servers import Running, Server, commit, paused, servers
from benchmarks.comparison.tables import machine_table, quantity_table, workload_table
from benchmarks.comparison.workloads import FULL_WORKLOADS, QUANTITIES, WORKLOADS, Quantity, Workload
from tests.support.rabbitmq import installed

WARMUP = 1.0
MEASURED_ONCE = ("backlog-in", "backlog-out")
"""Measurements that take too long to be repeated."""

METHODS: dict[str, Callable[[Server], float]] = {
    "start": resource_usage.start,
    "idle": resource_usage.idle,
    "waiting": resource_usage.waiting,
    "paged": resource_usage.paged,
    "connection": resource_usage.connection,
    "queue": resource_usage.queue,
    "connections": resource_usage.connections,
    "channels": resource_usage.channels,
    "normal-in": literature_claims.normal_in,
    "lazy-in": literature_claims.lazy_in,
    "transactions": literature_claims.transactions,
    "single": literature_claims.single,
    "batches": literature_claims.batches,
    "window": literature_claims.window,
}


def main() -> int:
    options = _options()
    selected = [word for word in options.rows.split(",") if word]
    every = WORKLOADS + FULL_WORKLOADS if options.full else WORKLOADS
    possible = [quantity for quantity in QUANTITIES if options.full or not quantity.full]
    known = [row.key for row in every] + [quantity.key for quantity in possible]
    if unknown := sorted(set(selected) - set(known)):
        more = "" if options.full else "; more with make bench-full"
        print(f"bench: unknown row {', '.join(unknown)}; there are {', '.join(known)}{more}", file=sys.stderr)
        return 2
    if not installed():
        print("bench: rabbitmq-server is not installed: apt-get install rabbitmq-server", file=sys.stderr)
        return 2
    rows = _chosen(every, selected)
    quantities = [quantity for quantity in possible if not selected or quantity.key in selected]
    lavinmq = Path(options.lavinmq) if options.lavinmq else None
    brokers = servers(options.plain, options.compiled, lavinmq)
    results = Results(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=commit(),
        machine=machine.describe(),
        versions={broker.name: broker.version for broker in brokers},
        runs=options.runs,
        seconds=options.seconds,
        warmup=WARMUP,
        note=options.note,
    )
    _quantities(results, brokers, quantities, options.runs, options.out)
    if options.full and (not selected or set(selected) & set(MEASURED_ONCE)):
        _backlog(results, brokers, options.count, options.out)
    _loads(results, brokers, rows, options.compiled, options.out)
    print(
        f"{machine_table(results)}\n\n{workload_table(results, rows)}\n\n{quantity_table(results, quantities)}"
    )
    for failure in results.failures:
        print(f"bench: {failure}", file=sys.stderr)
    if not selected and options.page:
        # Written last, because the page needs a complete comparison.
        results.save(page.FULL if options.full else page.RESULTS)
        page.write()
    return 74 if results.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison", description=__doc__)
    add = parser.add_argument
    add("--full", action="store_true", help="also run the rows that take hours")
    add("--runs", type=int, default=5)
    add("--seconds", type=float, default=3.0)
    add("--rows", default="", help="keys of the only rows to run, separated by commas")
    add("--count", type=int, default=10_000_000, help="messages of the backlog (--full)")
    add("--plain", type=Path, default=Path(".venv/bin/python"), help="a Python with the plain build")
    add(
        "--compiled", type=Path, default=Path(".venv-compiled/bin/python"), help="one with the compiled build"
    )
    add("--lavinmq", default="", help="LavinMQ's binary")
    add(
        "--out",
        type=Path,
        default=Path("build/bench.json"),
        help="file for the figures of each run (%(default)s)",
    )
    add("--note", default="", help="note about the circumstances, for the page")
    add("--no-page", dest="page", action="store_false", help="do not write the page")
    return parser.parse_args()


def _chosen(rows: Sequence[Workload], selected: Sequence[str]) -> list[Workload]:
    return [row for row in rows if not selected or row.key in selected]


def _loads(results: Results, brokers: list[Server], rows: list[Workload], tool: Path, out: Path) -> None:
    if not rows:
        return
    with ExitStack() as stack:
        running = [(broker, stack.enter_context(broker.run())) for broker in brokers]
        for run in range(results.runs):
            for row in rows:
                # Alternate the order, so that no broker always finds the machine as another left it.
                for broker, at in running if run % 2 == 0 else reversed(running):
                    with paused([other for _, other in running if other is not at]):
                        _load(results, broker, at, row, tool)
                results.save(out)
            _log(f"run {run + 1} of {results.runs} done")


def _load(results: Results, broker: Server, at: Running, row: Workload, tool: Path) -> None:
    samples = results.loads.setdefault(row.key, {}).setdefault(broker.name, [])
    try:
        sample = measure(tool.absolute(), at.url, at.pid, row, results.seconds, results.warmup)
    except MeasurementError as error:
        results.failures.append(f"{broker.name}: {error}")
        _log(results.failures[-1])
        return
    samples.append(sample)


def _quantities(
    results: Results, brokers: list[Server], quantities: list[Quantity], runs: int, out: Path
) -> None:
    for quantity in quantities:
        if quantity.key not in METHODS:
            continue
        # Memory is the same each time; start times vary.
        times = runs if quantity.key == "start" else 1
        for _ in range(times):
            for broker in brokers:
                found = results.quantities.setdefault(quantity.key, {}).setdefault(broker.name, [])
                try:
                    found.append(METHODS[quantity.key](broker))
                except (OSError, AssertionError) as error:
                    results.failures.append(f"{broker.name}: {quantity.name}: {error}")
        results.save(out)
        _log(f"{quantity.name}: done")


def _backlog(results: Results, brokers: list[Server], count: int, out: Path) -> None:
    results.backlog = count
    for broker in brokers:
        with broker.run() as running:
            into = fill(running.url, running.pid, "backlog", {}, count, 16)
            out_of = drain(running.url, running.pid, "backlog", count)
        results.quantities.setdefault("backlog-in", {})[broker.name] = [into.rate]
        results.quantities.setdefault("backlog-out", {})[broker.name] = [out_of.rate]
        results.save(out)
        _log(f"backlog, {broker.name}: done")


def _log(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
