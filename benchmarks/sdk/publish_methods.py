"""Comparison of methods to publish reliably on Warren and on RabbitMQ, as a Markdown table."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from tests.support.broker_process import BrokerProcess
from tests.support.rabbitmq import installed, rabbitmq_server
from warren.sdk import App, Queue

BODY = b"x" * 30
BATCH = 100
WINDOW = 500

PublishMethod = Callable[[App, str, float], Awaitable[int]]


async def transactions(app: App, queue: str, end: float) -> int:
    return await _repeat_until(end, lambda: _committed(app, queue, 1))


async def transactions_of_batches(app: App, queue: str, end: float) -> int:
    return BATCH * await _repeat_until(end, lambda: _committed(app, queue, BATCH))


async def single_confirms(app: App, queue: str, end: float) -> int:
    return await _repeat_until(end, lambda: app.publish(BODY, key=queue))


async def batches(app: App, queue: str, end: float) -> int:
    async def source() -> AsyncIterator[bytes]:
        while time.monotonic() < end:
            yield BODY

    reports = app.publish_batches(source(), count=BATCH, within=None, key=queue)
    return sum([report.total async for report in reports])


async def window(app: App, queue: str, end: float) -> int:
    async def worker() -> int:
        return await _repeat_until(end, lambda: app.publish(BODY, key=queue))

    return sum(await asyncio.gather(*(worker() for _ in range(WINDOW))))


async def publish_many(app: App, queue: str, end: float) -> int:
    total = 0
    while time.monotonic() < end:
        total += (await app.publish_many([BODY] * 5000, key=queue)).total
    return total


async def unconfirmed(app: App, queue: str, end: float) -> int:
    return await _repeat_until(end, lambda: app.publish(BODY, key=queue, reliability="at_most_once"))


METHODS: dict[str, PublishMethod] = {
    "a transaction each": transactions,
    "single confirms": single_confirms,
    f"a transaction of {BATCH}": transactions_of_batches,
    f"confirms, in batches of {BATCH}": batches,
    f"confirms, {WINDOW} tasks at a time": window,
    "confirms, `publish_many` in the window": publish_many,
    "at most once": unconfirmed,
}


async def _repeat_until(end: float, publish_once: Callable[[], Awaitable[object]]) -> int:
    done = 0
    while time.monotonic() < end:
        await publish_once()
        done += 1
    return done


async def _committed(app: App, queue: str, count: int) -> None:
    async with app.transaction() as tx:
        for _ in range(count):
            await tx.publish(BODY, key=queue)


async def _measured(url: str, method: PublishMethod, seconds: float) -> tuple[float, float]:
    """Return messages per second, and the client's processor time per message in microseconds."""
    queue = f"ways.{uuid4().hex}"
    async with App(url) as app:
        await app.declare_now(Queue(queue, type="classic", dead_letter_exchange=None))
        await app.publish(BODY, key=queue)
        started, spent = time.monotonic(), _processor()
        messages = await method(app, queue, started + seconds)
        return messages / (time.monotonic() - started), (_processor() - spent) / messages * 1e6


def _processor() -> float:
    times = os.times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sdk.publish_methods", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-bench-")))
        brokers = {"Warren": stack.enter_context(BrokerProcess(folder)).url}
        if installed():
            brokers["RabbitMQ"] = stack.enter_context(rabbitmq_server()).url
        for run in range(options.runs):
            for name, method in METHODS.items():
                for broker, url in brokers.items():
                    sample = asyncio.run(_measured(url, method, options.seconds))
                    samples.setdefault((name, broker), []).append(sample)
            print(f"run {run + 1} of {options.runs} done", file=sys.stderr)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores; "
        f"medians of {options.runs} runs of {options.seconds:g} s; a durable classic queue, persistent messages of "
        f"{len(BODY)} bytes.",
        "",
        "| Method | "
        + " | ".join(f"{broker}, messages/s | client's µs per message" for broker in brokers)
        + " |",
        "|---" * (1 + 2 * len(brokers)) + "|",
    ]
    for name in METHODS:
        cells = []
        for broker in brokers:
            runs = samples[name, broker]
            cells.append(f"{statistics.median(rate for rate, _ in runs):,.0f}")
            cells.append(f"{statistics.median(spent for _, spent in runs):.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
