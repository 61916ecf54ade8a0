"""Measures Warren, plain and compiled, beside RabbitMQ (and LavinMQ) in alternating runs, and writes the page of it.

Every run's figures are kept as they come (--out), so that what was measured stays if it is interrupted; the page takes
those of a whole comparison.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.backlog import drain, fill
from benchmarks.comparison import claims, footprint, machine, page
from benchmarks.comparison.loads import NotMeasured, measure
from benchmarks.comparison.results import Results
from benchmarks.comparison.rows import FURTHER, QUANTITIES, ROWS, Quantity, Row
from benchmarks.comparison.servers import Running, Server, commit, paused, servers
from benchmarks.comparison.tables import by_loads, by_machine, by_quantities
from tests.support.rabbitmq import installed

WARMUP = 1.0
ONCE = ("backlog-in", "backlog-out")
"""Too long to be repeated."""

METHODS: dict[str, Callable[[Server], float]] = {
    "start": footprint.start,
    "idle": footprint.idle,
    "waiting": footprint.waiting,
    "paged": footprint.paged,
    "connection": footprint.connection,
    "queue": footprint.queue,
    "connections": footprint.connections,
    "channels": footprint.channels,
    "normal-in": claims.normal_in,
    "lazy-in": claims.lazy_in,
    "transactions": claims.transactions,
    "single": claims.single,
    "batches": claims.batches,
    "window": claims.window,
}


def main() -> int:
    options = _options()
    wanted = [word for word in options.rows.split(",") if word]
    every = ROWS + FURTHER if options.full else ROWS
    possible = [one for one in QUANTITIES if options.full or not one.full]
    known = [row.key for row in every] + [one.key for one in possible]
    if unknown := sorted(set(wanted) - set(known)):
        more = "" if options.full else "; more with make bench-full"
        print(f"bench: no row {', '.join(unknown)}; there are {', '.join(known)}{more}", file=sys.stderr)
        return 2
    if not installed():
        print("bench: rabbitmq-server is not installed: apt-get install rabbitmq-server", file=sys.stderr)
        return 2
    rows = _chosen(every, wanted)
    quantities = [one for one in possible if not wanted or one.key in wanted]
    lavinmq = Path(options.lavinmq) if options.lavinmq else None
    brokers = servers(options.plain, options.compiled, lavinmq)
    results = Results(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=commit(),
        machine=machine.describe(),
        versions={one.name: one.version for one in brokers},
        runs=options.runs,
        seconds=options.seconds,
        warmup=WARMUP,
        note=options.note,
    )
    _quantities(results, brokers, quantities, options.runs, options.out)
    if options.full and (not wanted or set(wanted) & set(ONCE)):
        _backlog(results, brokers, options.count, options.out)
    _loads(results, brokers, rows, options.compiled, options.out)
    print(f"{by_machine(results)}\n\n{by_loads(results, rows)}\n\n{by_quantities(results, quantities)}")
    for failure in results.failures:
        print(f"bench: {failure}", file=sys.stderr)
    if not wanted and options.page:
        # Only now: what the page says has to be whole.
        results.save(page.FULL if options.full else page.RESULTS)
        page.write()
    return 74 if results.failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison", description=__doc__)
    add = parser.add_argument
    add("--full", action="store_true", help="also the rows that take hours")
    add("--runs", type=int, default=5)
    add("--seconds", type=float, default=3.0)
    add("--rows", default="", help="only these, by their keys, with commas between")
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
        help="the figures as they come (%(default)s)",
    )
    add("--note", default="", help="what else there is to know, for the page")
    add("--no-page", dest="page", action="store_false", help="leave the page as it is")
    return parser.parse_args()


def _chosen(rows: Sequence[Row], wanted: Sequence[str]) -> list[Row]:
    return [row for row in rows if not wanted or row.key in wanted]


def _loads(results: Results, brokers: list[Server], rows: list[Row], tool: Path, out: Path) -> None:
    if not rows:
        return
    with ExitStack() as stack:
        running = [(broker, stack.enter_context(broker.run())) for broker in brokers]
        for run in range(results.runs):
            for row in rows:
                # Who goes first changes, so that nobody always meets the machine as another left it.
                for broker, at in running if run % 2 == 0 else reversed(running):
                    with paused([other for _, other in running if other is not at]):
                        _load(results, broker, at, row, tool)
                results.save(out)
            _say(f"run {run + 1} of {results.runs} done")


def _load(results: Results, broker: Server, at: Running, row: Row, tool: Path) -> None:
    samples = results.loads.setdefault(row.key, {}).setdefault(broker.name, [])
    try:
        sample = measure(tool.absolute(), at.url, at.pid, row, results.seconds, results.warmup)
    except NotMeasured as error:
        results.failures.append(f"{broker.name}: {error}")
        _say(results.failures[-1])
        return
    samples.append(sample)


def _quantities(
    results: Results, brokers: list[Server], quantities: list[Quantity], runs: int, out: Path
) -> None:
    for quantity in quantities:
        if quantity.key not in METHODS:
            continue
        # Memory is the same each time; times are not.
        times = runs if quantity.key == "start" else 1
        for _ in range(times):
            for broker in brokers:
                found = results.quantities.setdefault(quantity.key, {}).setdefault(broker.name, [])
                try:
                    found.append(METHODS[quantity.key](broker))
                except (OSError, AssertionError) as error:
                    results.failures.append(f"{broker.name}: {quantity.name}: {error}")
        results.save(out)
        _say(f"{quantity.name}: done")


def _backlog(results: Results, brokers: list[Server], count: int, out: Path) -> None:
    results.backlog = count
    for broker in brokers:
        with broker.run() as running:
            into = fill(running.url, running.pid, "backlog", {}, count, 16)
            out_of = drain(running.url, running.pid, "backlog", count)
        results.quantities.setdefault("backlog-in", {})[broker.name] = [into.rate]
        results.quantities.setdefault("backlog-out", {})[broker.name] = [out_of.rate]
        results.save(out)
        _say(f"backlog, {broker.name}: done")


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
