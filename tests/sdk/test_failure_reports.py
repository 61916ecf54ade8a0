"""Reports of failures that fail themselves: logs, telemetry, retry policies, error replies; messages are settled anyway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from tenacity import AsyncRetrying, RetryCallState

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    CircuitBreaker,
    Clock,
    DeadLetter,
    Delivery,
    Fault,
    Queue,
    RemoteError,
    Request,
    Requeue,
    Retry,
    RetryLater,
    current_delivery,
)


class Fatal(BaseException):
    pass


class WithoutText(Exception):
    def __str__(self) -> str:
        raise Fatal


class WithoutReplyCode(Exception):
    @property
    def reply_code(self) -> int:
        raise RuntimeError


class Unhashable(Exception):
    def __init__(self) -> None:
        self.reply_code: list[int] = []


class Brittle(RemoteError):
    def __init__(self) -> None:
        """Leave out the initialisation of the base class."""


class Circular(Fault[dict[str, Any]], code="circular"):
    pass


def circular() -> dict[str, Any]:
    details: dict[str, Any] = {}
    details["itself"] = details
    return details


FAILURES = {
    "details with keys that are no text": RemoteError("taken", "seat 1", details={(1, 2): "seat"}),
    "details that contain themselves": RemoteError("taken", "seat 1", details=circular()),
    "details without a text": RemoteError("taken", "seat 1", details=WithoutText()),
    "details of a fault that contain themselves": Circular("seat 1", circular()),
    "no code": Brittle(),
    "no text": WithoutText(),
    "lone surrogate": ValueError("\ud800"),
    "dead letter": DeadLetter("of no use"),
    "delay that is none": RetryLater("soon"),
    "cancellation": asyncio.CancelledError(),
    "no exception": Fatal(),
    "group": BaseExceptionGroup("both", [Fatal(), ValueError()]),
}


@pytest.mark.parametrize("how", FAILURES)
async def test_a_caller_gets_an_error_reply(make_app: MakeApp, name: str, how: str) -> None:
    error = FAILURES[how]
    app = make_app(retry=Retry(1))

    class Ask(Request[int], queue=name, faults=[Circular]):
        pass

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        raise error

    async with app:
        with pytest.raises(RemoteError) as caught:
            await app.call(Ask(), timeout=60)
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is acknowledged")
        statistics = app.statistics()
    codes = {RemoteError: "taken", Circular: "circular", DeadLetter: "rejected", RetryLater: "ConfigError"}
    assert caught.value.code == codes.get(type(error), type(error).__name__)
    assert statistics.handlers[name].error_replies == 1
    if "details" in how:
        assert caught.value.message.startswith("seat 1 (without its details: ")
    assert statistics.handlers[name].dead_lettered == (1 if how == "dead letter" else 0)


async def test_a_publish_middleware_that_refuses_replies_leads_to_a_dead_letter(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()

    class Ask(Request[int], queue=name):
        pass

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        return 1

    async def refuse_replies(outgoing: Any, call_next: Any) -> None:
        if current_delivery() is not None:
            raise ValueError("no replies today")
        await call_next(outgoing)

    app.middleware(publish=refuse_replies)
    async with app:
        calling = asyncio.ensure_future(app.call(Ask(), timeout=60))
        dead = await amqp_client.take(f"{name}.dead")
        calling.cancel()
    assert dead.headers["warren-dead-reason"] == "reply_refused"
    assert dead.headers["warren-dead-error"] == "ValueError: no replies today"


async def test_a_publish_middleware_that_refuses_one_reply_leads_to_an_error_reply(
    make_app: MakeApp, name: str
) -> None:
    app = make_app()

    class Ask(Request[int], queue=name):
        pass

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        return 1

    async def refuse_value(outgoing: Any, call_next: Any) -> None:
        if current_delivery() is not None and outgoing.body == b"1":
            raise ValueError("not this reply")
        await call_next(outgoing)

    app.middleware(publish=refuse_value)
    async with app:
        with pytest.raises(RemoteError, match="not this reply") as caught:
            await app.call(Ask(), timeout=60)
    assert caught.value.code == "reply_refused"


REPORTED = {
    "no text": WithoutText(),
    "no reply code": WithoutReplyCode(),
    "a reply code that cannot be hashed": Unhashable(),
    "lone surrogate": ValueError("\ud800"),
    "no exception": Fatal(),
}


@pytest.mark.parametrize("how", REPORTED)
async def test_a_failure_that_cannot_be_reported_is_retried_and_dead_lettered(
    traced: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    error = REPORTED[how]
    app = traced(retry=Retry(1).then("1ms"))
    runs: list[int] = []

    @app.handle(bytes, queue=name)
    async def take(body: bytes, delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        raise error

    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
    assert runs == ([1, 2] if isinstance(error, Exception) else [1])
    assert dead.headers["warren-dead-reason"] == "failed"
    assert str(dead.headers["warren-dead-error"]).startswith(f"{type(error).__name__}: ")


class Refusing(logging.Filter):
    """A filter that raises for each record about a failure."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING or "event=message.processed" in record.msg:
            raise RuntimeError("no logs today")
        return True


