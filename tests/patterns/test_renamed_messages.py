"""Messages that were stored under the former name of their class: the renamed class reads them by its aliases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.patterns.sql_sessions import open_sessions, sqlite_url
from tests.support.polling import eventually
from warren.patterns import (
    COMPENSATED,
    COMPENSATING,
    CompensateSaga,
    Compensation,
    DateSchedule,
    Outbox,
    RoutingSlipEnded,
    RoutingSlips,
    Saga,
    SqliteStore,
    Timers,
    TransitionTo,
)
from warren.patterns.dead_letters import ParkingLot, replay
from warren.sdk import App, Command, Delivery, Event, Retry


class Placed(Event, exchange="orders", key="order.placed", audience=["audit"]):
    order: str


class OrderPlaced(Event, exchange="orders", key="order.placed", audience=["audit"], aliases=["Placed"]):
    order: str


class Cancelled(Event, exchange="orders", key="order.cancelled", audience=["audit"]):
    order: str


def listening(app: App) -> list[tuple[str, str | None]]:
    """Handle the renamed event beside another one; return the list of the orders and types that it gets."""
    seen: list[tuple[str, str | None]] = []

    @app.handle(OrderPlaced, queue="audit")
    async def placed(event: OrderPlaced, delivery: Delivery) -> None:
        seen.append((event.order, delivery.type))

    @app.handle(Cancelled, queue="audit")
    async def cancelled(event: Cancelled) -> None: ...

    return seen


async def test_an_outbox_row_from_before_the_rename_is_read_by_the_renamed_class(tmp_path: Path) -> None:
    async with open_sessions(sqlite_url(tmp_path)) as sessions:
        async with sessions.begin() as session:
            await Outbox(sessions, relay=False).add(
                session, Placed(order="42"), correlation_id="c1", app_id="shop", priority=3
            )
        app = App("memory://")
        app.include(Outbox(sessions))
        seen = listening(app)
        properties: list[Any] = []

        async def keep(delivery: Delivery, call_next: Any) -> None:
            properties.append(dict(delivery.properties))
            await call_next(delivery)

        app.middleware(handle=keep)
        async with app:
            await eventually(lambda: bool(seen), "the outbox publishes the row")
    assert seen == [("42", "placed")]
    assert [properties[0][name] for name in ("correlation_id", "app_id", "priority")] == ["c1", "shop", 3]


async def test_a_dead_letter_from_before_the_rename_is_replayed_to_the_renamed_class(tmp_path: Path) -> None:
    broker = f"embedded:{tmp_path / 'broker'}"
    before, dead = App(broker), asyncio.Event()

    @before.handle(Placed, queue="audit", retry=Retry(1))
    async def fail(event: Placed) -> None:
        dead.set()
        raise LookupError(event.order)

    async with before:
        await before.publish(Placed(order="42"))
        await dead.wait()
    app = App(broker)
    seen = listening(app)
    async with app:
        assert app.url is not None
        async with ParkingLot(app.url, "audit.dead") as lot:
            assert (await replay(lot, app)).done == 1
        await eventually(lambda: bool(seen), "the renamed class handles the message")
    assert seen == [("42", "placed")]


async def test_a_timer_from_before_the_rename_publishes_the_renamed_class(tmp_path: Path) -> None:
    before = App("memory://")
    timers = Timers("orders", store=SqliteStore(tmp_path / "timers.sqlite"), sends=[Placed])
    before.include(timers)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    async with before:
        await timers.put(DateSchedule("late", soon, Placed(order="42")))
    app = App("memory://")
    app.include(Timers("orders", store=SqliteStore(tmp_path / "timers.sqlite"), sends=[OrderPlaced]))
    seen = listening(app)
    async with app:
        await eventually(lambda: bool(seen), "the timer is due")
    assert seen == [("42", "order_placed")]


class Book(Command, queue="book"):
    hotel: str


class BookHotel(Command, queue="book", aliases=["Book"]):
    hotel: str


class Booked(RoutingSlipEnded, queue="booked"):
    pass


async def test_a_routing_slip_from_before_the_rename_is_executed_by_the_renamed_step(tmp_path: Path) -> None:
    broker = f"embedded:{tmp_path / 'broker'}"
    before = App(broker)
    slips = RoutingSlips(steps=[Book], ends=[Booked])
    before.include(slips)
    async with before:
        await slips.start([Book(hotel="Ritz"), Book(hotel="Savoy")], end=Booked)
    app, ended, booked = App(broker), asyncio.Event(), []
    after = RoutingSlips(steps=[BookHotel], ends=[Booked])
    app.include(after)

    @after.step(BookHotel)
    async def book(command: BookHotel) -> str:
        booked.append(command.hotel)
        return f"room at the {command.hotel}"

    @app.handle(Booked)
    async def end(message: Booked) -> None:
        assert message.completed, message.reason
        assert message.results == {"book_hotel": "room at the Savoy"}
        ended.set()

    async with app:
        async with asyncio.timeout(60):
            await ended.wait()
    assert booked == ["Ritz", "Savoy"]


class Basket(BaseModel):
    order: str


class Abort(Event, exchange="orders", key="order.abort"):
    order: str


class Refund(Command, queue="refund"):
    order: str


class Refunded(Event, exchange="orders", key="refunded"):
    order: str


class PaymentReturned(Event, exchange="orders", key="refunded", aliases=["Refunded"]):
    order: str


def checkout(path: Path, answer: type[Event]) -> Saga[Basket]:
    """Return a saga that is compensated by a refund, and waits for the answer to it."""
    saga = Saga("checkout", Basket, store=SqliteStore(path), key="order", sends=[Refund])

    @saga.starts(OrderPlaced)
    def placed(event: OrderPlaced) -> TransitionTo[Basket]:
        compensation = Compensation(Refund(order=event.order), until=answer)
        return TransitionTo("paid", Basket(order=event.order), compensation=compensation)

    @saga.on("paid", Abort)
    def abort(basket: Basket, event: Abort) -> CompensateSaga[Basket]:
        return CompensateSaga("aborted")

    saga.receives(answer)
    return saga


async def test_a_saga_that_awaits_an_answer_by_its_former_name_takes_the_renamed_one(tmp_path: Path) -> None:
    async def is_in(saga: Saga[Basket], state: str) -> bool:
        history = await saga.history("42")
        return history is not None and history.state == state

    before = App("memory://")
    saga = checkout(tmp_path / "sagas.sqlite", Refunded)
    before.include(saga)
    async with before:
        await before.publish(OrderPlaced(order="42"))
        await eventually(lambda: is_in(saga, "paid"), "the saga has begun")
        await before.publish(Abort(order="42"))
        await eventually(lambda: is_in(saga, COMPENSATING), "the saga awaits the refund")
    app = App("memory://")
    saga = checkout(tmp_path / "sagas.sqlite", PaymentReturned)
    app.include(saga)
    async with app:
        await app.publish(PaymentReturned(order="42"))
        await eventually(lambda: is_in(saga, COMPENSATED), "the saga has taken the answer")
