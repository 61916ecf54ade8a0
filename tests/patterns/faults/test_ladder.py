"""The ladder in every fault."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    BROKER_KILLED_WHILE_HANDLING,
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    DUPLICATE,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    copy_handled,
    handled_again,
    handled_by_successor,
    recognised,
)
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from warren.patterns import DelayLadder, Once, SqliteStore
from warren.sdk import App, Delivery, Message

MATRIX = Matrix("ladder", page="docs/patterns/delay.md")

SOON = "50ms"
LATER = "600ms"
NOT_IN_THIS_TEST = "1h"


class Remind(Message):
    number: int


class Stairs(Process):
    """A process with a ladder that records of each message: number, message id, and how often it had waited."""

    servers = ("tmp_path",)

    def __init__(
        self, app: App, name: str, tmp_path: str, *, handles: bool = True, once: bool = False
    ) -> None:
        super().__init__(app, name)
        self.once = Once(SqliteStore(Path(tmp_path) / "once.sqlite")) if once else None
        self.ladder = DelayLadder(name, SOON, LATER, NOT_IN_THIS_TEST)
        self.met: list[tuple[int, str | None, int]] = []
        self.republished: list[bool] = []
        app.include(self.ladder)
        if handles:
            for step in self.ladder.steps:
                app.handle(Remind, queue=self.ladder.queue(step), concurrency=1, once=self.once)(self._meet)

    async def _meet(self, remind: Remind, delivery: Delivery) -> None:
        await self.before(remind.number)
        self.met.append((remind.number, delivery.message_id, times_waited(delivery)))
        self.republished.append("warren-republished" in delivery.headers)
        self.handled.append(remind.number)
        await self.after(remind.number)

    @property
    def recognised(self) -> int:
        assert self.once is not None
        return self.once.statistics.duplicates

    async def prepare(self) -> None:
        await self.put(9, NOT_IN_THIS_TEST)

    async def publish(self, number: int) -> None:
        await self.put(number)

    async def put(self, number: int, step: str = SOON) -> None:
        await self.ladder.publish(Remind(number=number), step, message_id=f"m{number}")


def times_waited(delivery: Delivery) -> int:
    """Return how often the message has expired in a waiting queue, by the broker's own count."""
    deaths: Any = delivery.headers.get("x-death", [])
    return sum(int(death["count"]) for death in deaths if death["reason"] == "expired")


async def waits(url: str, name: str) -> str | None:
    """Return the id of the first message that waits on the longest step."""
    return (await take_one(url, f"{name}.{NOT_IN_THIS_TEST}.wait.3600000")).message_id


async def handled_without_a_new_delay(stairs: Stairs) -> None:
    await handled_by_successor(stairs)
    assert await waits(str(stairs.app.url), stairs.name) == "m9"
    await stairs.app.stop()
    assert stairs.met == [(1, "m1", 1)]


async def handled_again_without_a_new_delay(stairs: Stairs) -> None:
    await handled_again(stairs)
    await stairs.app.stop()
    assert set(stairs.met) == {(1, "m1", 1)}


async def one_is_handled(stairs: Stairs) -> None:
    await stairs.publish(2)
    await stairs.has_handled(1, 2)
    await recognised(stairs)


async def both_copies_arrive(stairs: Stairs) -> None:
    await copy_handled(stairs)
    await stairs.app.stop()
    assert stairs.met == [(1, "m1", 1), (2, "m2", 1), (2, "m2", 1)]
    assert stairs.republished == [False, False, True]


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Stairs,
    "waiting messages are on the broker; another process handles those that had arrived, without a new delay",
    handled_without_a_new_delay,
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Stairs,
    "the message is handled again at its step, with the same message id, without a new delay",
    handled_without_a_new_delay,
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX,
    Stairs,
    "as after a crash: the message is handled again, with the same message id, without a new delay",
    handled_again_without_a_new_delay,
)
LOST_CONFIRM.of(
    MATRIX,
    Stairs,
    "the message is published again with the same message id, marked `warren-republished`: both copies "
    "are delayed, and both arrive",
    both_copies_arrive,
)


DUPLICATE.of(
    MATRIX,
    Stairs,
    "each copy is delayed and arrives, with the same message id",
    handled_again_without_a_new_delay,
)
DUPLICATE.of(MATRIX, Stairs, "with `Once`, the handler runs for one of them", one_is_handled, once=True)


@MATRIX.shows(
    Fault.REORDERING,
    "within a step messages arrive in the order of publishing; a shorter step overtakes a longer one, and"
    " no step holds up another",
)
async def test_the_order_within_a_step_and_between_steps(
    amqp_url: str, new_app: NewApp, name: str, tmp_path: Path
) -> None:
    stairs = Stairs(new_app(), name, str(tmp_path))
    async with stairs.app:
        await stairs.put(9, NOT_IN_THIS_TEST)
        for number in range(1, 6):
            await stairs.put(number)
        await stairs.has_handled(1, 2, 3, 4, 5)
        assert await waits(amqp_url, name) == "m9"


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "waiting messages are in durable queues, and their time goes on meanwhile",
)
async def test_the_broker_is_killed_while_messages_wait(
    mortal_broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    before = App(mortal_broker.url)
    ladder = DelayLadder(name, SOON, LATER, NOT_IN_THIS_TEST)
    before.include(ladder)
    async with before:
        await ladder.publish(Remind(number=9), NOT_IN_THIS_TEST, message_id="m9")
        await ladder.publish(Remind(number=1), LATER, message_id="m1")
        over = loop.time() + ladder.steps[1].total_seconds()
    await asyncio.to_thread(mortal_broker.kill)
    await eventually(lambda: loop.time() >= over, "its time is over while nobody is there")
    await asyncio.to_thread(mortal_broker.start)
    stairs = Stairs(App(mortal_broker.url), name, str(tmp_path))
    async with stairs.app:
        # It would come before the other one if that one's time had begun anew.
        await stairs.put(2)
        await stairs.has_handled(1, 2)
        assert await waits(mortal_broker.url, name) == "m9"


BROKER_KILLED_WHILE_HANDLING.of(
    MATRIX, Stairs, "messages that were being handled are redelivered", handled_again_without_a_new_delay
)
MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store; messages wait in the broker's queues",
)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect: the broker alone measures a step, as a duration",
)
async def test_clocks_are_two_hours_wrong(amqp_url: str, new_app: NewApp, name: str, tmp_path: Path) -> None:
    new_app().include(DelayLadder(name, SOON, LATER, NOT_IN_THIS_TEST))  # Its names are tidied up.
    ahead, behind = (
        Stairs(App(amqp_url, clock=SkewedClock(s)), name, str(tmp_path)) for s in (7200.0, -7200.0)
    )
    async with ahead.app, behind.app:
        for number, at in enumerate((ahead, behind), 1):
            await at.put(number + 8, NOT_IN_THIS_TEST)
            await at.put(number)
        await eventually(lambda: sorted(ahead.handled + behind.handled) == [1, 2], "what is due arrives")
        assert [await waits(amqp_url, name) for _ in range(2)] == ["m9", "m10"]
