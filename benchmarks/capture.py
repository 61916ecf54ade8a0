"""Benchmark of event capture: processor time per message with and without it, in alternating runs.

    python -m benchmarks.capture --runs 7 --site FOLDER --out benchmarks/results/DATE-capture.md

For the SDK it is the time of the application's process, for the broker that of the broker's. FOLDER contains a compiled
build (`pip install --target`); without it this checkout's broker is measured. Processor time depends less on other work
on the machine than throughput does, and the ratio of two adjacent runs even less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from benchmarks.backlog import commit
from benchmarks.comparison.load_run import MeasurementError, measure
from benchmarks.comparison.workloads import AUTO_ACK, CONFIRMED, PERSISTENT, Workload
from tests.support.broker_process import BrokerProcess

STREAM = "warren.events"
SDK_ROWS = {"publish": "SDK: publish, confirmed", "handle": "SDK: publish, confirmed; handle, acknowledged"}
BROKER_ROWS = (CONFIRMED, PERSISTENT, AUTO_ACK)
EVENTS = {"publish": 2, "handle": 4, CONFIRMED.name: 4, PERSISTENT.name: 4, AUTO_ACK.name: 2}
"""Events of one message."""


@dataclass(frozen=True)
class Pair:
    """Microseconds per message, without and with capture."""

    without: float
    captured: float

    @property
    def ratio(self) -> float:
        return self.captured / self.without


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture", description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--site", type=Path, metavar="FOLDER", help="a compiled build, to be measured as well"
    )
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args()
    builds: dict[str, Mapping[str, str]] = {"plain": {}}
    if options.site is not None:
        builds["compiled"] = {"PYTHONPATH": str(options.site)}
    try:
        rows = [
            sdk(row, name, options.runs, options.seconds)
            for row, name in SDK_ROWS.items()
            if options.rows in name
        ]
        for build, env in builds.items():
            rows += [
                broker(row, name, env, options.runs, options.seconds)
                for row in BROKER_ROWS
                if options.rows in (name := f"broker, {build}: {row.name}")
            ]
    except MeasurementError as error:
        print(f"capture: {error}", file=sys.stderr)
        return 74
    text = report(rows, options.runs, options.seconds)
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    return 0


def sdk(row: str, name: str, runs: int, seconds: float) -> list[str]:
    with (
        tempfile.TemporaryDirectory(prefix="warren-capture-") as folder,
        BrokerProcess(Path(folder)) as server,
    ):

        def once(number: int, captured: bool) -> float:
            words = [
                "-m",
                "benchmarks.sdk.with_warren",
                row,
                server.url,
                f"q-{number}-{captured}",
                str(seconds),
            ]
            env = {**os.environ, "CAPTURE": STREAM if captured else ""}
            done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=env)
            if done.returncode:
                raise MeasurementError(done.stderr.strip())
            found = json.loads(done.stdout)
            return float(found["processor"] / found["messages"] * 1e6)

        return line(name, EVENTS[row], pairs(once, runs))


def broker(row: Workload, name: str, env: Mapping[str, str], runs: int, seconds: float) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="warren-capture-") as folder:

        def once(number: int, captured: bool) -> float:
            data = Path(folder) / f"{number}-{captured}"
            flags = ("--capture-events", STREAM) if captured else ()
            with BrokerProcess(data, *flags, env=env) as server:
                return measure(sys.executable, server.url, server.pid, row, seconds, env=env).microseconds

        return line(name, EVENTS[row.name], pairs(once, runs))


def pairs(once: Callable[[int, bool], float], runs: int) -> list[Pair]:
    found = []
    for number in range(runs):
        # Who goes first changes, so that neither always meets the machine as the other left it.
        order = (False, True) if number % 2 == 0 else (True, False)
        measured = {captured: once(number, captured) for captured in order}
        found.append(Pair(measured[False], measured[True]))
    return found


def line(name: str, events: int, found: list[Pair]) -> list[str]:
    without = statistics.median(pair.without for pair in found)
    captured = statistics.median(pair.captured for pair in found)
    ratios = [pair.ratio for pair in found]
    cells = [
        name,
        f"{without:.1f}",
        f"{captured:.1f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
        f"{(captured - without) / events:.2f}",
    ]
    print(" | ".join(cells), file=sys.stderr, flush=True)
    return cells


def report(rows: list[list[str]], runs: int, seconds: float) -> str:
    head = ["", "without, µs a message", "captured, µs a message", "ratio", "µs an event"]
    table = [head, ["---"] * len(head), *rows]
    return "\n".join(
        [
            "# What event capture costs",
            "",
            f"`python -m benchmarks.capture`, {date.today()}, commit {commit()}, Python {platform.python_version()}, "
            f"{runs} alternating runs of {seconds:g} s: processor time of the application (SDK) or of the broker; medians, "
            "and of the ratio the lowest and the highest.",
            "",
            *(f"| {' | '.join(cells)} |" for cells in table),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
