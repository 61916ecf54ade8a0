"""Handlers of a pattern that are declared after `app.include` are registered too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from warren.patterns import (
    AbortRoutingSlip,
    CompleteSaga,
    Partitions,
    Resequencer,
    RoutingSlipEnded,
    RoutingSlips,
    Saga,
    SqliteStore,
    TransitionTo,
)
from warren.sdk import App, Command, ConfigError, Event, Queue
from warren.testing import Warren


async def test_a_handler_of_partitions(warren: Warren) -> None:
    orders = Partitions("orders", 2, key=lambda order: str(order.key))

    class Changed(Event, exchange=orders.exchange):
        key: str

    app, seen = App(), []
    app.include(orders)

    @orders.handle(Changed)
    async def changed(message: Changed) -> None:
        seen.append(message.key)

    async with warren.running(app):
        for key in "abcd":
            await orders.publish(Changed(key=key))
        await warren.settle()
    assert sorted(seen) == list("abcd")


async def test_a_step_of_a_routing_slip_and_its_compensation(warren: Warren) -> None:
    class Flight(Command, queue="flight"):
        pass

    class Hotel(Command, queue="hotel"):
        pass

    class Ended(RoutingSlipEnded, queue="ended"):
        pass

    app, seen = App(), []
    slips = RoutingSlips(steps=[Flight, Hotel], ends=[Ended])
    app.include(slips)

    @slips.step(Flight)
    async def flight(step: Flight) -> None:
        seen.append("flight")

    @flight.compensate
    async def no_flight(step: Flight, result: None) -> None:
        seen.append("no flight")

    @slips.step(Hotel)
    async def hotel(step: Hotel) -> None:
        raise AbortRoutingSlip("no room")

    @app.handle(Ended)
    async def ended(end: Ended) -> None:
        seen.append(str(end.reason))

    async with warren.running(app):
        await slips.start([Flight(), Hotel()], end=Ended)
        await warren.settle()
    assert seen == ["flight", "no flight", "no room"]


async def test_a_further_handler_of_a_resequencer(warren: Warren, tmp_path: Path) -> None:
    queue = Queue("steps", single_active_consumer=True)

    class First(Command, queue=queue):
        number: int
        key: str = "a"

    class Second(Command, queue=queue):
        number: int
        key: str = "a"

    app, seen = App(), []
    steps = Resequencer(
        "steps", store=SqliteStore(tmp_path / "s"), key=lambda m: str(m.key), number=lambda m: int(m.number)
    )

    @steps.handle(First)
    async def first(message: First) -> None:
        seen.append(("first", message.number))

    app.include(steps)

    @steps.handle(Second)
    async def second(message: Second) -> None:
        seen.append(("second", message.number))

    async with warren.running(app):
        await warren.publish(First(number=1))
        await warren.publish(Second(number=2))
    assert seen == [("first", 1), ("second", 2)]


class Bill(BaseModel):
    order_id: str


async def test_a_transition_and_a_timeout_of_a_saga(warren: Warren, tmp_path: Path) -> None:
    class Placed(Event, exchange="orders", key="placed", audience=["bill.saga"]):
        order_id: str

    class Paid(Event, exchange="orders", key="paid", audience=["bill.saga"]):
        order_id: str

    class Cancel(Command, queue="cancel"):
        order_id: str

    app = App()
    saga = Saga("bill", Bill, store=SqliteStore(tmp_path / "s"), key="order_id")

    @saga.starts(Placed)
    def placed(event: Placed) -> TransitionTo[Bill]:
        return TransitionTo("paying", Bill(order_id=event.order_id))

    app.include(saga)

    @saga.on("paying", Paid)
    def paid(bill: Bill, event: Paid) -> CompleteSaga[Bill]:
        return CompleteSaga()

    @saga.on("paying", Cancel)
    def cancel(bill: Bill, command: Cancel) -> CompleteSaga[Bill]:
        return CompleteSaga()

    @saga.timeout("paying", timedelta(hours=1))
    def late(bill: Bill) -> CompleteSaga[Bill]:
        return CompleteSaga()

    async with warren.running(app):
        for order in "abcd":
            await warren.publish(Placed(order_id=order))
        await warren.publish(Paid(order_id="a"))
        await warren.publish(Cancel(order_id="b"))
        assert saga.statistics.completed == 2
        await warren.advance(timedelta(hours=2))
    assert saga.statistics.completed == 4


async def test_a_handler_of_a_running_app_is_refused(warren: Warren) -> None:
    orders = Partitions("orders", 2, key=lambda order: str(order.key))

    class Changed(Event, exchange=orders.exchange):
        key: str

    async def changed(message: Changed) -> None: ...

    app = App()
    app.include(orders)
    async with warren.running(app):
        with pytest.raises(ConfigError, match="the App runs already: add a handler before it starts"):
            orders.handle(Changed)(changed)
