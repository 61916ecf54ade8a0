"""Benchmark of dead-lettering: the broker's processor time for each copy, in alternating runs of two or more builds.

    python -m benchmarks.dead_letters --sites before=FOLDER after=FOLDER --runs 7 --out FILE

A FOLDER contains an installed build (`pip install --target`), plain or compiled. Without `--sites` this checkout is
measured. Each run is a process of its own with a broker inside. Messages are put into a queue over the wire and taken
from it; then `DeadLettering.dead_letter` is called with batches of 100, as its callers do. The time is that of all
threads of the process, from the first call until the log has written everything to disk, divided by the copies. Of the
runs the lowest counts: other work on the machine makes a run longer, never shorter.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pamqp.commands import Queue

from benchmarks.backlog import commit
from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker import BrokerConfig

COUNT = 10_000
BATCH = 100
EXCHANGE = "letters"


@dataclass(frozen=True)
class Row:
    """One kind of dead letter."""

    name: str
    reason: str = "rejected"
    persistent: bool = False
    targets: int = 1
    earlier: int = 0
    """Entries in x-death when the message dies the time that is measured."""
    again: bool = False
    """True if one of these entries is of the same queue and reason, so that its count is raised."""
    headers: bool = False
    """True if each message has five headers, two of which differ in each message."""
    copies: bool = False
    """True if the messages have CC and BCC."""
    key: bool = False
    """True if the queue has x-dead-letter-routing-key."""


ROWS = (
    Row("rejected, transient"),
    Row("rejected, persistent", persistent=True),
    Row("rejected, persistent, 5 headers", persistent=True, headers=True),
    Row("rejected, persistent, dead letter routing key", persistent=True, key=True),
    Row("rejected, persistent, CC and BCC", persistent=True, copies=True),
    Row("rejected again, persistent, 1 entry", persistent=True, earlier=1, again=True),
    Row("rejected, persistent, 2 earlier entries", persistent=True, earlier=2),
    Row("rejected again, persistent, 5 entries", persistent=True, earlier=5, again=True),
    Row("expired, persistent", reason="expired", persistent=True),
    Row("expired, persistent, to ten queues", reason="expired", persistent=True, targets=10),
    Row("expired again, 2 entries (a cycle by way of a rejection)", reason="expired", earlier=2, again=True),
    Row("over the length limit, transient", reason="maxlen"),
    Row("over the length limit, persistent", reason="maxlen", persistent=True),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dead_letters", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--sites", nargs="*", default=[], metavar="NAME=FOLDER", help="builds that are compared"
    )
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        row = next(row for row in ROWS if row.name == options.measure)
        print(measure(row))
        return 0
    builds: dict[str, Mapping[str, str]] = {"this checkout": {}}
    if options.sites:
        builds = {}
        for site in options.sites:
            name, _, folder = site.partition("=")
            builds[name] = {"PYTHONPATH": str(Path(folder).resolve())}
    rows = [line(row, builds, options.runs) for row in ROWS if options.rows in row.name]
    text = report(rows, list(builds), options.runs)
    print(text)
    if options.out is not None:
        options.out.write_text(text)
    return 0


def line(row: Row, builds: Mapping[str, Mapping[str, str]], runs: int) -> list[str]:
    """Measure a row with all builds, in alternating runs; return its line of the table."""
    lowest = dict.fromkeys(builds, float("inf"))
    for _ in range(runs):
        for name, env in builds.items():
            words = [sys.executable, "-m", "benchmarks.dead_letters", "--measure", row.name]
            done = subprocess.run(
                words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
            )
            lowest[name] = min(lowest[name], float(done.stdout))
    cells = [row.name, *(f"{value:.1f}" for value in lowest.values())]
    print(" | ".join(cells), file=sys.stderr, flush=True)
    return cells


def measure(row: Row) -> float:
    """Return microseconds of processor time for each copy of a dead letter."""
    others = [f"earlier-{number}" for number in range(row.earlier - row.again)]
    chain = ["source", *others] if row.again else others
    targets = [f"target-{number}" for number in range(row.targets)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="warren-letters-"))
        broker = stack.enter_context(InProcessBroker(Path(folder) / "data", config=BrokerConfig()))
        channel = stack.enter_context(Connection(broker.url)).channel()
        channel.declare_exchange(EXCHANGE, durable=True)
        key: dict[str, Any] = {"x_dead_letter_routing_key": "dead"} if row.key else {}
        for queue in ("source", *others):
            channel.declare(queue, durable=True, x_dead_letter_exchange=EXCHANGE, **key)
        for queue in targets:
            channel.declare(queue, durable=True)
        # As `warren broker` does.
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        publish(channel, [*chain, "source"][0], row)
        for queue, following in zip(chain, [*chain, "source"][1:], strict=True):
            channel.bind(following, EXCHANGE)
            dead_letter(broker, queue, row.reason if queue == "source" else "rejected", [following])
            channel.call(Queue.Unbind(queue=following, exchange=EXCHANGE, routing_key=""), Queue.UnbindOk)
        for queue in targets:
            channel.bind(queue, EXCHANGE)
        return dead_letter(broker, "source", row.reason, targets) / (COUNT * row.targets) * 1e6


def publish(channel: Channel, queue: str, row: Row) -> None:
    """Put the messages into a queue, in one write."""
    properties: dict[str, Any] = {"delivery_mode": 2 if row.persistent else 1}
    frames = []
    for number in range(COUNT):
        headers: dict[str, Any] = {}
        if row.headers:
            headers = {
                "tenant": "shop",
                "version": 3,
                "retries": 0,
                "trace": f"{number:032x}",
                "time": number,
            }
        if row.copies:
            headers |= {"CC": ["copy"], "BCC": ["blind"]}
        if headers:
            properties["headers"] = headers
        frames.append(channel.encoded(queue, b"%016d" % number, **properties))
    channel.confirm()
    channel.connection.raw.send_bytes(b"".join(frames))
    channel.settled_until(COUNT)


def dead_letter(broker: InProcessBroker, name: str, reason: str, targets: list[str]) -> float:
    """Dead-letter all messages of a queue; return the seconds of processor time until that is on disk.

    :param targets: the queues that they enter
    """
    vhost = broker.virtual_host()
    queue = vhost.queues[name.encode()]
    log = vhost.log
    assert log is not None
    taken = broker.call(
        lambda: [message for message in (queue.ready.take() for _ in range(COUNT)) if message]
    )
    assert len(taken) == COUNT, f"{len(taken)} messages are in {name}"

    def run() -> None:
        for first in range(0, COUNT, BATCH):
            vhost.dead_lettering.dead_letter(queue, taken[first : first + BATCH], reason)

    entered = [vhost.queues[target.encode()] for target in targets]

    def done() -> bool:
        return log.is_synced and all(target.ready.count == COUNT for target in entered)

    begun = time.process_time()
    broker.call(run)
    wait_until(lambda: broker.call(done), "the dead letters are on disk")
    return time.process_time() - begun


def report(rows: list[list[str]], builds: list[str], runs: int) -> str:
    head = ["", *builds]
    table = [head, ["---"] * len(head), *rows]
    intro = (
        f"`python -m benchmarks.dead_letters --runs {runs}`, {date.today()}, commit {commit()}, "
        f"Python {platform.python_version()}: microseconds of processor time for each copy, the lowest of {runs} runs; "
        f"{COUNT:,} messages of 16 B."
    )
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    return "\n".join([intro, "", *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
