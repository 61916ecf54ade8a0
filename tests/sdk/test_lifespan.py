"""The lifespan of an App, and its functions at the start and at the stop: order, injection and failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, ConfigError, Depends, Queue, State, TransportUnavailable


class Pool:
    pass


class PostgresPool(Pool):
    pass


class Noting:
    """A component that notes its start and stop."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    def register(self, app: App) -> None: ...

    async def on_start(self) -> None:
        self._steps.append("component starts")

    async def on_stop(self) -> None:
        self._steps.append("component stops")


async def test_the_start_runs_from_the_lifespan_to_the_consumers_and_the_stop_back(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        text: str

    class Note(Command, queue=f"{name}.notes"):
        text: str

    steps: list[str] = []
    started, finish = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        await app.publish(Note(text="entered"))
        steps.append("lifespan entered")
        yield
        await app.publish(Note(text="left"))
        steps.append("lifespan left")

    app = make_app(lifespan=lifespan)
    app.include(Noting(steps))
    app.publishes(Note)

    @app.handle(Ping)
    async def ping(message: Ping) -> None:
        steps.append(f"handles {message.text}")
        started.set()
        await finish.wait()
        steps.append("handled")

    @app.on_start
    async def first() -> None:
        await app.publish(Ping(text="from the start"))
        assert "handles from the start" not in steps
        assert app.state is State.CONNECTING
        steps.append("first on_start")

    @app.on_start
    def second() -> None:
        steps.append("second on_start")

    @app.on_stop
    def last() -> None:
        steps.append("last on_stop")

    @app.on_stop
    async def but_one() -> None:
        await app.publish(Note(text="stopping"))
        steps.append("first on_stop")

    await app.start()
    await started.wait()
    stopping = asyncio.create_task(app.stop())
    await eventually(lambda: app.state is State.CLOSING, "it stops")
    finish.set()
    await stopping
    assert steps == [
        "lifespan entered",
        "component starts",
        "first on_start",
        "second on_start",
        "handles from the start",
        "handled",
        "first on_stop",
        "last on_stop",
        "component stops",
        "lifespan left",
    ]
    await amqp_client.holds(f"{name}.notes", 3)
    # The same order again, in a second run.
    steps.clear()
    async with app:
        pass
    assert steps[0] == "lifespan entered"
    assert steps[-1] == "lifespan left"


async def test_what_the_lifespan_yields_is_passed_to_parameters_of_its_type(
    make_app: MakeApp, name: str
) -> None:
    class Ping(Command, queue=name):
        pass

    pools: list[Pool] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[PostgresPool]:
        pools.append(pool := PostgresPool())
        yield pool

    async def connection(pool: PostgresPool) -> Pool:
        return pool

    app = make_app(lifespan=lifespan)
    seen: list[tuple[Pool, Pool]] = []

    @app.handle(Ping)
    async def ping(message: Ping, pool: Pool, same: Annotated[Pool, Depends(connection)]) -> None:
        seen.append((pool, same))

    for run in (1, 2):
        async with app:
            await app.publish(Ping())
            await eventually(lambda run=run: len(seen) == run, "the message was handled")  # type: ignore[misc]
    assert seen == [(pools[0], pools[0]), (pools[1], pools[1])]


async def test_a_parameter_that_the_lifespan_does_not_name_is_refused() -> None:
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Any]:
        yield Pool()

    app = App("amqp://localhost", lifespan=lifespan)
    with pytest.raises(ConfigError, match="has a parameter 'pool' that nothing fills"):

        @app.handle(int, queue="q")
        async def handle(message: int, pool: Pool) -> None: ...


@pytest.mark.parametrize("failing", ["lifespan", "on_start"])
async def test_an_exception_of_the_start_stops_the_app_cleanly(
    make_app: MakeApp, name: str, failing: str
) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        if failing == "lifespan":
            raise LookupError("no database")
        yield
        steps.append("left")

    app = make_app(lifespan=lifespan)

    @app.handle(int, queue=Queue(name))
    async def handle(message: int) -> None:
        steps.append("handled")

    @app.on_start
    async def check() -> None:
        if failing == "on_start":
            raise LookupError("no database")

    @app.on_start
    async def never() -> None:
        steps.append("never")

    @app.on_stop
    async def stop() -> None:
        await app.publish(1, key=name)
        steps.append("stopped")

    with pytest.raises(LookupError, match=r"(?m)^no database$"):
        await app.start()
    assert steps == ([] if failing == "lifespan" else ["stopped", "left"])
    assert app.state is State.CLOSED
    with pytest.raises(TransportUnavailable, match="does not run"):
        await app.publish(1, key=name)
    # Nothing is left of the failed run.
    failing = ""
    async with app:
        assert app.ready


async def test_an_exception_of_the_stop_is_logged_and_the_rest_still_runs(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        yield
        steps.append("left")
        raise LookupError("third")

    app = make_app(lifespan=lifespan)

    @app.on_stop
    def last() -> None:
        steps.append("last")
        raise LookupError("second")

    @app.on_stop
    async def one() -> None:
        steps.append("one")
        raise LookupError("first")

    async with app:
        pass
    assert steps == ["one", "last", "left"]
    assert app.state is State.CLOSED
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage().split(" ")[0] for record in errors] == [
        "event=on_stop.failed",
        "event=on_stop.failed",
        "event=lifespan.failed",
    ]
    assert [str(record.exc_info[1]) for record in errors if record.exc_info] == ["first", "second", "third"]


async def test_a_start_that_is_cancelled_in_the_lifespan_ends_it(make_app: MakeApp) -> None:
    entered = asyncio.Event()
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("ended")
        yield

    app = make_app(lifespan=lifespan)
    starting = asyncio.create_task(app.start())
    await entered.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert steps == ["ended"]
    assert app.state is State.CLOSED


async def test_a_task_group_of_the_lifespan_is_left_in_the_task_that_entered_it(make_app: MakeApp) -> None:
    released = asyncio.Event()
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(released.wait())
            yield
            released.set()
        steps.append("left")

    app = make_app(lifespan=lifespan)
    await asyncio.create_task(app.start())
    await app.stop()
    assert steps == ["left"]


async def with_parameter(message: int) -> None: ...


async def generator(app: App) -> AsyncIterator[None]:
    yield


async def test_mistakes_are_refused(make_app: MakeApp) -> None:
    with pytest.raises(
        ConfigError, match=r"(?m)^app.on_start takes a function without parameters, not with_parameter$"
    ):
        App("amqp://localhost").on_start(with_parameter)  # type: ignore[type-var]
    with pytest.raises(ConfigError, match=r"(?m)write @asynccontextmanager above generator$"):
        App("amqp://localhost", lifespan=generator)  # type: ignore[arg-type]
    async with make_app() as app:
        with pytest.raises(
            ConfigError, match=r"(?m)^the App runs already: add an on_stop function before it starts$"
        ):
            app.on_stop(lambda: None)
