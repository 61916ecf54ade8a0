"""The order service: each placed order is billed, confirmed by mail, and shipped."""

from pathlib import Path

from warren.sdk import App, Command, Event


class OrderPlaced(Event, exchange="orders", key="order.placed", audience=["billing", "mails"]):
    order_id: str
    email: str


class ShipOrder(Command, queue="shipping"):
    order_id: str


def bank_answers() -> bool:
    return not Path("bank.down").exists()


app = App()  # connects to the broker in AMQP_URL


@app.handle(OrderPlaced, queue="billing")
async def bill(order: OrderPlaced) -> None:
    if not bank_answers():
        raise OSError("the bank does not answer")
    print(f"order {order.order_id}: billed")
    await app.publish(ShipOrder(order_id=order.order_id))


@app.handle(OrderPlaced, queue="mails")
async def confirm(order: OrderPlaced) -> None:
    print(f"order {order.order_id}: confirmed to {order.email}")


@app.handle(ShipOrder)
async def ship(command: ShipOrder) -> None:
    print(f"order {command.order_id}: shipped")
