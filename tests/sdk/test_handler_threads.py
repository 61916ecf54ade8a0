"""Handlers that are plain functions (`def`): they run in threads, and the event loop goes on."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    App,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Depends,
    Header,
    RemoteError,
    Request,
    Retry,
    current_delivery,
)
from warren.testing import Warren

SECONDS = 60.0
"""Longest wait of a thread in these tests, in which a machine may stand still."""


async def test_the_event_loop_goes_on_while_a_handler_blocks(make_app: MakeApp, name: str) -> None:
    class Work(Command, queue=name):
        pass

    app, go_on, ended = make_app(), threading.Event(), threading.Event()
    before = set(threading.enumerate())

    @app.handle(Work)
    def work(message: Work) -> None:
        assert go_on.wait(SECONDS)
        ended.set()

    async with app:
        await app.publish(Work())
        await eventually(lambda: app.statistics().subscriptions[name].running == 1, "the handler runs")
        # The loop publishes, confirms and handles while the handler stands still.
        await app.publish(Work())
        await eventually(lambda: app.statistics().subscriptions[name].running == 2, "another one runs")
        assert not ended.is_set()
        assert app.statistics().subscriptions[name].acknowledged == 0
        go_on.set()
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 2, "both are done")
    await eventually(
        lambda: not any(one.name.startswith("warren handler") for one in set(threading.enumerate()) - before),
        "the threads end with the App",
    )


async def test_a_request_is_answered_from_a_thread(make_app: MakeApp, name: str) -> None:
    class Double(Request[int], queue=name):
        number: int

    app = make_app()

    @app.handle(Double)
    def double(request: Double) -> int:
        if request.number < 0:
            raise RemoteError("negative", "it is negative")
        return 2 * request.number

    async with app:
        assert await app.call(Double(number=4)) == 8
        with pytest.raises(RemoteError, match="negative: it is negative"):
            await app.call(Double(number=-1))
    assert double(Double(number=1)) == 2


async def test_errors_are_retried_and_outcomes_are_obeyed(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Work(Command, queue=name):
        what: str

    app, tried = make_app(), []

    @app.handle(Work, retry=Retry(3, first_wait="1ms"))
    def work(message: Work) -> DeadLetter | None:
        tried.append(message.what)
        match message.what:
            case "fail":
                raise RuntimeError("it fails")
            case "stop":
                raise StopIteration
            case "cancel":
                raise asyncio.CancelledError
        return DeadLetter("refused")

    async with app:
        reasons = []
        for what in ("fail", "stop", "cancel", "refuse"):
            await app.publish(Work(what=what))
            dead = await amqp_client.take(f"{name}.dead")
            reasons.append(str(dead.headers["warren-dead-error"]))
    assert reasons[0] == "RuntimeError: it fails"
    assert reasons[1].startswith("RuntimeError: ")
    assert reasons[2].startswith("CancelledError")
    assert reasons[3] == "DeadLetter: refused"
    assert tried.count("fail") == 3


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_the_context_reaches_the_thread(make_app: MakeApp, name: str) -> None:
    class Work(Command, queue=name):
        pass

    app = make_app()
    seen: list[tuple[object, str]] = []

    async def set_tenant(delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        tenant.set("acme")
        await call_next(delivery)

    app.middleware(handle=set_tenant)

    @app.handle(Work)
    def work(message: Work, delivery: Delivery) -> None:
        current = current_delivery()
        assert current is not None
        seen.append((current.message_id == delivery.message_id, tenant.get()))

    async with app:
        await app.publish(Work())
        await eventually(lambda: bool(seen), "it is handled")
    assert seen == [(True, "acme")]


async def test_plain_dependencies_run_in_the_thread_of_their_handler_and_async_ones_on_the_loop(
    make_app: MakeApp, name: str
) -> None:
    class Work(Command, queue=name):
        fails: bool = False

    app = make_app()
    steps: list[str] = []
    threads: dict[str, int] = {}

    def note(step: str) -> None:
        steps.append(step)
        threads[step] = threading.get_ident()

    async def settings() -> str:
        note("settings")
        return "settings"

    def session(using: Annotated[str, Depends(settings)]) -> Iterator[str]:
        note("open session")
        tenant.set("of the session")
        try:
            yield f"session with {using}"
        except RuntimeError:
            note("roll back")
            raise
        else:
            note("commit")

    async def client() -> AsyncIterator[str]:
        note("open client")
        yield "client"
        note("close client")

    @app.handle(Work, retry=Retry(1))
    def work(
        message: Work,
        opened: Annotated[str, Depends(session)],
        connected: Annotated[str, Depends(client)],
        agent: Annotated[str, Header()] = "nobody",
    ) -> None:
        assert (opened, connected, agent) == ("session with settings", "client", "nobody")
        assert tenant.get() == "of the session"
        note("work")
        if message.fails:
            raise RuntimeError("it fails")

    async with app:
        await app.publish(Work())
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "it is handled")
        first = list(steps)
        in_loop = {threads[step] for step in ("settings", "open client", "close client")}
        in_thread = {threads[step] for step in ("open session", "work", "commit")}
        steps.clear()
        await app.publish(Work(fails=True))
        await eventually(lambda: app.statistics().handlers[name].dead_lettered == 1, "it failed")
    assert first == ["settings", "open session", "open client", "work", "close client", "commit"]
    assert in_loop == {threading.get_ident()}
    assert len(in_thread) == 1
    assert in_thread != in_loop
    assert "roll back" in steps
    assert "commit" not in steps


async def test_no_more_threads_run_than_the_app_allows(make_app: MakeApp, name: str) -> None:
    class Work(Command, queue=name):
        pass

    app, go_on = make_app(threads=2), threading.Event()
    used: set[int] = set()
    running: list[int] = []

    @app.handle(Work, concurrency=8)
    def work(message: Work) -> None:
        used.add(threading.get_ident())
        running.append(1)
        assert go_on.wait(SECONDS)

    async with app:
        await app.publish_many([Work() for _ in range(8)])
        await eventually(lambda: app.statistics().subscriptions[name].running == 8, "all have a worker")
        await eventually(lambda: len(running) == 2, "two of them have a thread")
        go_on.set()
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 8, "all are done")
    assert len(used) == 2


def test_a_pool_needs_a_thread() -> None:
    with pytest.raises(ConfigError, match="threads must be at least 1, not 0"):
        App("amqp://localhost", threads=0)


async def test_a_handler_that_outlives_the_grace_period_is_abandoned(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The message returns to its queue and the App stops; the function ends later, and is cleaned up then."""

    class Work(Command, queue=name):
        pass

    app, started, go_on, ended = make_app(grace=0.0), threading.Event(), threading.Event(), threading.Event()
    steps: list[str] = []

    def session() -> Iterator[None]:
        try:
            yield
        finally:
            steps.append("cleaned up")
            ended.set()

    @app.handle(Work)
    def work(message: Work, opened: Annotated[None, Depends(session)]) -> None:
        started.set()
        assert go_on.wait(SECONDS)
        steps.append("worked")

    async with app:
        await app.publish(Work())
        await eventually(started.is_set, "it runs")
    await amqp_client.holds(name, 1)
    go_on.set()
    assert await asyncio.to_thread(ended.wait, SECONDS)
    assert steps == ["worked", "cleaned up"]
    assert "event=handler.abandoned handler=" in caplog.text


