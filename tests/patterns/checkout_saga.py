"""A shop whose checkout is a saga, and the services that it talks to, which write down what they were told."""

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


class At(StrEnum):
    PAYING = "paying"
    SHIPPING = "shipping"


class Order(BaseModel):
    order_id: str
    charge: str = ""
    notes: int = 0


class Checkout:
    """One process that takes part in the saga.

    :param wait: for undone steps until the next is undone.
    :param room: how many messages the queue of Charge takes before it refuses more.
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
            # However long a machine takes over what has to come before.
            **{"early_attempts": 500, **settings},
        )
        self.told: list[str] = []
        """Types of the messages that the services got, in order."""
        self.ids: dict[str, set[str | None]] = {}

        @self.saga.starts(Placed)
        def placed(order: Placed) -> TransitionTo[Order]:
            return TransitionTo(
                At.PAYING,
                Order(order_id=order.order_id),
                send=[Charge(order_id=order.order_id)],
                compensation=Release(order_id=order.order_id),
            )

        @self.saga.on(At.PAYING, Noted)
        def noted(order: Order, note: Noted) -> StayInState[Order]:
            return StayInState(order.model_copy(update={"notes": order.notes + 1}))

        @self.saga.on(At.PAYING, Charged)
        def charged(order: Order, event: Charged) -> TransitionTo[Order]:
            refund = Refund(charge=event.charge)
            return TransitionTo(
                At.SHIPPING,
                order.model_copy(update={"charge": event.charge}),
                send=[Ship(order_id=order.order_id)],
                compensation=Compensation(refund, until=Refunded) if wait else refund,
            )

        self.saga.receives(Refunded)

        @self.saga.on(At.SHIPPING, Shipped)
        def shipped(order: Order, event: Shipped) -> CompleteSaga[Order] | CompensateSaga[Order]:
            return CompleteSaga() if event.fine else CompensateSaga("no stock")

        @self.saga.on(COMPENSATED, Charged)
        def charged_late(order: Order, event: Charged) -> StayInState[Order]:
            return StayInState(compensation=Refund(charge=event.charge))

        @self.saga.timeout(At.PAYING, after=pay_within)
        def unpaid(order: Order) -> CompensateSaga[Order]:
            return CompensateSaga("not paid in time")

        self.app.include(self.saga)

    def listen(self) -> None:
        """Be the services as well."""

        async def told(message: Command, delivery: Delivery) -> None:
            self.told.append(message.wire_type)
            self.ids.setdefault(message.wire_type, set()).add(delivery.message_id)

        for kind in self.services:
            self.app.handle(kind)(told)

    async def is_told(self, *types: str) -> None:
        await eventually(
            lambda: all(kind in self.told for kind in types), f"{types} are told, not {self.told}"
        )

    async def is_at(self, key: str, state: str) -> SagaHistory:
        async def there() -> bool:
            history = await self.saga.history(key)
            return history is not None and history.state == state and not history.pending

        await eventually(there, f"the saga of {key} is {state}")
        history = await self.saga.history(key)
        assert history is not None
        return history
