"""Test with a virtual clock: half an hour takes milliseconds. Run it: pytest examples/test_unpaid_order.py"""

from datetime import timedelta
from pathlib import Path

import pytest

from warren.patterns import Deadline, Once, SqliteStore
from warren.sdk import App, Command, Event
from warren.testing import Warren


class OrderPlaced(Event, exchange="orders", key="order.placed"):
    order_id: str


class OrderPaid(Event, exchange="orders", key="order.paid"):
    order_id: str


class CancelOrder(Command, queue="orders.cancel"):
    order_id: str


@pytest.fixture
def app(tmp_path: Path) -> App:
    app, store = App(), SqliteStore(tmp_path / "decisions.sqlite")
    unpaid = Deadline(
        "order-unpaid",
        after=timedelta(minutes=30),
        signal=lambda key: CancelOrder(order_id=key),
        store=store,
    )
    app.include(unpaid)

    @app.handle(OrderPlaced, queue="deadlines")
    async def start(order: OrderPlaced) -> None:
        await unpaid.start(order.order_id)

    @app.handle(OrderPaid, queue="payments")
    async def paid(payment: OrderPaid) -> None:
        await unpaid.complete(payment.order_id)

    @app.handle(CancelOrder, once=Once(store))
    async def cancel(order: CancelOrder) -> None:
        if order.order_id == "unknown":
            raise LookupError("no such order")

    return app


async def test_an_unpaid_order_is_cancelled(warren: Warren, app: App) -> None:
    async with warren.running(app):
        await warren.publish(OrderPlaced(order_id="42"))
        await warren.advance(minutes=25)
        assert warren.handled(CancelOrder) == []
        await warren.advance(minutes=5)
        assert warren.handled(CancelOrder) == [CancelOrder(order_id="42")]
        assert warren.dead_letters == []


async def test_a_paid_order_is_not_cancelled(warren: Warren, app: App) -> None:
    async with warren.running(app):
        await warren.publish(OrderPlaced(order_id="42"))
        await warren.advance(minutes=10)
        await warren.publish(OrderPaid(order_id="42"))
        await warren.advance(minutes=30)
        assert warren.handled(OrderPaid) == [OrderPaid(order_id="42")]
        assert warren.handled(CancelOrder) == []


async def test_an_order_that_cannot_be_cancelled_is_dead_lettered(warren: Warren, app: App) -> None:
    async with warren.running(app):
        await warren.publish(CancelOrder(order_id="unknown"))
        await warren.advance(minutes=1)  # The waits between the attempts pass too.
        [dead] = warren.dead_letters
        assert (dead.queue, dead.reason) == ("orders.cancel", "failed")
        assert dead.read(CancelOrder) == CancelOrder(order_id="unknown")
