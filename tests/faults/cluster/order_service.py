"""The tutorial's services as programs of their own, under `warren run`; their effects are the lines that they print."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.faults.cluster.loads import Load
from tests.support.processes import Child
from warren.sdk import App, Event

TUTORIAL = Path(__file__).parents[3] / "examples/tutorial"
SERVICES = ("orders", "stock")
READY_SECONDS = 180.0
EFFECTS = {"billed": False, "confirmed to": False, "shipped": False, "goods reserved": True}
"""Texts of the lines, and whether an order must have the line once: only the stock service uses Once."""


class OrderPlaced(Event, exchange="orders", key="order.placed", audience=["billing", "mails", "stock"]):
    """The event of `examples/tutorial/orders.py`."""

    order_id: str
    email: str


class OrderServices:
    """The running programs, and the loads that their lines are effects of."""

    def __init__(self, programs: list[Child], publisher: App) -> None:
        self.loads = [
            Load(f"order service: {effect}", self._place, once=once) for effect, once in EFFECTS.items()
        ]
        self._programs = programs
        self._publisher = publisher
        self._read = [0 for _ in programs]

    async def _place(self, number: int) -> bool:
        await self._publisher.publish(OrderPlaced(order_id=str(number), email="ann@example.com"))
        return True

    async def step(self) -> None:
        """Place the next order."""
        first, *others = self.loads
        await first.step()
        for load in others:
            load.follow(first)
        self.read()

    def read(self) -> None:
        """Take the lines over that the programs have printed."""
        for index, program in enumerate(self._programs):
            lines = program.lines[self._read[index] :]
            self._read[index] += len(lines)
            for line in lines:
                found = re.match(r"order (\d+): (billed|confirmed to|shipped|goods reserved)", line)
                if found is not None:
                    self.loads[list(EFFECTS).index(found[2])].effect(int(found[1]))

    def faults(self) -> list[str]:
        """Return what is wrong with the programs themselves."""
        found = []
        for name, program in zip(SERVICES, self._programs, strict=True):
            if not program.running:
                found.append(f"warren run {name}:app has ended: {program.errors[-1000:]}")
            elif "Traceback" in program.errors:
                at = program.errors.index("Traceback")
                found.append(f"warren run {name}:app logged {program.errors[max(0, at - 500) : at + 1500]}")
        return found


@asynccontextmanager
async def order_services(url: str, folder: Path, publisher: App) -> AsyncIterator[OrderServices]:
    """Run the programs on the cluster."""
    home = folder / "tutorial"
    shutil.copytree(TUTORIAL, home)
    programs = [
        Child(
            [sys.executable, "-u", "-m", "warren.cli.dispatch", "run", f"{name}:app"],
            env={"AMQP_URL": url},
            cwd=home,
        )
        for name in SERVICES
    ]
    try:
        for program in programs:
            await asyncio.to_thread(program.wait_for_line, "warren run ready", READY_SECONDS)
        yield OrderServices(programs, publisher)
    finally:
        for program in programs:
            await asyncio.to_thread(program.stop)
