"""The scenarios of `scenarios.py`, each with every pattern that states its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults import scenarios
from tests.patterns.faults.matrix import matrices
from tests.patterns.faults.scenarios import Case, Process, Scenario
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_processes import Workers
from warren.sdk import App

matrices()  # The modules of the patterns state the outcomes.

NewProcess = Callable[..., Any]
TakeOver = Callable[[str], Awaitable[list[str]]]
"""Kills a worker that stopped `before` or `after` its effect; another process takes over. Returns the workers' reports."""


def each_pattern(scenario: Scenario) -> pytest.MarkDecorator:
    def parameter(case: Case) -> Any:
        # The tiers do not see fixtures that a case alone requests.
        marks = [pytest.mark.slow] if "database" in case.servers else []
        return pytest.param(case, id="-".join([case.matrix.name, *case.settings]), marks=marks)

    return pytest.mark.parametrize("case", [parameter(case) for case in scenario.cases])


@pytest.fixture
def arguments(case: Case, name: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the pattern's process: JSON carries them to a worker."""
    servers = {server: str(request.getfixturevalue(server)) for server in case.servers}
    return {"name": name, **servers, **case.settings}


@pytest.fixture
def new_process(case: Case, arguments: dict[str, Any]) -> NewProcess:
    def new(app: App, *, handles: bool = True) -> Any:
        return case.process(app, **arguments, handles=handles)

    return new


async def publish(publisher: Process, case: Case) -> None:
    await publisher.prepare()
    for number in case.messages:
        await publisher.publish(number)


@pytest.fixture
def take_over(
    case: Case,
    amqp_url: str,
    workers: Workers,
    new_app: NewApp,
    new_process: NewProcess,
    arguments: dict[str, Any],
) -> TakeOver:
    async def kill_and_take_over(stops: str) -> list[str]:
        doomed = await scenarios.start_process(
            workers, case.process, amqp_url, stops, strikes_at=case.strikes_at, **arguments
        )
        publisher = new_process(new_app(), handles=False)
        async with publisher:
            await publish(publisher, case)
            await workers.wait_for("stopped")
        successor = new_process(new_app())
        async with successor:
            await successor.stand_by()
            doomed.kill()
            await case.outcome(successor)
        return workers.reports

    return kill_and_take_over


@each_pattern(scenarios.CRASH_BEFORE_EFFECT)
async def test_a_process_dies_before_its_effect(case: Case, take_over: TakeOver) -> None:
    assert f"handled {case.strikes_at}" not in await take_over("before")


@each_pattern(scenarios.CRASH_AFTER_EFFECT)
async def test_a_process_dies_after_its_effect(case: Case, take_over: TakeOver) -> None:
    assert (await take_over("after")).count(f"handled {case.strikes_at}") == 1


@each_pattern(scenarios.LOST_ACKNOWLEDGEMENT)
async def test_the_acknowledgement_is_lost(
    case: Case, amqp_url: str, new_app: NewApp, new_process: NewProcess
) -> None:
    async with Proxy(amqp_url) as proxy:
        process, successor = new_process(new_app(proxy.url)), new_process(new_app())
        publisher = new_process(new_app(), handles=False)
        successor.handled = process.handled
        lost = asyncio.Event()

        async def hold(number: int) -> None:
            if number == case.strikes_at and not lost.is_set():
                proxy.to_server.hold()

        process.after = hold
        async with process, publisher:
            await publish(publisher, case)
            await eventually(lambda: proxy.to_server.held and case.handled(process), "it is handled")
            lost.set()
            proxy.refuse()
            scenarios.lose_connection(proxy)
            async with successor:
                await case.outcome(successor)


@each_pattern(scenarios.LOST_CONFIRM)
async def test_the_confirm_is_lost(
    case: Case, amqp_url: str, new_app: NewApp, new_process: NewProcess
) -> None:
    process = new_process(new_app())
    async with process, Proxy(amqp_url) as proxy:
        publisher = new_process(new_app(proxy.url), handles=False)
        async with publisher:
            await publisher.publish(1)
            await process.has_handled(1)
            await scenarios.lose_confirm(proxy, publisher.publish(2), lambda: 2 in process.handled)
            await case.outcome(process)


@each_pattern(scenarios.DUPLICATE)
async def test_a_message_comes_twice(case: Case, new_app: NewApp, new_process: NewProcess) -> None:
    process = new_process(new_app())
    async with process:
        await process.publish(1)
        await process.publish(1)
        await case.outcome(process)


@each_pattern(scenarios.BROKER_KILLED_WHILE_WAITING)
async def test_the_broker_is_killed_while_messages_wait(
    case: Case, mortal_broker: BrokerProcess, new_process: NewProcess
) -> None:
    publisher = new_process(App(mortal_broker.url), handles=False)
    async with publisher:
        await publish(publisher, case)
    await scenarios.restart(mortal_broker)
    process = new_process(App(mortal_broker.url))
    async with process:
        await case.outcome(process)


@each_pattern(scenarios.BROKER_KILLED_WHILE_HANDLING)
async def test_the_broker_is_killed_while_a_handler_runs(
    case: Case, mortal_broker: BrokerProcess, new_process: NewProcess
) -> None:
    published = asyncio.Event()
    restarts = 0

    async def restart(number: int) -> None:
        nonlocal restarts
        if number == case.strikes_at and not restarts:
            restarts += 1
            await published.wait()  # A publish that is not confirmed would come twice.
            proxy.refuse()
            await scenarios.restart(mortal_broker)

    async with Proxy(mortal_broker.url) as proxy:
        process, successor = new_process(App(proxy.url)), new_process(App(mortal_broker.url))
        publisher = new_process(App(mortal_broker.url), handles=False)
        successor.handled = process.handled
        process.after = restart
        async with process, publisher:
            await publish(publisher, case)
            published.set()
            await eventually(lambda: bool(restarts) and publisher.app.ready, "the broker is back")
            async with successor:
                await case.outcome(successor)
    assert restarts == 1
