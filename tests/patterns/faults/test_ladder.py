"""The ladder in every fault."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import DelayLadder, Once, SqliteStore
from warren.sdk import App, Delivery, Message

MATRIX = Matrix("ladder", page="docs/patterns/delay.md")

SOON = "50ms"
LATER = "600ms"
NOT_IN_THIS_TEST = "1h"


class Remind(Message):
    number: int


class Stairs:
    """An App that climbs a ladder and writes down what it meets: number, message id, and how often it had waited."""

    def __init__(self, app: App, name: str, *, once: Once | None = None) -> None:
        self.app = app
        self.ladder = DelayLadder(name, SOON, LATER, NOT_IN_THIS_TEST)
        self.met: list[tuple[int, str | None, int]] = []
        self.republished: list[bool] = []
        self.confirmed = asyncio.Event()
        """Set once the broker has confirmed all that was put: it will not be published again."""
        app.include(self.ladder)
        for step in self.ladder.steps:
            app.handle(Remind, queue=self.ladder.queue(step), concurrency=1, once=once)(self._meet)

    async def _meet(self, remind: Remind, delivery: Delivery) -> None:
        await self.before()
        self.met.append((remind.number, delivery.message_id, times_waited(delivery)))
        self.republished.append("warren-republished" in delivery.headers)
        await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""

    async def put(self, number: int, step: str = SOON) -> None:
        await self.ladder.publish(Remind(number=number), step, message_id=f"m{number}")
        self.confirmed.set()

    async def meets(self, *numbers: int) -> None:
        await eventually(lambda: len(self.met) >= len(numbers), f"it meets {numbers}")
        assert self.numbers == list(numbers)

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.met]


def times_waited(delivery: Delivery) -> int:
    """Return how often the message has expired in a waiting queue, by the broker's own count."""
    deaths: Any = delivery.headers.get("x-death", [])
    return sum(int(death["count"]) for death in deaths if death["reason"] == "expired")


async def waits(url: str, name: str) -> str | None:
    """Return the id of the first message that waits on the longest step."""
    return (await take_one(url, f"{name}.{NOT_IN_THIS_TEST}.wait.3600000")).message_id