async def test_a_call_that_was_abandoned_holds_up_no_other(make_app: MakeApp, name: str) -> None:
    app = make_app(threads=2, retry=Retry(1))
    release, handled = threading.Event(), threading.Event()

    @app.handle(bytes, queue=name, concurrency=1)
    def take(body: bytes) -> None:
        if body == b"1":
            release.wait()
        else:
            handled.set()

    async def give_up(delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        async with asyncio.timeout(0.01 if delivery.body == b"1" else None):
            await call_next(delivery)

    app.middleware(handle=give_up)
    try:
        async with app:
            await app.publish_many([b"1", b"2"], key=name)
            await eventually(handled.is_set, "the next message has a thread")
    finally:
        release.set()


async def test_a_plain_handler_publishes_through_app_sync(make_app: MakeApp, name: str) -> None:
    class First(Command, queue=f"{name}.1"):
        pass

    class Second(Command, queue=f"{name}.2"):
        pass

    app = make_app()

    @app.handle(First)
    def first(message: First) -> None:
        app.sync.publish(Second())

    @app.handle(Second)
    def second(message: Second) -> None: ...

    async with app:
        await app.publish(First())
        await eventually(lambda: app.statistics().handlers[f"{name}.2"].handled == 1, "it is passed on")


async def test_a_batch_is_handled_in_a_thread(make_app: MakeApp, name: str) -> None:
    class Row(Command, queue=name):
        number: int

    app = make_app()
    seen: list[tuple[int, bool]] = []

    @app.handle.batch(Row, size=3, within="60s")
    def store(rows: list[Row], deliveries: list[Delivery]) -> None:
        assert len(rows) == len(deliveries)
        seen.append((len(rows), threading.current_thread() is threading.main_thread()))

    async with app:
        await app.publish_many([Row(number=number) for number in range(3)])
        await eventually(lambda: app.statistics().handlers[name].handled == 3, "they are stored")
    assert seen == [(3, False)]


async def test_a_wrapped_async_function_is_awaited_on_the_event_loop(make_app: MakeApp, name: str) -> None:
    class Double(Request[int], queue=name):
        number: int

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return wrapper

    app = make_app()
    where: list[threading.Thread] = []

    @app.handle(Double)
    @logged
    async def double(request: Double) -> int:
        where.append(threading.current_thread())
        return 2 * request.number

    async with app:
        assert await app.call(Double(number=4)) == 8
    assert where == [threading.current_thread()]


async def test_a_plain_handler_on_a_virtual_clock(warren: Warren) -> None:
    class Work(Command, queue="work"):
        pass

    app = App()
    done: list[bool] = []

    @app.handle(Work)
    def work(message: Work) -> None:
        done.append(True)

    async with warren.running(app):
        await warren.publish(Work())
        assert warren.handled(Work) == [Work()]
    assert done == [True]


STUCK = """
import sys, threading
from warren.sdk import App, Command

class Work(Command, queue=sys.argv[2]):
    pass

app = App(sys.argv[1], grace=0.0)

@app.handle(Work)
def work(message: Work) -> None:
    print("it runs", flush=True)
    threading.Event().wait()

app.run()
"""


@pytest.mark.processes
async def test_a_process_ends_although_a_handler_is_stuck(
    amqp_url: str, make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Work(Command, queue=name):
        pass

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUCK, amqp_url, name, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with make_app() as app:
            await app.publish(Work())
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), SECONDS) == b"it runs\n"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await amqp_client.holds(name, 1)
