"""Partitions in every fault, with workers that are killed."""

from __future__ import annotations

from tests.patterns.conftest import PATIENCE
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    DUPLICATE,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    handled_again,
    recognised,
    restart,
)
from tests.patterns.partitioned_orders import OrderHandler
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from warren.patterns import Once, RedisStore
from warren.sdk import App

MATRIX = Matrix("partitions", page="docs/patterns/partitions.md")


class Orders(Process):
    """A process that publishes and handles the orders of one key in one partition."""

    servers = ("redis_url",)

    def __init__(
        self, app: App, name: str, redis_url: str, *, handles: bool = True, once: bool = False
    ) -> None:
        super().__init__(app, name)
        self.once = Once(RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE)) if once else None
        self.handler = OrderHandler(app, name, count=1, handles=handles, once=self.once)
        # The handler's own record is written between these two.
        self.handler.before = self._before  # type: ignore[method-assign]
        self.handler.after = self._after  # type: ignore[method-assign]

    async def _before(self, number: int) -> None:
        await self.before(number)

    async def _after(self, number: int) -> None:
        self.handled.append(number)
        await self.after(number)

    async def publish(self, number: int) -> None:
        await self.handler.partitions.publish(
            self.handler.order(key="k0", number=number), message_id=f"m{number}"
        )

    @property
    def recognised(self) -> int:
        assert self.once is not None
        return self.once.statistics.duplicates


async def handles_the_rest_in_order(orders: Orders) -> None:
    await eventually(lambda: 3 in orders.handled, "the other one goes on")
    await orders.app.stop()
    assert orders.handled[-3:] == [1, 2, 3]


async def handled_again_in_order(orders: Orders) -> None:
    await eventually(lambda: orders.handled.count(1) == 2 and orders.handled[-1] == 3, "it goes on")
    await orders.app.stop()
    assert orders.handled[-3:] == [1, 2, 3]
    assert orders.handled.count(1) == 2


async def handled_one_after_the_other(orders: Orders) -> None:
    await handled_again(orders)
    assert orders.handler.most_at_once_per_key == 1


async def copy_handled_before_the_next(orders: Orders) -> None:
    await orders.publish(3)
    await eventually(lambda: 3 in orders.handled, "it goes on")
    assert orders.handled == [1, 2, 2, 3]


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Orders,
    "another process takes over: the message is redelivered, before those that follow it",
    handles_the_rest_in_order,
    messages=(0, 1, 2, 3),
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Orders,
    "another process takes over: the message is handled again, then those that follow",
    handles_the_rest_in_order,
    messages=(0, 1, 2, 3),
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX,
    Orders,
    "the message is handled again, then those that follow",
    handled_again_in_order,
    messages=(0, 1, 2, 3),
    handled=lambda orders: 1 in orders.handled,
)
LOST_CONFIRM.of(
    MATRIX,
    Orders,
    "the message is published again with the same id; if publishes are awaited, the copy comes before the"
    " messages that follow",
    copy_handled_before_the_next,
)


DUPLICATE.of(MATRIX, Orders, "the message is handled twice, one after the other", handled_one_after_the_other)
DUPLICATE.of(MATRIX, Orders, "`once=Once(store)` recognises the second", recognised, once=True)
MATRIX.spared(
    Fault.REORDERING,
    "messages are handled in the order in which the broker received them; a `Resequencer` orders them by "
    "number instead",
)
MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the pattern reads no clock",
)


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "unacknowledged messages are redelivered, in order",
)
async def test_the_broker_is_killed_while_messages_wait(mortal_broker: BrokerProcess, name: str) -> None:
    publisher = OrderHandler(App(mortal_broker.url), name, handles=False)
    handler = OrderHandler(App(mortal_broker.url), name)
    async with publisher.app:
        await publisher.publish(3, keys=5)
        await restart(mortal_broker)
        async with handler.app:
            await eventually(lambda: len(handler.done) == 15, "all are done")
    assert all([number for own, number in handler.done if own == f"k{key}"] == [0, 1, 2] for key in range(5))
