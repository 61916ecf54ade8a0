"""The catch-all in every fault."""

from __future__ import annotations

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    copy_handled,
    handled_again,
    handled_by_successor,
    restart,
)
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from warren.patterns import CatchAll, ParkingLot
from warren.sdk import App, Delivery

MATRIX = Matrix("catch-all", page="docs/patterns/immediate.md")


class Alarm(Process):
    """A process that is alerted of unroutable messages, whose routing keys are numbers."""

    def __init__(self, app: App, name: str, *, handles: bool = True) -> None:
        super().__init__(app, name)
        self.orders = CatchAll(f"{name}.orders", alert=self._alert)
        if handles:
            app.include(self.orders)

    async def _alert(self, delivery: Delivery) -> None:
        await self.handle(int(delivery.routing_key))

    async def publish(self, number: int) -> None:
        await self.app.publish(b"", exchange=f"{self.name}.orders", key=str(number))

    async def stand_by(self) -> None:
        await super().stand_by()
        await self.keeps(1)

    async def keeps(self, *numbers: int) -> None:
        async def kept() -> bool:
            async with ParkingLot(str(self.app.url), self.orders.queue.name) as lot:
                return [message.key async for message in lot] == list(map(str, numbers))

        await eventually(kept, f"{numbers} are kept")


async def kept_and_reported(alarm: Alarm) -> None:
    await handled_by_successor(alarm)
    await alarm.keeps(1)


async def kept_and_reported_again(alarm: Alarm) -> None:
    await handled_again(alarm)
    await alarm.keeps(1)


async def kept_twice_and_reported_twice(alarm: Alarm) -> None:
    await copy_handled(alarm)
    await alarm.keeps(1, 2, 2)


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Alarm,
    "another process reports the message; the message itself is kept all the time",
    kept_and_reported,
)
CRASH_AFTER_EFFECT.of(MATRIX, Alarm, "the message is reported again", kept_and_reported)
LOST_ACKNOWLEDGEMENT.of(MATRIX, Alarm, "the message is reported again", kept_and_reported_again)
LOST_CONFIRM.of(
    MATRIX,
    Alarm,
    "the message is published again with the same id; it is kept twice and reported twice",
    kept_twice_and_reported_twice,
)


@MATRIX.shows(
    Fault.DUPLICATE,
    "each copy is kept and reported",
)
@MATRIX.shows(
    Fault.REORDERING,
    "messages are kept in the order in which they were published",
)
async def test_messages_and_duplicates_are_kept_in_order(new_app: NewApp, name: str) -> None:
    alarm = Alarm(new_app(), name)
    async with alarm.app:
        for number in (1, 2, 2, 3):
            await alarm.publish(number)
        await alarm.keeps(1, 2, 2, 3)
        await eventually(lambda: sorted(alarm.handled) == [1, 2, 2, 3], "all are reported")


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "kept messages are on the disk; a report may be repeated, or in rare cases lost",
)
async def test_the_broker_is_killed(mortal_broker: BrokerProcess, name: str) -> None:
    alarm = Alarm(App(mortal_broker.url), name)
    async with alarm.app:
        await alarm.publish(1)
        await restart(mortal_broker)
        await eventually(lambda: alarm.app.ready, "the App is back")
        await alarm.publish(2)
        await alarm.keeps(1, 2)
        await eventually(lambda: 2 in alarm.handled, "it is reported")


MATRIX.spared(
    Fault.STORE_DOWN,
    "there is no store: messages are kept in a queue",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the pattern reads no clock",
)
