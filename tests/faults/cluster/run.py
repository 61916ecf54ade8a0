"""Run of loads on a cluster: fault after fault, each followed by a judgement when all work is done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.cluster.figures import Durations
from tests.faults.cluster.loads import Load
from tests.faults.cluster.node_faults import NodeFault, strike
from tests.faults.cluster.order_service import OrderServices, order_services
from tests.faults.cluster.pattern_loads import pattern_loads
from tests.faults.cluster.plain_load import PUBLISHERS, PlainLoad, plain_load
from tests.support.rabbitmq_cluster import RabbitMQCluster
from warren.sdk import App

Step = Callable[[], Coroutine[Any, Any, None]]
"""A function that does one piece of work."""
CALM_SECONDS = 2.0
"""Load before each fault."""
PAUSE = 0.25
"""Greatest pause between two pieces of work of one load, in seconds."""
LONGEST_STEP = 120.0
"""Seconds that a publish or a call may take in all, before the run counts it as hanging."""
STALL_SECONDS = 240.0
"""Seconds after a fault in which no work is done although some is due: they end a run that has failed."""


class ClusterRunFailed(Exception):
    """A guarantee is broken; the text says which."""


class TracebackRecorder(logging.Handler):
    """Collects log records that contain a traceback or are errors; not those of handlers that fail on purpose."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.events: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count the record; keep it if it reports an unexpected error."""
        text = record.getMessage()
        self.events[text.split(" ", 1)[0]] += 1
        expected = "LookupError" in text or "it always fails" in str(record.exc_info)
        if (record.exc_info or record.levelno >= logging.ERROR) and not expected:
            self.found.append(logging.Formatter().format(record)[:3000])


class ClusterRun:
    """The loads of a run and what they showed.

    :ivar fault_waits: for each kind of fault, the waits of publishes that a fault of this kind met.
    """

    def __init__(
        self,
        cluster: RabbitMQCluster,
        random: Random,
        plain: PlainLoad,
        services: OrderServices,
        loads: list[Load],
        apps: list[App],
    ) -> None:
        self.cluster = cluster
        self.random = random
        self.plain = plain
        self.services = services
        self.loads = loads
        self.apps = apps
        self.fault_waits = {fault: Durations() for fault in NodeFault}
        self.recoveries = {fault: Durations() for fault in NodeFault}
        """Time from the healing of a fault until all work was done."""
        self.faults: list[str] = []
        self.logs = TracebackRecorder()
        self._publishing = asyncio.Event()
        self._busy: set[asyncio.Task[None]] = set()

    @property
    def all_loads(self) -> list[Load]:
        return [*self.services.loads, *self.loads]

    async def execute(self, faults: Sequence[NodeFault], report: Callable[[str], None]) -> None:
        """Inject faults, one after the other, and judge after each."""
        logging.getLogger().addHandler(self.logs)
        workers = [asyncio.create_task(worker) for worker in self._workers()]
        try:
            await self._round(None)
            report("healthy: no fault" if not self.faults else "healthy")
            for number, fault in enumerate(faults, 1):
                node = self.random.choice(self.cluster.nodes)
                began = time.monotonic()
                await self._round((fault, node.number - 1))
                report(
                    f"{number} of {len(faults)}: {fault.value} of node {node.number}, {time.monotonic() - began:.0f} s: "
                    + ("; ".join(self.faults) or "all is as promised")
                )
                if self.faults:
                    return
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            logging.getLogger().removeHandler(self.logs)

    async def _round(self, fault: tuple[NodeFault, int] | None) -> None:
        confirms = len(self.plain.confirms.values)
        self._publishing.set()
        await asyncio.sleep(CALM_SECONDS)
        if fault is not None:
            kind, node = fault
            self.plain.disturbed = True
            await strike(self.cluster, kind, self.cluster.nodes[node], self.random)
        healed = time.monotonic()
        await asyncio.sleep(CALM_SECONDS)
        self._publishing.clear()
        late = await self._settle()
        if fault is not None:
            for seconds in self.plain.confirms.values[confirms:]:
                self.fault_waits[kind].add(seconds)
            self.recoveries[kind].add(time.monotonic() - healed)
        self.plain.disturbed = False
        judged = await asyncio.to_thread(self.plain.judge)
        self.faults += late + judged + self.services.faults() + self.logs.found
        for load in self.all_loads:
            self.faults += load.faults()

    async def _settle(self) -> list[str]:
        """Wait until all that was started is done; return what is not."""
        done, end = -1, 0.0
        while True:
            self.services.read()
            # A slow machine takes longer for what waits; only work that does not go on is a fault.
            if self._done() != done:
                done, end = self._done(), time.monotonic() + STALL_SECONDS
            elif time.monotonic() > end:
                break
            if not (self._busy or self.plain.missing or any(load.missing() for load in self.all_loads)):
                return []
            await asyncio.sleep(0.5)
        hanging = [f"hangs: {task.get_name()}" for task in self._busy]
        health = [app.health() for app in [*self.plain.apps, *self.apps]]
        states = [f"an App is {found.state}: {found.waiting}, {found.reason}" for found in health]
        errors = [f"{load.name}: {dict(load.errors)}" for load in self.all_loads if load.errors]
        return [f"nothing was done for {STALL_SECONDS:.0f} s after the fault", *hanging, *states, *errors]

    def _done(self) -> int:
        """Return how many handlers and effects have run in all."""
        return len(self.plain.deliveries.values) + sum(len(load.effects) for load in self.all_loads)

    def _workers(self) -> list[Coroutine[Any, Any, None]]:
        steps: list[tuple[str, Step]] = [
            (f"plain publisher {number}", partial(self.plain.publish, number)) for number in range(PUBLISHERS)
        ]
        steps += [("order service", self.services.step)]
        steps += [(load.name, load.step) for load in self.loads]
        return [self._work(name, step) for name, step in steps]

    async def _work(self, name: str, step: Step) -> None:
        while True:
            await self._publishing.wait()
            task = asyncio.create_task(step(), name=name)
            self._busy.add(task)
            try:
                done, _ = await asyncio.wait([task], timeout=LONGEST_STEP)
                if not done:
                    self.faults.append(f"{name}: a step took more than {LONGEST_STEP:.0f} s")
                await task
            except Exception as error:
                self.faults.append(f"{name}: {type(error).__name__}: {error}")
            finally:
                self._busy.discard(task)
            await asyncio.sleep(self.random.uniform(0, PAUSE))


async def run_on_cluster(
    cluster: RabbitMQCluster,
    random: Random,
    faults: Sequence[NodeFault],
    folder: Path,
    report: Callable[[str], None],
) -> ClusterRun:
    """Run all loads on a cluster while faults strike its nodes.

    :raises ClusterRunFailed: a guarantee is broken.
    """
    url = cluster.url
    async with (
        plain_load(url, random) as plain,
        pattern_loads(url, folder) as (loads, apps),
        order_services(url, folder, apps[0]) as services,
    ):
        run = ClusterRun(cluster, random, plain, services, loads, apps)
        await run.execute(faults, report)
    if run.faults:
        raise ClusterRunFailed("\n".join([*run.faults, f"log events: {dict(run.logs.events)}"]))
    return run
