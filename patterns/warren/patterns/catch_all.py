"""Catch-all: what an exchange cannot route is kept, counted, and somebody is told.

Guarantees: a message that no binding matches goes to the alternate exchange in the same step of the broker, and from
there to the queue `<exchange>.unrouted`, which keeps it; `warren dlq` looks at it and replays it when the binding is there.
Its publisher is not told (RabbitMQ, "Alternate Exchanges": what the alternate took is not returned, mandatory or not);
those who watch are. Costs nothing as long as everything is routed; then two queues.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from opentelemetry import metrics

from warren.sdk import App, Binding, Delivery, Exchange, Queue

log: logging.Logger = logging.getLogger("warren.patterns")

ALERTS: Final = 1000
ALERTS_LIVE: Final = timedelta(hours=1)

_unrouted = metrics.get_meter("warren.patterns").create_counter(
    "warren.unrouted.messages",
    unit="{message}",
    description="Messages that no binding of their exchange matched",
)


class CatchAll:
    """`orders = CatchAll("orders", alert=tell_someone)`; `app.include(orders)` where the alert shall run.

    The exchange must be declared alike by all: `class OrderPlaced(Event, exchange=orders.exchange, ...)`.

    :param exchange: the exchange that is watched.
    :param alert: called with each message that was not routed, in one of the processes that include it; without it, it
        is counted and logged. Should it fail, it is called again as a handler is, and then for the next message.
    """

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
        """Where the messages are kept."""
        self.unrouted: int = 0
        """How many this process has been told of."""
        self._alert = alert
        # Apart, so that an alert takes no message away; and bounded, because nobody may be there to hear it.
        self._alerts = Queue(
            f"{name}.alerts",
            type="classic",
            dead_letter_exchange=None,
            max_length=ALERTS,
            message_ttl=ALERTS_LIVE,
        )

    def register(self, app: App) -> None:
        unrouted = Exchange(self.queue.name, type="fanout")
        app.declare(self.exchange, unrouted, self.queue, self._alerts)
        app.declare(Binding(unrouted.name, self.queue.name), Binding(unrouted.name, self._alerts.name))
        app.handle(bytes, queue=self._alerts)(self._told)

    async def on_start(self) -> None:
        """Nothing to begin."""

    async def on_stop(self) -> None:
        """Nothing to end."""

    async def _told(self, body: bytes, delivery: Delivery) -> None:
        self.unrouted += 1
        _unrouted.add(1, {"messaging.destination.name": self.exchange.name})
        log.warning(
            "no binding matches: exchange=%s key=%s message_id=%s kept_in=%s",
            self.exchange.name, delivery.routing_key, delivery.message_id, self.queue.name,
        )  # fmt: skip
        if self._alert is not None:
            answer = self._alert(delivery)
            if inspect.isawaitable(answer):
                await answer


__all__ = ["CatchAll"]
