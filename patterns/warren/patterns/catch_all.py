"""Catch-all: messages that an exchange cannot route are kept, counted and reported.

Guarantees: the exchange has an alternate exchange. The broker routes a message that matches no binding there at once,
to the queue `<exchange>.unrouted`, which keeps it; `warren dlq` shows it, and replays it when the missing binding
exists. The message's publisher gets no return (RabbitMQ, "Alternate Exchanges": a message that the alternate exchange
routes is not returned, mandatory or not). A copy goes to a second queue of limited length, from which one of the
processes that include the CatchAll counts and logs it, and calls the alert.

Costs: two more queues. A message that is routed costs nothing more; one that is not is stored in both queues.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar, Final

from opentelemetry import metrics

from warren.sdk import App, Binding, Delivery, Exchange, Queue
from warren.sdk.extend import IncludedComponent

log: logging.Logger = logging.getLogger("warren.patterns")

MAX_ALERTS: Final = 1000
ALERT_TTL: Final = timedelta(hours=1)

_unrouted = metrics.get_meter("warren.patterns").create_counter(
    "warren.unrouted.messages",
    unit="{message}",
    description="Messages that no binding of their exchange matched",
)


class CatchAll(IncludedComponent):
    """Queue for all messages that an exchange cannot route, with an optional alert for each of them.

    Use: `orders = CatchAll("orders", alert=notify)`, then `app.include(orders)` in the processes that shall run the
    alert. All processes must declare the exchange with the same arguments: `class OrderPlaced(Event,
    exchange=orders.exchange, ...)`.

    :param exchange: the exchange, or its name.
    :param alert: called with each unroutable message, in one of the processes that include the CatchAll. A call that
        raises an error is retried as a handler is; after its last attempt the next message is reported. Without an
        alert, messages are counted and logged.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        exchange: str | Exchange,
        *,
        alert: Callable[[Delivery], Awaitable[object] | object] | None = None,
    ) -> None:
        base = exchange if isinstance(exchange, Exchange) else Exchange(exchange)
        name = f"{base.name}.unrouted"
        self.exchange: Exchange = replace(base, alternate_exchange=name)
        self.queue: Queue = Queue(name, dead_letter_exchange=None)
        """Queue that keeps the unroutable messages."""
        self.unrouted: int = 0
        """Number of unroutable messages that were reported to this process."""
        self._alert = alert
        # A separate queue, so that an alert removes no message; bounded, because it may have no consumer.
        self._alerts = Queue(
            f"{name}.alerts",
            type="classic",
            dead_letter_exchange=None,
            max_length=MAX_ALERTS,
            message_ttl=ALERT_TTL,
        )
        super().__init__()

    @property
    def inclusion_title(self) -> str:
        return f"CatchAll {self.exchange.name}"

    @property
    def lost_without_app(self) -> str:
        return "its alert is not called" if self._alert is not None else ""

    def register(self, app: App) -> None:
        super().register(app)
        unrouted = Exchange(self.queue.name, type="fanout")
        app.declare(self.exchange, unrouted, self.queue, self._alerts)
        app.declare(Binding(unrouted.name, self.queue.name), Binding(unrouted.name, self._alerts.name))
        app.handle(bytes, queue=self._alerts)(self._report)

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App itself consumes the copies of unroutable messages, and calls the
        alert for each of them."""

    async def on_stop(self) -> None:
        """Do nothing when the App stops: there is no connection, file or task to close."""

    async def _report(self, body: bytes, delivery: Delivery) -> None:
        self.unrouted += 1
        _unrouted.add(1, {"messaging.destination.name": self.exchange.name})
        log.warning(
            "event=catch_all.message_kept exchange=%s key=%s message_id=%s queue=%s",
            self.exchange.name, delivery.routing_key, delivery.message_id, self.queue.name,
        )  # fmt: skip
        if self._alert is not None:
            result = self._alert(delivery)
            if inspect.isawaitable(result):
                await result


__all__ = ["CatchAll"]
