"""Catch-all: messages that match no binding are stored, and an alert is raised."""

from __future__ import annotations

from tests.patterns.conftest import NewApp
from tests.support.async_client import take_one
from tests.support.polling import eventually
from warren.patterns import CatchAll, ParkingLot, replay
from warren.sdk import Delivery, Event


async def test_an_unroutable_message_is_kept_raises_an_alert_and_can_be_replayed(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    alerted_keys: list[str] = []

    async def on_alert(delivery: Delivery) -> None:
        alerted_keys.append(delivery.routing_key)

    app, orders = new_app(), CatchAll(f"{name}.orders", alert=on_alert)
    app.include(orders)

    class Placed(Event, exchange=orders.exchange, key="order.placed"):
        number: int

    class Paid(Event, exchange=orders.exchange, key="order.paid"):
        number: int

    paid: list[int] = []

    @app.handle(Paid, queue=f"{name}.books")
    async def book(payment: Paid) -> None:
        paid.append(payment.number)

    async with app:
        await app.publish(Paid(number=1))
        await app.publish(Placed(number=2), message_id="m2")
        await eventually(lambda: alerted_keys == ["order.placed"], "the alert was called")
        await eventually(lambda: paid == [1], "the routed message is handled")
        assert orders.unrouted == 1
        # A queue is bound later, and a replay routes the kept message to it.
        later = new_app()

        @later.handle(Placed, queue=f"{name}.shipping")
        async def ship(order: Placed) -> None:
            paid.append(order.number)

        async with later, ParkingLot(amqp_url, f"{name}.orders.unrouted") as lot:
            assert (await replay(lot, later)).done == 1
            await eventually(lambda: paid == [1, 2], "it is handled")


async def test_an_unroutable_message_is_counted_and_kept_without_an_alert(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    app, orders = new_app(), CatchAll(f"{name}.orders")
    app.include(orders)
    async with app:
        await app.publish(b"1", exchange=f"{name}.orders", key="nobody")
        await eventually(lambda: orders.unrouted == 1, "it is counted")
        assert (await take_one(amqp_url, orders.queue.name)).routing_key == "nobody"


async def test_an_unroutable_message_is_kept_if_its_alert_fails(
    new_app: NewApp, amqp_url: str, name: str
) -> None:
    def alert(delivery: Delivery) -> None:
        raise OSError("the pager does not answer")

    app, orders = new_app(), CatchAll(f"{name}.orders", alert=alert)
    app.include(orders)
    async with app:
        await app.publish(b"1", exchange=f"{name}.orders", key="nobody")
        alerts = f"{name}.orders.unrouted.alerts"
        await eventually(lambda: app.statistics().handlers[alerts].dropped == 1, "the alert is given up")
        assert (await take_one(amqp_url, orders.queue.name)).body == b"1"
