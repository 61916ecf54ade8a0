"""Batch handlers: batches by count and by time, and an outcome for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from typing import Annotated, Any

import pytest

from tests.sdk.conftest import MakeApp
from tests.support.async_client import AsyncClient
from tests.support.polling import eventually
from warren.sdk import (
    Ack,
    App,
    Command,
    ConfigError,
    DeadLetter,
    Delivery,
    Depends,
    Event,
    Header,
    Request,
    Requeue,
    Retry,
)
from warren.testing import Warren


@pytest.mark.parametrize(
    ("size", "within", "batches"), [(4, "1h", [[0, 1, 2, 3], [4, 5, 6, 7]]), (100, "20ms", None)]
)
async def test_a_batch_is_closed_by_count_and_by_time(
    make_app: MakeApp, name: str, size: int, within: str, batches: list[list[int]] | None
) -> None:
    class Row(Command, queue=name):
        number: int

    app = make_app()
    stored: list[list[int]] = []

    @app.handle.batch(Row, size=size, within=within)
    async def store(rows: list[Row]) -> None:
        stored.append([row.number for row in rows])

    async with app:
        await app.publish_many([Row(number=n) for n in range(8)])
        await eventually(lambda: app.statistics().subscriptions[name].acknowledged == 8, "all are stored")
    assert [*chain(*stored)] == list(range(8))
    assert batches is None or stored == batches
    await store([Row(number=1)])
    assert stored[-1] == [1], "it stays callable as what it was"


async def test_each_message_of_a_batch_has_its_own_outcome(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(retry=Retry(2, first_wait="1ms"))
    batches: list[list[bytes]] = []
    ends: dict[bytes, Callable[[], Exception | None]] = {
        b"done": lambda: None,
        b"ack": Ack,
        b"dead": lambda: DeadLetter("not this one"),
        b"fail": lambda: OSError("not now"),
    }

    @app.handle.batch(bytes, queue=name, size=5, within="30ms")
    async def store(rows: list[bytes], deliveries: list[Delivery]) -> list[Exception | None]:
        batches.append(rows)
        return [
            Requeue() if row == b"again" and not delivery.redelivered else ends.get(row, lambda: None)()
            for row, delivery in zip(rows, deliveries, strict=True)
        ]

    async with app:
        await app.publish_many([b"done", b"ack", b"dead", b"fail", b"again"], key=name)
        dead = {
            message.body: message.headers
            for message in [await amqp_client.take(f"{name}.dead") for _ in "12"]
        }
        await eventually(lambda: app.statistics().handlers[name].handled == 3, "the others are done")
        statistics = app.statistics()
    assert dead[b"dead"]["warren-dead-error"] == "DeadLetter: not this one"
    assert dead[b"fail"]["warren-dead-error"] == "OSError: not now"
    assert sorted([*chain(*batches)]) == [b"ack", b"again", b"again", b"dead", b"done", b"fail", b"fail"]
    assert (statistics.subscriptions[name].requeued, statistics.handlers[name].failed_attempts) == (1, 2)


class Unexpected(BaseException):
    """An exception that is neither an Exception nor a cancellation."""


@pytest.mark.parametrize("error", [Unexpected(), BaseExceptionGroup("both", [Unexpected(), OSError()])])
async def test_no_exception_of_a_batch_handler_leaves_messages_unsettled(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, error: BaseException
) -> None:
    app = make_app()

    @app.handle.batch(bytes, queue=name, size=2, within="30ms")
    async def store(rows: list[bytes]) -> None:
        if b"3" not in rows:
            raise error

    async with app:
        await app.publish_many([b"1", b"2"], key=name)
        assert sorted([(await amqp_client.take(f"{name}.dead")).body for _ in range(2)]) == [b"1", b"2"]
        await app.publish(b"3", key=name)
        await eventually(lambda: app.statistics().handlers[name].handled == 1, "the next batch is stored")


@pytest.mark.parametrize("how", ["raise", "wrong length", "no list"])
async def test_a_batch_that_fails_fails_each_of_its_messages(
    make_app: MakeApp, amqp_client: AsyncClient, name: str, how: str
) -> None:
    app = make_app(retry=Retry(1))

    async def store(rows: list[bytes]) -> Any:
        if how == "raise":
            raise OSError
        return [None] if how == "wrong length" else 3

    app.handle.batch(bytes, queue=name, size=2, within="30ms")(store)
    async with app:
        await app.publish_many([b"1", b"2"], key=name)
        dead = [await amqp_client.take(f"{name}.dead") for _ in range(2)]
    assert sorted(message.body for message in dead) == [b"1", b"2"]
    error = "OSError: " if how == "raise" else "TypeError: a handler of batches returns None, an outcome, or"
    assert all(str(message.headers["warren-dead-error"]).startswith(error) for message in dead)


async def test_concurrency_limits_batches_and_undecodable_messages_are_in_none(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    class Row(Command, queue=name):
        number: int

    app = make_app()
    running, most = 0, 0
    closed: list[str] = []
    finish = asyncio.Event()

    def session() -> Iterator[str]:
        yield "session"
        closed.append("session")

    @app.handle.batch(Row, size=2, within="20ms", concurrency=2)
    async def store(rows: list[Row], text: Annotated[str, Depends(session)], own: App) -> None:
        nonlocal running, most
        assert (text, own) == ("session", app)
        running += 1
        most = max(most, running)
        await finish.wait()
        running -= 1

    async with app:
        await amqp_client.put(name, b"{", content_type="application/json")
        await app.publish_many([Row(number=n) for n in range(12)])
        assert (await amqp_client.take(f"{name}.dead")).headers["warren-dead-reason"] == "undecodable"
        await eventually(lambda: most == 2, "two run")
        finish.set()
        await eventually(lambda: app.statistics().handlers[name].handled == 12, "all are stored")
        assert app.statistics().handlers[name].gathering == 0
    assert most == 2
    assert len(closed) >= 6


async def test_a_batch_that_exceeds_the_grace_period_is_requeued(
    make_app: MakeApp, amqp_client: AsyncClient, name: str
) -> None:
    app = make_app(grace=0.1)
    started, cancelled = asyncio.Event(), asyncio.Event()

    @app.handle.batch(bytes, queue=name, size=2)
    async def store(rows: list[bytes]) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with app:
        await app.publish_many([b"1", b"2"], key=name)
        await started.wait()
    await asyncio.wait_for(cancelled.wait(), 60)
    await amqp_client.holds(name, 2)


class Measured(Event, exchange="measures", key="measured"):
    value: int


async def test_a_batch_waits_on_the_apps_clock(warren: Warren) -> None:
    app = App()
    batches: list[int] = []

    @app.handle.batch(Measured, queue="measures", size=10, within=timedelta(minutes=5))
    async def store(rows: list[Measured]) -> None:
        batches.append(len(rows))

    async with warren.running(app):
        await warren.publish(Measured(value=1))
        await warren.advance(minutes=3)
        await warren.publish(Measured(value=2))
        await warren.advance(minutes=1)
        assert batches == []
        await warren.advance(minutes=1)
        assert batches == [2]
        assert warren.handled(Measured) == [Measured(value=1), Measured(value=2)]


def test_invalid_batch_options_are_refused() -> None:
    class Ask(Request[int], queue="asks"):
        pass

    app = App("amqp://localhost")
    batch: Any = app.handle.batch
    mistakes: list[tuple[tuple[object], dict[str, Any], str]] = [
        ((Ask,), {}, "is a Request: a batch handler cannot reply"),
        ((bytes,), {"queue": "q", "size": 0}, "size must be at least 1"),
        ((bytes,), {"queue": "q", "ordered_by": "k"}, "takes no ordered_by"),
        ((bytes,), {"queue": "q", "concurrency": 0}, "concurrency must be at least 1"),
    ]
    for arguments, options, text in mistakes:
        with pytest.raises(ConfigError, match=text):
            batch(*arguments, **options)

    async def takes_header(rows: list[bytes], tenant: Annotated[str, Header()]) -> None: ...

    with pytest.raises(ConfigError, match=r"has no Header parameters: take a list\[Delivery\]"):
        batch(bytes, queue="q")(takes_header)
