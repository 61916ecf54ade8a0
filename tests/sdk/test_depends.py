"""Dependencies of handlers: created for each message once, and cleaned up after it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import App, Command, ConfigError, Delivery, Depends, Header, Retry


class Ledger:
    def __init__(self, text: str = "") -> None:
        self.text = text


async def test_dependencies_of_every_kind_are_created_before_and_cleaned_up_after_the_handler(
    make_app: MakeApp, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    steps: list[str] = []

    def plain() -> int:
        return 1

    async def waiting() -> int:
        await asyncio.sleep(0)
        return 2

    def opened(one: Annotated[int, Depends(plain)]) -> Iterator[int]:
        steps.append(f"open {one}")
        yield 3
        steps.append("close")

    async def entered(three: Annotated[int, Depends(opened)]) -> AsyncIterator[int]:
        steps.append(f"enter {three}")
        yield 4
        steps.append("leave")

    app = make_app()

    @app.handle(Ping)
    async def ping(
        message: Ping,
        four: Annotated[int, Depends(entered)],
        two: Annotated[int, Depends(waiting)],
        ledger: Annotated[Ledger, Depends(Ledger)],
        spare: int = 5,
    ) -> None:
        steps.append(f"handle {message.number} {two} {four} {spare} {ledger.text!r}")

    async with app:
        await app.publish(Ping(number=0))
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is handled")
    assert steps == ["open 1", "enter 3", "handle 0 2 4 5 ''", "leave", "close"]
    await ping(Ping(number=9), 4, 2, Ledger("own"))
    assert steps[-1] == "handle 9 2 4 5 'own'", "it stays callable as what it was"


async def test_dependencies_are_shared_within_a_message_and_not_between_messages(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    made: list[object] = []
    seen: list[tuple[object, object, object]] = []

    def fresh() -> object:
        made.append(object())
        return made[-1]

    def through(value: Annotated[object, Depends(fresh)]) -> object:
        return value

    @app.handle(bytes, queue=name, concurrency=1)
    async def take(
        body: bytes,
        first: Annotated[object, Depends(fresh)],
        second: Annotated[object, Depends(through)],
        own: Annotated[object, Depends(fresh, cache=False)],
    ) -> None:
        seen.append((first, second, own))

    async with app:
        await app.publish_many([b"1", b"2"], key=name)
        await eventually(lambda: len(seen) == 2, "both are handled")
    assert len(made) == 4
    assert all(first is second and own is not first for first, second, own in seen)
    assert seen[0][0] is not seen[1][0]


async def test_context_objects_are_injected_by_type(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Ping(Command, queue=name):
        number: int

    app = make_app()
    seen: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()

    def tenant(of: Annotated[str, Header("tenant")], message: Ping, delivery: Delivery) -> str:
        return f"{of} {message.number} {delivery.queue}"

    @app.handle(Ping)
    async def ping(
        message: Ping,
        running: App,
        delivery: Delivery,
        text: Annotated[str, Depends(tenant)],
        x_retries: Annotated[int, Header()] = 7,
    ) -> None:
        seen.put_nowait((running, delivery.message_id, text, x_retries))

    async with app:
        await app.publish(Ping(number=1), message_id="m", headers={"tenant": "a", "x-retries": 3})
        assert await asyncio.wait_for(seen.get(), 60) == (app, "m", f"a 1 {name}", 3)
        await app.publish(Ping(number=1), message_id="m", headers={"tenant": "a"})
        assert (await asyncio.wait_for(seen.get(), 60))[3] == 7
        await app.publish(Ping(number=1))
        dead = await amqp_client.take(f"{name}.dead")
        assert dead.headers["warren-dead-reason"] == "undecodable"
        assert dead.headers["warren-dead-error"] == "ValueError: the message has no header 'tenant'"
        await app.publish(Ping(number=1), headers={"tenant": "a", "x-retries": "many"})
        dead = await amqp_client.take(f"{name}.dead")
        assert "the header 'x-retries' is not" in str(dead.headers["warren-dead-error"])


async def test_a_failure_reaches_the_clean_up_and_each_attempt_gets_its_own_dependencies(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()
    steps: list[str] = []

    async def session() -> AsyncIterator[int]:
        steps.append("begin")
        try:
            yield 1
        except ConnectionError:
            steps.append("roll back")
            return  # A clean-up that swallows the exception does not make a success of it.
        steps.append("commit")

    @app.handle(bytes, queue=name)
    async def take(body: bytes, one: Annotated[int, Depends(session)]) -> None:
        if len(steps) == 1:
            raise ConnectionError

    async with app:
        await app.publish(b"1", key=name)
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "it is handled in the end")
    assert steps == ["begin", "roll back", "begin", "commit"]


async def test_a_clean_up_that_fails_fails_the_message(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(retry=Retry(1))

    def session() -> Iterator[int]:
        yield 1
        raise OSError("the commit failed")

    @app.handle(bytes, queue=name)
    async def take(body: bytes, one: Annotated[int, Depends(session)]) -> None: ...

    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
    assert dead.headers["warren-dead-error"] == "OSError: the commit failed"


async def test_a_test_overrides_a_dependency(make_app: MakeApp, name: str) -> None:
    app = make_app()
    seen: asyncio.Queue[str] = asyncio.Queue()

    def real() -> str:
        return "real"

    async def fake(delivery: Delivery) -> str:
        return f"fake {delivery.body.decode()}"

    def needs(what: int) -> str:
        return ""

    @app.handle(bytes, queue=name)
    async def take(body: bytes, text: Annotated[str, Depends(real)]) -> None:
        seen.put_nowait(text)

    async with app:
        with app.override(real, fake):
            await app.publish(b"1", key=name)
            assert await asyncio.wait_for(seen.get(), 60) == "fake 1"
        with pytest.raises(ConfigError, match=r"the dependency .*needs has a parameter 'what'"):
            app.override(real, needs)
        await app.publish(b"2", key=name)
        assert await asyncio.wait_for(seen.get(), 60) == "real"


def recursive(value: Annotated[int, Depends(lambda: 1)]) -> int:
    return value


def test_an_unresolvable_parameter_is_refused_at_registration() -> None:
    app = App("amqp://localhost")

    def unfilled(what: dict[str, int]) -> int:
        return 1

    async def depends_on_it(body: bytes, value: Annotated[int, Depends(unfilled)]) -> None: ...

    async def circular(body: bytes, value: Annotated[int, Depends(recursive)]) -> None: ...

    async def positional(body: bytes, delivery: Delivery, /) -> None: ...

    handle: Any = app.handle(bytes, queue="q")
    with pytest.raises(ConfigError, match=r"the dependency .*unfilled has a parameter 'what' that nothing"):
        handle(depends_on_it)
    with pytest.raises(ConfigError, match="positional-only parameter 'delivery'"):
        handle(positional)
    recursive.__annotations__["value"] = Annotated[int, Depends(recursive)]
    with pytest.raises(ConfigError, match="depends on itself: recursive -> recursive"):
        handle(circular)
    not_callable: Any = 3
    with pytest.raises(ConfigError, match="takes a function, not 3"):
        Depends(not_callable)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of any kind, as decorators for logging and timing do."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


def logged_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


class Opener:
    """An object that is called as a dependency."""

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    @logged
    def __call__(self) -> Iterator[str]:
        self.steps.append("open")
        yield "session"
        self.steps.append("close")


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(
    "kind", ["async", "plain", "twice", "async decorator", "partial", "method", "object", "context manager"]
)
async def test_a_generator_behind_a_decorator_is_entered_and_cleaned_up(
    make_app: MakeApp, name: str, kind: str, in_thread: bool
) -> None:
    class Ping(Command, queue=name):
        pass

    steps: list[str] = []

    async def entered() -> AsyncIterator[str]:
        steps.append("open")
        yield "session"
        steps.append("close")

    def opened(word: str = "session") -> Iterator[str]:
        steps.append("open")
        yield word
        steps.append("close")

    class Service:
        @logged
        def session(self) -> Iterator[str]:
            yield from opened()

    dependencies: dict[str, Callable[..., Any]] = {
        "async": logged(entered),
        "plain": logged(opened),
        "twice": logged(logged(entered)),
        "async decorator": logged_async(entered),
        "partial": functools.partial(logged(opened), "session"),
        "method": Service().session,
        "object": Opener(steps),
        "context manager": contextmanager(opened),
    }
    dependency = dependencies[kind]
    app = make_app()

    def take(session: Any) -> None:
        if kind == "context manager":
            with session as opened_session:
                steps.append(opened_session)
        else:
            steps.append(session)

    if in_thread:

        @app.handle(Ping)
        def ping(message: Ping, session: Annotated[Any, Depends(dependency)]) -> None:
            take(session)

    else:

        @app.handle(Ping)
        async def ping_async(message: Ping, session: Annotated[Any, Depends(dependency)]) -> None:
            take(session)

    async with app:
        await app.publish(Ping())
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is handled")
    assert steps == ["open", "session", "close"]


async def test_a_generator_behind_a_decorator_gets_the_exception_of_the_handler(
    make_app: MakeApp, name: str
) -> None:
    class Ping(Command, queue=name):
        pass

    seen: list[str] = []

    @logged
    async def session() -> AsyncIterator[str]:
        try:
            yield "session"
        except ZeroDivisionError:
            seen.append("rolled back")
            raise

    app = make_app()

    @app.handle(Ping, retry=Retry(1))
    async def ping(message: Ping, session: Annotated[str, Depends(session)]) -> None:
        raise ZeroDivisionError

    async with app:
        await app.publish(Ping())
        await eventually(lambda: app.statistics().handlers[name].dead_lettered == 1, "it is dead")
    assert seen == ["rolled back"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_handler_that_is_a_generator_behind_a_decorator_fails(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, is_async: bool
) -> None:
    """The message would be acknowledged, although nothing of the handler has run."""

    class Ping(Command, queue=name):
        pass

    async def generator(message: Ping) -> AsyncIterator[int]:
        yield 1

    def plain(message: Ping) -> Iterator[int]:
        yield 1

    app = make_app()
    app.handle(Ping, retry=Retry(1))(logged(generator if is_async else plain))
    async with app:
        await app.publish(Ping())
        dead = await amqp_client.take(f"{name}.dead")
    assert "returned a generator, which nobody runs" in str(dead.headers["warren-dead-error"])
