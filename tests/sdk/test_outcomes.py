"""Outcomes that handlers return or raise, and retry policies by exception class."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    Ack,
    App,
    CallTimeout,
    ConfigError,
    DeadLetter,
    Declarable,
    Delivery,
    Queue,
    Request,
    Requeue,
    Retry,
    RetryLater,
)
from warren.sdk.durations import duration


class Straight:
    """A delay backend that records its calls and redelivers at once."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, timedelta]] = []
        self.reached: list[tuple[str, set[timedelta]]] = []

    def register(self, app: App) -> None:
        self.app = app

    async def on_start(self) -> None: ...

    async def on_stop(self) -> None: ...

    def reach(self, queue: str, delays: Any) -> list[Declarable]:
        self.reached.append((queue, set(delays)))
        return [Queue(f"{queue}.wait", dead_letter_exchange=None)]

    async def redeliver(self, delivery: Delivery, queue: str, after: timedelta) -> None:
        self.asked.append((delivery.attempt, after))
        await self.app.forward(delivery, key=queue, headers={"warren-attempt": delivery.attempt + 1})


@pytest.mark.parametrize("how", ["returned", "raised"])
async def test_outcomes_are_values_and_exceptions(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    delays = Straight()
    app = make_app(delay=delays)
    seen: list[bytes] = []
    outcomes: dict[bytes, Callable[[], Exception]] = {
        b"ack": Ack,
        b"requeue": Requeue,
        b"dead": lambda: DeadLetter("no use"),
        b"later": lambda: RetryLater("5s"),
    }

    @app.handle(bytes, queue=name, concurrency=1)
    async def take(body: bytes, delivery: Delivery) -> Exception | None:
        seen.append(body)
        if delivery.redelivered or delivery.attempt > 1:
            return None
        outcome = outcomes[body]()
        if how == "raised":
            raise outcome
        return outcome

    async with app:
        for body in outcomes:
            await app.publish(body, key=name)
        dead = await amqp_client.take(f"{name}.dead")
        await eventually(lambda: app.statistics().handlers[name].handled == 3, "all have come to their end")
        await eventually(lambda: app.statistics().handlers[name].dead_lettered == 1, "the copy is confirmed")
        statistics = app.statistics()
    assert sorted(seen) == sorted([b"ack", b"dead", b"later", b"later", b"requeue", b"requeue"])
    assert (dead.body, dead.headers["warren-dead-reason"]) == (b"dead", "rejected")
    assert delays.asked == [(1, timedelta(seconds=5))]
    assert (statistics.handlers[name].delayed, statistics.handlers[name].dead_lettered) == (1, 1)
    assert (statistics.subscriptions[name].requeued, statistics.handlers[name].failed_attempts) == (1, 0)


async def test_a_policy_retries_then_delays_then_dead_letters(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    delays = Straight()
    app = make_app(delay=delays)
    tried: list[int] = []
    policy = Retry(2, first_wait="1ms").then("5s", "1m").on(ConnectionError)

    @app.handle(bytes, queue=name, retry=policy)
    async def take(body: bytes, delivery: Delivery) -> None:
        tried.append(delivery.attempt)
        raise ConnectionResetError("again")

    assert delays.reached == [(name, {timedelta(seconds=5), timedelta(minutes=1)})]
    assert Queue(f"{name}.wait", dead_letter_exchange=None) in app.topology
    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
    assert tried == [1, 1, 2, 2, 3, 3]
    assert delays.asked == [(1, timedelta(seconds=5)), (2, timedelta(minutes=1))]
    assert dead.headers["warren-dead-reason"] == "failed"
    assert dead.headers["warren-dead-error"] == "ConnectionResetError: again"
    assert dead.headers["warren-attempt"] == 3


@pytest.mark.parametrize(
    ("error", "tries"), [(KeyError, 1), (TimeoutError, 1), (ConnectionError, 2), (OSError, 2)]
)
async def test_a_policy_looks_at_the_class_of_the_error(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, error: type[Exception], tries: int
) -> None:
    app = make_app(delay=Straight())
    tried: list[None] = []

    @app.handle(bytes, queue=name, retry=Retry(1).then("1m").on(OSError).never(TimeoutError))
    async def take(body: bytes) -> None:
        tried.append(None)
        raise error

    async with app:
        await app.publish(b"1", key=name)
        await amqp_client.take(f"{name}.dead")
    assert len(tried) == tries


async def test_retry_later_uses_all_delays_of_the_policy(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    delays = Straight()
    app = make_app(delay=delays)

    @app.handle(bytes, queue=name, retry=Retry().then("5s", "1m").on(OSError))
    async def take(body: bytes) -> RetryLater:
        return RetryLater()

    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
    assert [after for _, after in delays.asked] == [timedelta(seconds=5), timedelta(minutes=1)]
    assert dead.headers["warren-dead-error"] == "RetryLater: the handler asked for a later retry"


async def test_without_a_backend_a_delay_is_a_queue_on_the_broker(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app()
    tried: list[int] = []

    @app.handle(bytes, queue=name, retry=Retry(1).then("20ms", "30ms"))
    async def take(body: bytes, delivery: Delivery) -> None:
        tried.append(delivery.attempt)
        raise OSError

    assert {f"{name}.wait.20", f"{name}.wait.30"} <= {
        item.name for item in app.topology if isinstance(item, Queue)
    }
    async with app:
        await app.publish(b"1", key=name)
        dead = await amqp_client.take(f"{name}.dead")
    assert tried == [1, 2, 3]
    assert (dead.headers["warren-dead-reason"], dead.headers["warren-attempt"]) == ("failed", 3)


async def test_a_request_that_is_acknowledged_has_no_answer(make_app: MakeApp, name: str) -> None:
    class Ask(Request[int], queue=name):
        pass

    app = make_app()

    @app.handle(Ask)
    async def ask(request: Ask) -> int:
        raise Ack

    app.publishes(Ask)
    async with app:
        with pytest.raises(CallTimeout):
            await app.call(Ask(), timeout=0.2)
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 1, "it is acknowledged")


def test_a_policy_is_a_value() -> None:
    policy = Retry(3)
    longer = policy.then("5s", 60, timedelta(hours=1), jitter=0.5)
    assert (len(policy.delays), len(longer.delays)) == (0, 27)
    assert min(longer.delays) == timedelta(seconds=5)
    assert max(longer.delays) == timedelta(hours=1.5)
    delivery = Delivery(b"", "", "q", "q", False, {"warren-attempt": 2}, {})
    assert {longer.delay(OSError(), delivery) for _ in range(200)} <= longer.delays
    wrong: Any = OSError()
    mistakes: list[tuple[Callable[[], object], str]] = [
        (lambda: Retry(0), "attempts must be at least 1"),
        (lambda: policy.then("soon"), "'soon' is no duration: write a timedelta"),
        (lambda: policy.then(-1), "it is negative"),
        (lambda: policy.then("1s", jitter=-1), "jitter must be at least 0, not -1"),
        (lambda: policy.on(wrong), "is not an exception class"),
    ]
    for mistake, text in mistakes:
        with pytest.raises(ConfigError, match=text):
            mistake()


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("250ms", 0.25),
        ("5s", 5),
        ("1.5m", 90),
        (" 2 h ", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1m 250ms", 60.25),
        (0.5, 0.5),
        (3, 3),
    ],
)
def test_durations_can_be_text(written: str | float, seconds: float) -> None:
    assert duration(written) == timedelta(seconds=seconds)
