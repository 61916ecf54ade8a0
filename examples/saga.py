"""Saga: an order is paid and shipped; if it cannot be shipped, compensate the payment, then the reservation.

Run it: AMQP_URL=memory:// python examples/saga.py   (memory:// is a broker in this process; or name one. REDIS_URL
chooses a Redis; without it a file is used)
"""

import asyncio
import os
import tempfile
from datetime import timedelta
from enum import StrEnum

from pydantic import BaseModel

from warren.patterns import (
    COMPENSATED,
    COMPLETED,
    CompensateSaga,
    Compensation,
    CompleteSaga,
    Once,
    RedisStore,
    Saga,
    SqliteStore,
    StayInState,
    TransitionTo,
)
from warren.sdk import App, Command, Event


class OrderPlaced(Event, exchange="orders", key="order.placed", audience=["checkout.saga"]):
    order_id: str


class CardCharged(Event, exchange="orders", key="card.charged", audience=["checkout.saga"]):
    order_id: str


class CardRefunded(Event, exchange="orders", key="card.refunded", audience=["checkout.saga"]):
    order_id: str


class OrderShipped(Event, exchange="orders", key="order.shipped", audience=["checkout.saga"]):
    order_id: str


class OutOfStock(Event, exchange="orders", key="order.out_of_stock", audience=["checkout.saga"]):
    order_id: str


class ReserveStock(Command, queue="stock.reserve"):
    order_id: str


class ReleaseStock(Command, queue="stock.release"):
    order_id: str


class ChargeCard(Command, queue="cards.charge"):
    order_id: str


class RefundCard(Command, queue="cards.refund"):
    order_id: str


class ShipOrder(Command, queue="shipping"):
    order_id: str


# The saga


class CheckoutState(StrEnum):
    PAYING = "paying"
    SHIPPING = "shipping"


class Order(BaseModel):
    order_id: str


url = os.environ.get("REDIS_URL")
store = RedisStore(url) if url else SqliteStore(f"{tempfile.mkdtemp()}/sagas.sqlite")
# --8<-- [start:pattern]
checkout = Saga(
    "checkout",
    Order,
    store=store,
    key="order_id",
    sends=[ReserveStock, ReleaseStock, ChargeCard, RefundCard, ShipOrder],
)


@checkout.starts(OrderPlaced)
def placed(event: OrderPlaced) -> TransitionTo[Order]:
    return TransitionTo(
        CheckoutState.PAYING,
        Order(order_id=event.order_id),
        send=[ReserveStock(order_id=event.order_id), ChargeCard(order_id=event.order_id)],
        compensation=ReleaseStock(order_id=event.order_id),
    )


@checkout.on(CheckoutState.PAYING, CardCharged)
def charged(order: Order, event: CardCharged) -> TransitionTo[Order]:
    return TransitionTo(
        CheckoutState.SHIPPING,
        send=[ShipOrder(order_id=order.order_id)],
        # The stock is released only after the card is refunded.
        compensation=Compensation(RefundCard(order_id=order.order_id), until=CardRefunded),
    )


@checkout.on(CheckoutState.SHIPPING, OrderShipped)
def shipped(order: Order, event: OrderShipped) -> CompleteSaga[Order]:
    return CompleteSaga()


@checkout.on(CheckoutState.SHIPPING, OutOfStock)
def out_of_stock(order: Order, event: OutOfStock) -> CompensateSaga[Order]:
    return CompensateSaga("out of stock")


@checkout.timeout(CheckoutState.PAYING, after=timedelta(minutes=15))
def unpaid(order: Order) -> CompensateSaga[Order]:
    return CompensateSaga("not paid in time")


# --8<-- [end:pattern]


@checkout.on(COMPENSATED, CardCharged)
def charged_too_late(order: Order, event: CardCharged) -> StayInState[Order]:
    return StayInState(compensation=RefundCard(order_id=order.order_id))


checkout.receives(CardRefunded)

app = App()
app.include(checkout)


# The services, each in its own process in real life


@app.handle(ReserveStock, once=Once(store))
async def reserve(command: ReserveStock) -> None:
    print(f"{command.order_id}: stock reserved")


@app.handle(ReleaseStock, once=Once(store))
async def release(command: ReleaseStock) -> None:
    print(f"{command.order_id}: stock released")


@app.handle(ChargeCard, once=Once(store))
async def charge(command: ChargeCard) -> None:
    await app.publish(CardCharged(order_id=command.order_id))


@app.handle(RefundCard, once=Once(store))
async def refund(command: RefundCard) -> None:
    print(f"{command.order_id}: card refunded")
    await app.publish(CardRefunded(order_id=command.order_id))


@app.handle(ShipOrder, once=Once(store))
async def ship(command: ShipOrder) -> None:
    outcome = OutOfStock if command.order_id == "42" else OrderShipped
    await app.publish(outcome(order_id=command.order_id))


async def wait_until_ended(order_id: str) -> str:
    """Wait until the saga of the order has ended, and return its last state."""
    while True:
        history = await checkout.history(order_id)
        if history is not None and history.state in (COMPLETED, COMPENSATED) and not history.pending:
            return history.state
        await asyncio.sleep(0.01)


async def main() -> None:
    async with app:
        await app.publish(OrderPlaced(order_id="41"))
        print("41:", await wait_until_ended("41"))
        await app.publish(OrderPlaced(order_id="42"))
        state = await wait_until_ended("42")
        print("42:", state)
    # All transitions of order 42: `await checkout.history("42")`, or: warren saga show checkout 42 --store URL


if __name__ == "__main__":
    asyncio.run(main())
