"""A shop whose checkout is a saga, and the services that receive its commands and record them."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from tests.support.polling import eventually
from warren.patterns import (
    COMPENSATED,
    CompensateSaga,
    Compensation,
    CompleteSaga,
    Saga,
    SagaHistory,
    StayInState,
    Store,
    TransitionTo,
)
from warren.sdk import App, Command, Delivery, Event, Queue


class CheckoutState(StrEnum):
    PAYING = "paying"
    SHIPPING = "shipping"


class Order(BaseModel):
    order_id: str
    charge: str = ""
    notes: int = 0


class Checkout:
    """One process that takes part in the saga.

    :param wait: compensate a step only after the previous compensation is confirmed by an event
    :param room: maximum length of the queue of Charge, which refuses further messages
    """

    def __init__(
        self,
        app: App,
        store: Store,
        name: str,
        *,
        pay_within: timedelta = timedelta(hours=1),
        wait: bool = True,
        room: int | None = None,
        **settings: Any,
    ) -> None:
        class Placed(
            Event, exchange=f"{name}.orders", key="placed", audience=[f"{name}.saga"], type="placed"
        ):
            order_id: str

        class Charged(
            Event, exchange=f"{name}.orders", key="charged", audience=[f"{name}.saga"], type="charged"
        ):
            order_id: str
            charge: str = "c1"

        class Noted(Event, exchange=f"{name}.orders", key="noted", audience=[f"{name}.saga"], type="noted"):
            order_id: str
            number: int = 0

        class Refunded(
            Event, exchange=f"{name}.orders", key="refunded", audience=[f"{name}.saga"], type="refunded"
        ):
            order_id: str

        class Shipped(Command, queue=f"{name}.shipped", type="shipped"):
            order_id: str
            fine: bool = True

        charges = Queue(f"{name}.charge", max_length=room, overflow="reject-publish" if room else None)

        class Charge(Command, queue=charges, type="charge"):
            order_id: str

        class Refund(Command, queue=f"{name}.refund", type="refund"):
            charge: str

        class Release(Command, queue=f"{name}.release", type="release"):
            order_id: str

        class Ship(Command, queue=f"{name}.ship", type="ship"):
            order_id: str

        self.placed, self.charged, self.noted, self.shipped, self.refunded = (
            Placed,
            Charged,
            Noted,
            Shipped,
            Refunded,
        )
        self.charge = Charge
        self.services = (Charge, Refund, Release, Ship)
        self.app = app
        self.saga = Saga(
            name,
            Order,
            store=store,
            key="order_id",
            sends=self.services,
            early_after=timedelta(milliseconds=100),
            # Enough for a slow machine to handle the earlier event first.
            **{"early_attempts": 500, **settings},
        )
        self.received: list[str] = []
        """Types of the commands that the services received, in order."""
        self.ids: dict[str, set[str | None]] = {}

        @self.saga.starts(Placed)
        def placed(order: Placed) -> TransitionTo[Order]:
            return TransitionTo(
                CheckoutState.PAYING,
                Order(order_id=order.order_id),
                send=[Charge(order_id=order.order_id)],
                compensation=Release(order_id=order.order_id),
            )

        @self.saga.on(CheckoutState.PAYING, Noted)
        def noted(order: Order, note: Noted) -> StayInState[Order]:
            return StayInState(order.model_copy(update={"notes": order.notes + 1}))

        @self.saga.on(CheckoutState.PAYING, Charged)
        def charged(order: Order, event: Charged) -> TransitionTo[Order]:
            refund = Refund(charge=event.charge)
            return TransitionTo(
                CheckoutState.SHIPPING,
                order.model_copy(update={"charge": event.charge}),
                send=[Ship(order_id=order.order_id)],
                compensation=Compensation(refund, until=Refunded) if wait else refund,
            )

        self.saga.receives(Refunded)

        @self.saga.on(CheckoutState.SHIPPING, Shipped)
        def shipped(order: Order, event: Shipped) -> CompleteSaga[Order] | CompensateSaga[Order]:
            return CompleteSaga() if event.fine else CompensateSaga("no stock")

        @self.saga.on(COMPENSATED, Charged)
        def charged_late(order: Order, event: Charged) -> StayInState[Order]:
            return StayInState(compensation=Refund(charge=event.charge))

        @self.saga.timeout(CheckoutState.PAYING, after=pay_within)
        def unpaid(order: Order) -> CompensateSaga[Order]:
            return CompensateSaga("not paid in time")

        self.app.include(self.saga)

    def handle_commands(self) -> None:
        """Handle the saga's commands as the services do, and record them."""

        async def receive(message: Command, delivery: Delivery) -> None:
            self.received.append(message.wire_type)
            self.ids.setdefault(message.wire_type, set()).add(delivery.message_id)

        for kind in self.services:
            self.app.handle(kind)(receive)

    async def wait_for_commands(self, *types: str) -> None:
        await eventually(
            lambda: all(kind in self.received for kind in types), f"{types} are received, not {self.received}"
        )

    async def wait_for_state(self, key: str, state: str) -> SagaHistory:
        async def is_reached() -> bool:
            history = await self.saga.history(key)
            return history is not None and history.state == state and not history.pending

        await eventually(is_reached, f"the saga of {key} is {state}")
        history = await self.saga.history(key)
        assert history is not None
        return history
