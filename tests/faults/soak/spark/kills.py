"""Repeated SIGKILL of a streaming query's driver or executors, each time after it made progress.

A killed driver is started again on the same checkpoint, as an operator would do. Nothing else is repaired.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random

from tests.faults.soak.spark.arrivals import Arrivals, wait_for
from tests.faults.soak.spark.committed import batches
from tests.support.polling import wait_until
from tests.support.processes import Child
from tests.support.spark_cluster import SparkCluster, children, command_line, kill

MESSAGES = 500_000
KILLS = 20
"""Kills of the driver, and as many of executors."""
FEWEST = 3
ROOT = Path(__file__).parents[4]
PATIENCE = 180.0
"""Seconds that a query may take until its next micro-batch, including a start of Java on a busy machine."""
SOON = 1.5
"""Seconds after a micro-batch within which some kills happen, in any state of the query."""
AMID = 0.5
"""Seconds after the start of a micro-batch within which the other kills happen."""
BEGINS = 3.0
"""Seconds to wait for the start of a micro-batch: all messages may already have been read."""


def amounts(share: float) -> tuple[int, int]:
    """Return the number of messages, and of kills of each kind."""
    return round(MESSAGES * share), max(FEWEST, round(KILLS * share))


class Query:
    """Streaming query in a separate driver on a cluster, which can be killed and started again."""

    def __init__(
        self, cluster: SparkCluster, folder: Path, source: Mapping[str, str], sink: Mapping[str, str]
    ) -> None:
        """:param source: options of the format `amqp`. :param sink: such options, or the `path` of a Parquet folder"""
        folder.mkdir()
        self.folder = folder
        self._cluster = cluster
        words = [cluster.master, str(folder), json.dumps(dict(source)), json.dumps(dict(sink))]
        self._command = [sys.executable, "-W", "ignore", "-m", "tests.faults.soak.spark.driver", *words]
        self._child: Child | None = None

    def start(self) -> None:
        self._child = Child(self._command, env=self._cluster.env, cwd=ROOT)

    def check(self) -> None:
        """Check that the driver is running.

        :raises AssertionError: with its output, if it has ended
        """
        assert self._child is not None
        if not self._child.running:
            log = (self.folder / "spark.log").read_text(errors="replace")
            raise AssertionError(f"the driver ended:\n{self._child.errors[-3000:]}\n{log[-3000:]}")

    def committed(self) -> int:
        """Return the number of the last committed micro-batch; -1 before the first."""
        done = batches(self.folder / "checkpoint" / "commits")
        return int(done[-1].stem) if done else -1

    def under_way(self) -> bool:
        """Return whether a micro-batch has begun and is not committed."""
        self.check()
        planned = batches(self.folder / "checkpoint" / "offsets")
        return bool(planned) and int(planned[-1].stem) > self.committed()

    def gets_on(self, after: int) -> None:
        """Wait until a later micro-batch is committed.

        :raises AssertionError: if the driver has ended, or after `PATIENCE` seconds
        """

        def later() -> bool:
            self.check()
            return self.committed() > after

        wait_until(later, f"a batch after {after} is done", PATIENCE)

    def kill_driver(self, *, python_only: bool) -> None:
        """Send SIGKILL to all processes of the driver, or only to Python; then Java must end by itself."""
        assert self._child is not None
        if not python_only:
            self._child.kill()
            return
        java = [pid for pid in children(self._child.pid) if b"SparkSubmit" in command_line(pid)]
        assert java, "the driver has no Java process"
        kill(self._child.pid)
        try:
            wait_until(lambda: not any(map(command_line, java)), "the Java of a killed driver ends", 60)
        finally:
            for pid in filter(command_line, java):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        if self._child is not None and self._child.running:
            self._child.kill()


def survive(
    query: Query, cluster: SparkCluster, arrivals: Arrivals, kills: int, random: Random
) -> tuple[float, float]:
    """Run the query through as many kills of the driver as of executors while messages arrive.

    It returns when all messages are published and the query was killed for the last time and started again.

    :return: elapsed seconds, and the longest time from a kill to the next micro-batch
    """
    began = time.monotonic()
    longest = 0.0
    victims = ["driver", "executor"] * kills
    random.shuffle(victims)
    query.start()
    arrivals.start()
    before = -1
    since = began
    for number, victim in enumerate(victims, 1):
        query.gets_on(before)
        longest = max(longest, time.monotonic() - since) if number > 1 else longest
        wait_for(arrivals, arrivals.count * number // (len(victims) + 1), PATIENCE)
        moment(query, random)
        query.check()
        before = query.committed()
        if victim == "driver":
            query.kill_driver(python_only=random.random() < 0.5)
            query.start()
        else:
            wait_until(lambda: bool(cluster.executors()), "there is an executor", PATIENCE)
            kill(random.choice(cluster.executors()))
        since = time.monotonic()
        arrivals.go_on()
    wait_for(arrivals, arrivals.count, PATIENCE)
    query.gets_on(before)
    longest = max(longest, time.monotonic() - since)
    return time.monotonic() - began, longest


def moment(query: Query, random: Random) -> None:
    """Wait for the moment of the kill: usually in the middle of a micro-batch, if one begins soon."""
    if random.random() < 0.25:
        time.sleep(random.uniform(0, SOON))
        return
    deadline = time.monotonic() + BEGINS
    while not query.under_way() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(random.uniform(0, AMID))