@pytest.fixture(params=[logging.INFO, logging.DEBUG])
def refused_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    refusing = Refusing()
    logger = logging.getLogger("warren.sdk")
    level = logger.level
    logger.setLevel(request.param)
    logger.addFilter(refusing)
    yield
    logger.removeFilter(refusing)
    logger.setLevel(level)


@pytest.mark.usefixtures("refused_logs")
async def test_a_log_filter_that_raises_ends_no_worker_and_no_circuit(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(retry=Retry(1))
    runs: list[bytes] = []

    @app.handle(
        bytes, queue=name, concurrency=1, breaker=CircuitBreaker(failures=1, pause="1ms", on=(ValueError,))
    )
    async def take(body: bytes) -> None:
        runs.append(body)
        if body == b"own task" and runs.count(body) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()
        if body == b"circuit" and runs.count(body) == 1:
            raise ValueError

    async with app:
        await app.publish(b"own task", key=name)
        dead = await amqp_client.take(f"{name}.dead")
        await app.publish(b"circuit", key=name)
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "the circuit is closed again")
        await app.publish(b"next", key=name)
        await eventually(lambda: app.statistics().handlers[name].handled == 2, "the next message is handled")
    assert dead.body == b"own task"
    assert runs == [b"own task", b"circuit", b"circuit", b"next"]


@pytest.mark.usefixtures("refused_logs")
@pytest.mark.parametrize("error", [ValueError("1"), Fatal()], ids=["exception", "no exception"])
async def test_a_log_filter_that_raises_changes_nothing(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, error: BaseException
) -> None:
    app = make_app(retry=Retry(2, first_wait="1ms"))
    runs: list[bytes] = []

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        runs.append(body)
        raise error

    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is acknowledged")
    assert len(runs) == (2 if isinstance(error, Exception) else 1)
    assert str(dead.headers["warren-dead-error"]).startswith(f"{type(error).__name__}: ")


class FailingDelay(Retry):
    def delay(self, error: Exception, delivery: Delivery) -> timedelta | None:
        raise RuntimeError("the policy is wrong")


class FailingAttempts(Retry):
    def attempts(self, clock: Clock) -> AsyncRetrying:
        def fail(state: RetryCallState) -> float:
            raise RuntimeError("the policy is wrong")

        return super().attempts(clock).copy(wait=fail)


@pytest.mark.parametrize("policy", [FailingDelay(1), FailingAttempts(2)], ids=["delay", "attempts"])
async def test_a_retry_policy_that_raises_does_not_replace_the_error(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, policy: Retry
) -> None:
    app = make_app(retry=policy)

    class Ask(Request[int], queue=f"{name}.ask"):
        pass

    @app.handle(bytes, queue=name)
    async def take(body: bytes) -> None:
        raise ValueError("of the handler")

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        raise ValueError("of the handler")

    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
        with pytest.raises(RemoteError, match="ValueError: of the handler"):
            await app.call(Ask(), timeout=60)
    assert dead.headers["warren-dead-error"] == "ValueError: of the handler"


@pytest.mark.parametrize("how", ["own task", "no exception", "generator exit", "another task"])
async def test_a_queue_without_a_dead_letter_exchange_loses_nothing(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    """A queue that another client has declared: only the App dead-letters its messages."""
    await amqp_client.channel.declare_queue(name, durable=True)
    app = make_app(mismatch="adopt")

    @app.handle(bytes, queue=Queue(name, type="classic"), retry=Retry(1))
    async def take(body: bytes) -> None:
        match how:
            case "own task":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.Event().wait()
            case "no exception":
                raise Fatal
            case "generator exit":
                raise GeneratorExit
            case _:
                raise asyncio.CancelledError

    async with app:
        await app.publish_many([b"1", b"2", b"3"], key=name)
        letters = [(await amqp_client.take(f"{name}.dead")).body for _ in range(3)]
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 3, "all are settled")
        statistics = app.statistics()
    assert sorted(letters) == [b"1", b"2", b"3"]
    assert (statistics.handlers[name].dead_lettered, statistics.handlers[name].dropped) == (3, 0)


async def test_a_request_that_returns_to_its_queue_is_dead_lettered_and_answered_once(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    runs: list[int] = []

    class Ask(Request[int], queue=name):
        pass

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        runs.append(1)
        raise Requeue if len(runs) == 1 else DeadLetter("of no use")

    async with app:
        with pytest.raises(RemoteError, match="rejected: of no use"):
            await app.call(Ask(), timeout=60)
        dead = await amqp_client.take(f"{name}.dead")
        await amqp_client.holds(f"{name}.dead", 0)
        calls = app.statistics().calls
    assert dead.headers["warren-dead-reason"] == "rejected"
    assert (len(runs), calls.replies, calls.discarded_replies) == (2, 1, 0)
