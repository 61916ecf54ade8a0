"""The payment service: an order that is not paid within 30 minutes is cancelled."""

import os
from datetime import timedelta

from orders import OrderPlaced
from warren.patterns import Deadline, DeadlineOutcome, SqliteStore, Store
from warren.sdk import App, Command, Event


class OrderPaid(Event, exchange="orders", key="order.paid"):
    order_id: str


class CancelOrder(Command, queue="cancelling"):
    order_id: str


def payments(store: Store, pay_within: timedelta) -> App:
    app = App()
    unpaid = Deadline(
        "unpaid",
        after=pay_within,
        signal=lambda order_id: CancelOrder(order_id=order_id),
        store=store,
    )
    app.include(unpaid)

    @app.handle(OrderPlaced, queue="deadlines")
    async def wait_for_payment(order: OrderPlaced) -> None:
        await unpaid.start(order.order_id)

    @app.handle(OrderPaid, queue="payments")
    async def paid(payment: OrderPaid) -> None:
        match await unpaid.complete(payment.order_id):
            case DeadlineOutcome.WON:
                print(f"order {payment.order_id}: paid in time")
            case DeadlineOutcome.LATE:
                print(f"order {payment.order_id}: paid too late, refunded")
            case DeadlineOutcome.REPEATED:
                print(f"order {payment.order_id}: paid twice, refunded once")

    @app.handle(CancelOrder)
    async def cancel(command: CancelOrder) -> None:
        print(f"order {command.order_id}: cancelled")

    return app


app = payments(SqliteStore("decisions.sqlite"), timedelta(seconds=int(os.environ.get("PAY_WITHIN", 1800))))
