"""Fault scenarios that many patterns share, and the process of a pattern that takes part in them.

A pattern describes its process once, as a `Process`, and states the outcome of each scenario in its module:

    LOST_CONFIRM.of(MATRIX, Till, "the copy gets the stored result", recognised)

`test_scenarios.py` runs every scenario with every pattern that states an outcome; `pytest tests/patterns/faults -k once`
runs all that is tested of one pattern.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar

from tests.patterns.faults.matrix import Fault, Matrix
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Worker, Workers
from warren.sdk import App

P = TypeVar("P", bound="Process")
Result = TypeVar("Result")


class Process:
    """A process that publishes and handles numbered messages by the pattern under test.

    The constructor of a pattern takes the App, a prefix for names, the servers in `servers`, and `handles`: false for a
    process that only publishes.

    :ivar handled: the numbers of the messages whose handler had its effect, in order
    """

    servers: ClassVar[tuple[str, ...]] = ()
    """Fixtures whose values the constructor takes, as strings under the fixtures' names."""

    def __init__(self, app: App, name: str) -> None:
        self.app = app
        self.name = name
        self.handled: list[int] = []

    async def __aenter__(self) -> Self:
        await self.app.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.app.__aexit__(*error)

    async def publish(self, number: int) -> None:
        """Publish the message of that number and wait for its confirm.

        Patterns that take part in `DUPLICATE` give it a message id that depends on the number alone.
        """
        raise NotImplementedError

    @property
    def recognised(self) -> int:
        """Copies that were recognised, so that the handler did not run."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Publish what has to be there before the scenario; patterns override this."""

    async def stand_by(self) -> None:
        """Check what holds in this process while another one handles the message."""
        assert self.handled == []

    async def handle(self, number: int) -> None:
        """Record the effect of a handler."""
        await self.before(number)
        self.handled.append(number)
        await self.after(number)

    async def before(self, number: int) -> None:
        """Run before the effect; scenarios override this."""

    async def after(self, number: int) -> None:
        """Run after the effect; scenarios override this."""

    async def has_handled(self, *numbers: int) -> None:
        await eventually(lambda: self.handled == list(numbers), f"{numbers} are handled, not {self.handled}")


@dataclass(frozen=True)
class Case:
    """One pattern in one scenario."""

    matrix: Matrix
    process: Callable[..., Any]
    outcome: Callable[[Any], Awaitable[None]]
    """Waits for the outcome that the matrix states, and checks it."""
    messages: tuple[int, ...]
    """Numbers of the messages that are published."""
    strikes_at: int
    """The message whose handler runs when the fault strikes."""
    handled: Callable[[Any], bool]
    """Condition: the message is handled, and its result is recorded."""
    settings: dict[str, Any]
    """More arguments of the process."""

    @property
    def servers(self) -> tuple[str, ...]:
        return getattr(self.process, "servers", ())


class Scenario:
    """A fault, and the patterns that state its outcome."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.cases: list[Case] = []

    def of(
        self,
        matrix: Matrix,
        process: Callable[..., P],
        what_happens: str,
        outcome: Callable[[P], Awaitable[None]],
        *,
        messages: tuple[int, ...] = (1,),
        strikes_at: int = 1,
        handled: Callable[[P], bool] = lambda process: bool(process.handled),
        **settings: Any,
    ) -> None:
        """State what the pattern does in this scenario; `outcome` shows it."""
        matrix.state(self.fault, what_happens)
        self.cases.append(Case(matrix, process, outcome, messages, strikes_at, handled, settings))


CRASH_BEFORE_EFFECT: Final = Scenario(Fault.CRASH_BEFORE_EFFECT)
CRASH_AFTER_EFFECT: Final = Scenario(Fault.CRASH_AFTER_EFFECT)
"""A process is killed in its handler; the outcome is that of the process which takes over."""
LOST_ACKNOWLEDGEMENT: Final = Scenario(Fault.LOST_ACK)
"""The connection is lost after the handler, with the acknowledgement on its way. The outcome is that of another process,
which gets the message; the first one knows that it has handled it."""
LOST_CONFIRM: Final = Scenario(Fault.LOST_CONFIRM)
"""Message 1 is handled. The connection of the publisher is lost with the confirm of message 2 on its way."""
DUPLICATE: Final = Scenario(Fault.DUPLICATE)
"""Message 1 is published twice, with the same message id."""
BROKER_KILLED_WHILE_WAITING: Final = Scenario(Fault.BROKER_RESTART)
"""The broker is killed while messages wait for a consumer; the outcome is that of a process which starts then."""
BROKER_KILLED_WHILE_HANDLING: Final = Scenario(Fault.BROKER_RESTART)
"""The broker is killed while a handler runs, after its effect; the outcome is that of another process."""


async def handled_by_successor(process: Process) -> None:
    """Outcome of a crash: the process that takes over handles the message."""
    await process.has_handled(1)


async def handled_again(process: Process) -> None:
    """Outcome of a lost acknowledgement or a duplicate: the handler runs twice."""
    await process.has_handled(1, 1)


async def copy_handled(process: Process) -> None:
    """Outcome of a lost confirm: the handler runs for the copy of message 2."""
    await process.has_handled(1, 2, 2)


async def recognised(process: Process) -> None:
    """Outcome of a redelivery or a copy: it is recognised, and no handler runs twice."""
    await eventually(lambda: process.recognised >= 1, "the copy is recognised")
    await process.app.stop()
    assert len(process.handled) == len(set(process.handled)), f"{process.handled} are handled"


async def stopping_process(
    worker: WorkerChannel,
    url: str,
    module: str,
    process: str,
    arguments: dict[str, Any],
    stops: str,
    strikes_at: int,
) -> None:
    """Run a pattern's process in a worker that stops before or after the effect of a message."""
    its: Process = getattr(importlib.import_module(module), process)(App(url), **arguments)

    async def before(number: int) -> None:
        if (stops, number) == ("before", strikes_at):
            await worker.report_and_wait("stopped")

    async def after(number: int) -> None:
        worker.report(f"handled {number}")
        if (stops, number) == ("after", strikes_at):
            await worker.report_and_wait("stopped")

    its.before, its.after = before, after  # type: ignore[method-assign]
    async with its:
        await worker.report_and_wait("ready")


async def start_process(
    workers: Workers,
    process: Callable[..., Process],
    url: str,
    stops: str,
    *,
    strikes_at: int = 1,
    **arguments: Any,
) -> Worker:
    """Start a worker that runs a pattern's process until it stops before or after the effect of a message."""
    worker = await workers.start(
        stopping_process,
        url=url,
        module=process.__module__,
        process=process.__name__,
        arguments=arguments,
        stops=stops,
        strikes_at=strikes_at,
    )
    await workers.wait_for("ready")
    return worker


async def lose_confirm(
    proxy: Proxy, publish: Awaitable[Result], arrived: Callable[[], bool | Awaitable[bool]]
) -> Result:
    """Publish through the proxy, and lose the connection once the broker has the message but no confirm came back."""
    proxy.to_client.hold()
    publishing = asyncio.ensure_future(publish)
    await eventually(arrived, "the broker has the message")
    proxy.cut()
    proxy.to_client.release()
    return await publishing


def lose_connection(proxy: Proxy) -> None:
    """Lose the connection through the proxy with all that is held on its way to the broker."""
    proxy.cut()
    proxy.to_server.release()


async def restart(broker: BrokerProcess) -> None:
    """Kill the broker and start it again."""
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