async def stairs(worker: WorkerChannel, url: str, queue: str, stop: str) -> None:
    its = Stairs(App(url), queue)

    async def stand() -> None:
        await worker.report_and_wait(f"met {its.met}")

    if stop == "before":
        its.before = stand  # type: ignore[method-assign]
    else:
        its.after = stand  # type: ignore[method-assign]
    async with its.app:
        await its.put(9, NOT_IN_THIS_TEST)
        await its.put(1)
        await asyncio.Event().wait()


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "waiting messages are on the broker; another process handles those that had arrived, without a new delay",
)
async def test_a_process_dies_before_it_has_handled(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(stairs, url=amqp_url, queue=name, stop="before")
    await workers.wait_for("met []")
    doomed.kill()
    other = Stairs(new_app(), name)
    async with other.app:
        await other.meets(1)
        assert await waits(amqp_url, name) == "m9"
    assert other.met == [(1, "m1", 1)]


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the message is handled again at its step, with the same message id, without a new delay",
)
async def test_a_process_dies_after_it_has_handled(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(stairs, url=amqp_url, queue=name, stop="after")
    await workers.wait_for("met [(1, 'm1', 1)]")
    doomed.kill()
    other = Stairs(new_app(), name)
    async with other.app:
        await other.meets(1)
    assert other.met == [(1, "m1", 1)]


@MATRIX.shows(
    Fault.LOST_ACK,
    "as after a crash: the message is handled again, with the same message id, without a new delay",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    new_app().include(DelayLadder(name, SOON, LATER, NOT_IN_THIS_TEST))  # Its names are tidied up.
    async with Proxy(amqp_url) as proxy:
        here = Stairs(App(proxy.url), name)

        async def cut() -> None:
            if len(here.met) == 1:
                await here.confirmed.wait()
                proxy.cut()

        here.after = cut  # type: ignore[method-assign]
        async with here.app:
            await here.put(1)
            await here.meets(1, 1)
    assert here.met == [(1, "m1", 1), (1, "m1", 1)]


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the message is published again with the same message id, marked `warren-republished`: both copies "
    "are delayed, and both arrive",
)
async def test_the_confirm_is_lost(amqp_url: str, new_app: NewApp, name: str) -> None:
    here = Stairs(new_app(), name)
    async with here.app, Proxy(amqp_url) as proxy:
        away = App(proxy.url)
        ladder = DelayLadder(name, SOON, LATER, NOT_IN_THIS_TEST)
        away.include(ladder)
        async with away:
            proxy.to_client.hold()
            putting = asyncio.ensure_future(ladder.publish(Remind(number=1), SOON, message_id="m1"))
            await here.meets(1)
            proxy.cut()
            proxy.to_client.release()
            await putting
            await here.meets(1, 1)
    assert here.met == [(1, "m1", 1), (1, "m1", 1)]
    assert here.republished == [False, True]


@MATRIX.shows(
    Fault.DUPLICATE,
    "each copy is delayed and arrives, with the same message id",
)
async def test_two_copies(new_app: NewApp, name: str) -> None:
    here = Stairs(new_app(), name)
    async with here.app:
        await here.put(1)
        await here.put(1)
        await here.meets(1, 1)
    assert here.met == [(1, "m1", 1), (1, "m1", 1)]


@MATRIX.shows(Fault.DUPLICATE, "with `Once`, the handler runs for one of them")
async def test_two_copies_and_once(new_app: NewApp, name: str, tmp_path: Path) -> None:
    here = Stairs(new_app(), name, once=Once(SqliteStore(tmp_path / "once.sqlite")))
    async with here.app:
        await here.put(1)
        await here.put(1)
        await here.put(2)
        await here.meets(1, 2)


@MATRIX.shows(
    Fault.REORDERING,
    "within a step messages arrive in the order of publishing; a shorter step overtakes a longer one, and"
    " no step holds up another",
)
async def test_the_order_within_a_step_and_between_steps(amqp_url: str, new_app: NewApp, name: str) -> None:
    here = Stairs(new_app(), name)
    async with here.app:
        await here.put(9, NOT_IN_THIS_TEST)
        for number in range(1, 6):
            await here.put(number)
        await here.meets(1, 2, 3, 4, 5)
        assert await waits(amqp_url, name) == "m9"


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "waiting messages are in durable queues, and their time goes on meanwhile",
)
async def test_the_broker_is_killed_while_they_wait(mortal_broker: BrokerProcess, name: str) -> None:
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
    here = Stairs(App(mortal_broker.url), name)
    async with here.app:
        # It would come before the other one if that one's time had begun anew.
        await here.put(2)
        await here.meets(1, 2)
        assert await waits(mortal_broker.url, name) == "m9"


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "messages that were being handled are redelivered",
)
async def test_the_broker_is_killed_while_one_is_handled(mortal_broker: BrokerProcess, name: str) -> None:
    here = Stairs(App(mortal_broker.url), name)

    async def restart() -> None:
        if len(here.met) == 1:
            await here.confirmed.wait()
            await asyncio.to_thread(mortal_broker.kill)
            await asyncio.to_thread(mortal_broker.start)

    here.after = restart  # type: ignore[method-assign]
    async with here.app:
        await here.put(1)
        await eventually(lambda: len(here.met) == 2, "it comes again")
    assert here.met == [(1, "m1", 1), (1, "m1", 1)]


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store; messages wait in the broker's queues",
)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect: the broker alone measures a step, as a duration",
)
async def test_clocks_an_hour_ahead_and_an_hour_behind(amqp_url: str, new_app: NewApp, name: str) -> None:
    new_app().include(DelayLadder(name, SOON, LATER, NOT_IN_THIS_TEST))  # Its names are tidied up.
    ahead, behind = (Stairs(App(amqp_url, clock=SkewedClock(s)), name) for s in (7200.0, -7200.0))
    async with ahead.app, behind.app:
        for number, at in enumerate((ahead, behind), 1):
            await at.put(number + 8, NOT_IN_THIS_TEST)
            await at.put(number)
        await eventually(lambda: sorted(ahead.numbers + behind.numbers) == [1, 2], "what is due arrives")
        assert [await waits(amqp_url, name) for _ in range(2)] == ["m9", "m10"]
