"""Warren, plain and compiled, beside Debian's RabbitMQ: alternating runs on one machine, a Markdown table."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.measured import (
    AUTO_ACK,
    CONFIRMED,
    LARGER,
    PERSISTENT,
    UNCONFIRMED,
    Median,
    NotMeasured,
    Row,
    Sample,
    measure,
)
from tests.support.broker import BrokerProcess
from tests.support.rabbitmq import installed, rabbitmq_server

ROWS = (CONFIRMED, UNCONFIRMED, AUTO_ACK, PERSISTENT, LARGER)
RABBITMQ = "RabbitMQ"


class Server:
    """A running broker: what it is called, where it listens, and its process."""

    def __init__(self, name: str, url: str, pid: int) -> None:
        self.name = name
        self.url = url
        self.pid = pid


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--plain", type=Path, default=Path(".venv/bin/python"), help="a Python with the plain build"
    )
    parser.add_argument("--compiled", type=Path, default=Path(".venv-compiled/bin/python"))
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    if not installed():
        print("bench: rabbitmq-server is not installed: apt-get install rabbitmq-server", file=sys.stderr)
        return 2
    rows = [row for row in ROWS if options.rows in row.name]
    try:
        with ExitStack() as stack:
            servers = _start(stack, options.plain, options.compiled)
            table = _table(_measured(servers, rows, options.runs, options.seconds, options.compiled))
    except NotMeasured as error:
        print(f"bench: {error}", file=sys.stderr)
        return 74
    text = f"{_conditions(options.runs, options.seconds)}\n\n{table}\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def _start(stack: ExitStack, plain: Path, compiled: Path) -> list[Server]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-bench-")))
    servers = []
    for name, python in (("Warren, plain", plain), ("Warren, compiled", compiled)):
        broker = stack.enter_context(BrokerProcess(folder / name, python=python.absolute()))
        servers.append(Server(name, broker.url, broker.pid))
    rabbitmq = stack.enter_context(rabbitmq_server())
    return [*servers, Server(RABBITMQ, rabbitmq.url, rabbitmq.pid)]


Samples = dict[str, dict[str, list[Sample]]]
"""By row, by broker."""


def _measured(servers: list[Server], rows: list[Row], runs: int, seconds: float, load_tool: Path) -> Samples:
    samples: Samples = {row.name: {server.name: [] for server in servers} for row in rows}
    for run in range(runs):
        for row in rows:
            for server in servers:
                sample = measure(load_tool.absolute(), server.url, server.pid, row, seconds)
                samples[row.name][server.name].append(sample)
        print(f"run {run + 1} of {runs} done", file=sys.stderr)
    return samples


def _table(samples: Samples) -> str:
    lines = [
        "| Load | Broker | messages/s (lowest-highest) | of RabbitMQ | µs a message | load tool, cores |",
        "|---|---|---|---|---|---|",
    ]
    for row, brokers in samples.items():
        reference = Median.of([sample.per_second for sample in brokers[RABBITMQ]]).middle
        for broker, runs in brokers.items():
            rate = Median.of([sample.per_second for sample in runs])
            spent = Median.of([sample.microseconds for sample in runs])
            cores = Median.of([sample.load_tool_cores for sample in runs])
            lines.append(
                f"| {row} | {broker} | {rate:,.0f} | {rate.middle / reference:.2f} "
                f"| {spent:.1f} | {cores.middle:.2f} |"
            )
    return "\n".join(lines)


def _conditions(runs: int, seconds: float) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    package = ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]
    rabbitmq = subprocess.run(package, capture_output=True, text=True).stdout.strip()
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, Python {platform.python_version()}, "
        f"RabbitMQ {rabbitmq}, {os.cpu_count()} cores; "
        f"medians of {runs} alternating runs of {seconds:g} s after 1 s of warm-up; 16 B, one publisher, "
        "one consumer, confirm window 1,000, prefetch 1,000, acknowledged by the 500."
    )


if __name__ == "__main__":
    sys.exit(main())
