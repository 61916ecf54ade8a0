"""Comparison of Warren's SDK with raw aio-pika, FastStream, Celery, Dramatiq and taskiq-aio-pika, on RabbitMQ and on
Warren.

Each client runs in a process of its own, in alternating runs; the result is a Markdown table. The other clients are not
dependencies of Warren: they are in `.venv-rivals`, which the first run creates from `benchmarks/sdk/requirements.txt`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import aio_pika

from tests.support.broker_process import BrokerProcess
from tests.support.rabbitmq import installed, rabbitmq_server

ROWS = {
    "publish": "confirmed publishing, window of 500",
    "handle": "publish to typed handler, window of 500",
    "thread": "publish to plain typed handler in a thread, window of 500",
    "call": "calls, 100 in flight",
}
CLIENTS = {
    "Warren": ("publish", "handle", "thread", "call"),
    "aio-pika": ("publish", "handle", "call"),
    "FastStream": ("publish", "handle", "thread", "call"),
    "taskiq": ("publish", "handle"),
    "Celery": ("publish", "handle", "thread", "call"),
    "Celery-prefork": ("thread",),
    "Dramatiq": ("publish", "handle"),
}
"""Clients with the loads that each supports: taskiq-aio-pika and Dramatiq have no replies over AMQP."""
OURS = ("Warren", "aio-pika")
OWN_QUEUES = ("", ".celery", ".dramatiq", ".dramatiq.DQ", ".dramatiq.XQ", ".taskiq", ".taskiq.dead")
"""Suffixes of queues that clients declare with arguments of their own."""
RIVALS = Path(__file__).parents[2] / ".venv-rivals"
REFERENCE = {"publish": "aio-pika", "handle": "FastStream", "thread": "FastStream", "call": "FastStream"}

Sample = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sdk", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--brokers", default="", help="only brokers whose name contains this")
    parser.add_argument("--clients", default="", help="only clients whose name contains this")
    parser.add_argument(
        "--rivals", type=Path, help="a Python that has the others (default: .venv-rivals is made)"
    )
    parser.add_argument(
        "--broker-python", type=Path, default=Path(sys.executable), help="runs `warren broker`"
    )
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    rivals = options.rivals or _rivals()
    here = Path(sys.executable)
    contenders = {
        client: here if client in OURS else rivals for client in CLIENTS if options.clients in client
    }
    rows = [row for row in ROWS if options.rows in row]
    samples: dict[tuple[str, str, str], list[Sample]] = {}
    with ExitStack() as stack:
        brokers = _brokers(stack, options.broker_python)
        for run in range(options.runs):
            for row in rows:
                for broker, url in brokers.items():
                    if options.brokers not in broker:
                        continue
                    for contender, python in contenders.items():
                        if row not in CLIENTS[contender]:
                            continue
                        sample = _measure(python, contender, row, url, options.seconds)
                        if sample is not None:
                            samples.setdefault((row, broker, contender), []).append(sample)
            print(f"run {run + 1} of {options.runs} done", file=sys.stderr)
    text = f"{_conditions(options.runs, options.seconds)}\n\n{_table(samples)}\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


def _rivals() -> Path:
    """Return the Python of the other clients' environment, which is created if it is missing or older than its
    requirements."""
    requirements = Path(__file__).with_name("requirements.txt")
    python, made = RIVALS / "bin" / "python", RIVALS / "made"
    if not made.is_file() or made.stat().st_mtime < requirements.stat().st_mtime:
        print("making .venv-rivals", file=sys.stderr)
        venv.create(RIVALS, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements], check=True)
        made.touch()
    return python


def _brokers(stack: ExitStack, python: Path) -> dict[str, str]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-bench-")))
    brokers = {"Warren": stack.enter_context(BrokerProcess(folder, python=python)).url}
    if installed():
        brokers["RabbitMQ"] = stack.enter_context(rabbitmq_server()).url
    return brokers


def _measure(python: Path, contender: str, row: str, url: str, seconds: float) -> Sample | None:
    queue = f"bench.{uuid4().hex[:12]}"
    asyncio.run(_with_queue(url, queue, declare=True))
    module = f"benchmarks.sdk.with_{contender.lower().replace('-', '_')}"
    try:
        done = subprocess.run(
            [python, "-m", module, row, url, queue, str(seconds)],
            capture_output=True,
            text=True,
            timeout=120 + seconds,
            check=False,
        )
    finally:
        asyncio.run(_with_queue(url, queue, declare=False))
    if done.returncode:
        print(f"{contender} failed, {row}: {done.stderr.splitlines()[-1]}", file=sys.stderr)
        return None
    sample: Sample = json.loads(done.stdout.splitlines()[-1])
    return sample


async def _with_queue(url: str, queue: str, *, declare: bool) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        if declare:
            await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "classic"})
        else:
            for own in OWN_QUEUES:
                await channel.queue_delete(queue + own)


def _table(samples: dict[tuple[str, str, str], list[Sample]]) -> str:
    rates = {
        key: statistics.median(s["messages"] / s["seconds"] for s in runs) for key, runs in samples.items()
    }
    lines = [
        "| Load | Broker | Client | messages/s (lowest-highest) | times the reference | client's µs a message |",
        "|---|---|---|---|---|---|",
    ]
    for (row, broker, contender), runs in samples.items():
        all_rates = [s["messages"] / s["seconds"] for s in runs]
        spent = statistics.median(s["processor"] / s["messages"] * 1e6 for s in runs)
        reference = rates.get((row, broker, REFERENCE[row]))
        times = f"{rates[row, broker, contender] / reference:.1f}" if reference else ""
        lines.append(
            f"| {ROWS[row]} | {broker} | {contender} | {rates[row, broker, contender]:,.0f} "
            f"({min(all_rates):,.0f}-{max(all_rates):,.0f}) | {times} | {spent:.0f} |"
        )
    return "\n".join(lines)


def _conditions(runs: int, seconds: float) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; medians of {runs} alternating runs of {seconds:g} s, one client process each; "
        "a durable classic queue, persistent messages of 30 bytes; Celery and Dramatiq, which wait for each confirm, in "
        "8 threads; the reference is aio-pika for publishing, "
        "FastStream for the rest."
    )


if __name__ == "__main__":
    sys.exit(main())
