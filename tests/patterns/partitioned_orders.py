"""A process that publishes or handles numbered orders by partitions, each key in its order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Literal

from warren.patterns import Once, Partitions
from warren.sdk import App, Event


class OrderHandler:
    """Handler of orders that records their order and how many run at the same time.

    :param handles: false for a process that only publishes
    :ivar done: keys and numbers, in the order in which they were handled
    :ivar most_at_once_per_key: highest number of orders of one key that were handled at the same time
    :ivar most_at_once: the same of all keys together
    """

    def __init__(
        self,
        app: App,
        name: str,
        *,
        by: Literal["publisher", "broker"] = "publisher",
        count: int = 4,
        handles: bool = True,
        once: Once | None = None,
    ) -> None:
        self.partitions = Partitions(name, count, key=lambda order: str(order.key), by=by)

        class Order(Event, exchange=self.partitions.exchange, type="order"):
            key: str
            number: int

        self.app = app
        self.order = Order
        self.done: list[tuple[str, int]] = []
        self.running: defaultdict[str, int] = defaultdict(int)
        self.most_at_once_per_key = self.most_at_once = 0

        async def order(order: Order) -> None:
            self.running[order.key] += 1
            self.most_at_once_per_key = max(self.most_at_once_per_key, self.running[order.key])
            self.most_at_once = max(self.most_at_once, sum(self.running.values()))
            await asyncio.sleep(0.001)
            await self.before(order.number)
            self.running[order.key] -= 1
            self.done.append((order.key, order.number))
            await self.after(order.number)

        if handles:
            self.partitions.handle(Order, once=once)(order)
        app.include(self.partitions)

    async def before(self, number: int) -> None:
        """Run before the effect; tests override this."""

    async def after(self, number: int) -> None:
        """Run after the effect; tests override this."""

    async def publish(self, count: int, keys: int) -> None:
        async def one_key(key: int) -> None:
            for number in range(count):
                await self.partitions.publish(self.order(key=f"k{key}", number=number))

        await asyncio.gather(*map(one_key, range(keys)))
