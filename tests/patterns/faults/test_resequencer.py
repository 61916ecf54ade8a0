"""The resequencer in every fault, with a real Redis and workers that are killed."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    LOST_ACKNOWLEDGEMENT,
    LOST_CONFIRM,
    Process,
    recognised,
    restart,
)
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import closed_port, free_port
from tests.support.redis import redis_server
from warren.patterns import RedisStore, Resequencer
from warren.sdk import App, Command, Queue

MATRIX = Matrix("resequencer", page="docs/patterns/resequencer.md")


class OrderStep(Command, queue="replaced"):
    number: int


@cache  # One class a queue: what it must reach is declared once.
def step_in(queue_name: str) -> type[OrderStep]:
    class StepHere(OrderStep, queue=Queue(queue_name, single_active_consumer=True), type="step"):
        pass

    return StepHere


class Stairs(Process):
    """A process that takes steps in order."""

    servers = ("redis_url",)

    def __init__(self, app: App, name: str, redis_url: str, *, handles: bool = True, **settings: Any) -> None:
        super().__init__(app, name)
        self.resequencer = Resequencer(
            name,
            store=RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE),
            key=lambda step: "stairs",
            number=lambda step: int(step.number),
            again_after=timedelta(milliseconds=50),
            # A broker that is killed may take a minute to be back.
            **{"gap_timeout": timedelta(minutes=10), **settings},
        )
        if handles:

            @self.resequencer.handle(step_in(name))
            async def step(step: Any) -> None:
                await self.handle(step.number)

            app.include(self.resequencer)

    async def publish(self, *numbers: int) -> None:
        await self.app.publish_many([step_in(self.name)(number=number) for number in numbers])

    @property
    def recognised(self) -> int:
        return self.resequencer.statistics.repeated


def both_are_recorded(stairs: Stairs) -> bool:
    return stairs.resequencer.statistics.handled == 2


async def handles_the_rest_in_order(stairs: Stairs) -> None:
    await stairs.has_handled(2, 3, 4)


async def recognised_and_goes_on(stairs: Stairs) -> None:
    await eventually(lambda: stairs.recognised >= 1, "it comes again")
    await stairs.publish(3)
    await stairs.has_handled(1, 2, 3)


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Stairs,
    "the message that it handled and those in its memory are redelivered, to the process that takes over,"
    " in order",
    handles_the_rest_in_order,
    messages=(4, 3, 2, 1),
    strikes_at=2,
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Stairs,
    "if the number was not recorded yet, it is handled again, then those that follow, in order",
    handles_the_rest_in_order,
    messages=(4, 3, 2, 1),
    strikes_at=2,
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX,
    Stairs,
    "the message is redelivered and its number is recorded already: it is acknowledged without running "
    "the handler",
    recognised_and_goes_on,
    messages=(2, 1),
    strikes_at=2,
    handled=both_are_recorded,
)
LOST_CONFIRM.of(
    MATRIX, Stairs, "the copy has the same number: it is acknowledged without running the handler", recognised
)


@MATRIX.shows(
    Fault.DUPLICATE,
    "the number is recorded already: the copy is acknowledged without running the handler",
)
@MATRIX.shows(
    Fault.REORDERING,
    "early messages wait",
)
async def test_messages_come_twice_and_in_reverse_order(redis_url: str, new_app: NewApp, name: str) -> None:
    stairs = Stairs(new_app(), name, redis_url)
    async with stairs.app:
        await stairs.publish(5, 5, 4, 4, 3, 3, 2, 2, 1, 1)
        await stairs.has_handled(1, 2, 3, 4, 5)
        await eventually(lambda: stairs.resequencer.statistics.repeated == 5, "five are known")
    assert stairs.handled == [1, 2, 3, 4, 5]


@MATRIX.shows(
    Fault.REORDERING,
    "a missing number is skipped after `gap_timeout`, and its message is dead-lettered if it arrives later",
)
async def test_a_number_comes_after_it_was_skipped(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    stairs = Stairs(new_app(), name, redis_url, gap_timeout=timedelta(milliseconds=300))
    async with stairs.app:
        await stairs.publish(1)
        await stairs.has_handled(1)
        await stairs.publish(3)
        await stairs.has_handled(1, 3)
        await stairs.publish(2)
        dead = await take_one(amqp_url, f"{name}.dead")
    assert "after it was skipped" in str(dead.headers["warren-dead-error"])
    assert stairs.handled == [1, 3]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "waiting messages are redelivered with the others of the queue, in order",
)
async def test_the_broker_is_killed_while_messages_wait(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    stairs = Stairs(App(mortal_broker.url), name, redis_url)
    async with stairs.app:
        await stairs.publish(4, 3, 2)
        await eventually(lambda: stairs.resequencer.statistics.waiting == 3, "three wait")
        await restart(mortal_broker)
        await stairs.publish(1)
        await stairs.has_handled(1, 2, 3, 4)


@MATRIX.shows(
    Fault.STORE_DOWN,
    "messages wait up to `patience`, unacknowledged",
)
async def test_the_store_is_down(new_app: NewApp, tmp_path: Path, name: str) -> None:
    port = free_port()
    stairs = Stairs(new_app(), name, f"redis://127.0.0.1:{port}/0")
    async with stairs.app as app:
        await stairs.publish(2, 1)
        await eventually(lambda: app.statistics().subscriptions[name].running == 2, "both wait for the store")
        assert stairs.handled == []
        with redis_server(tmp_path, port=port):
            await stairs.has_handled(1, 2)
            await app.stop()


@MATRIX.shows(Fault.STORE_DOWN, "then they fail and follow their retry policy")
async def test_the_store_is_down_for_longer_than_the_patience(new_app: NewApp, name: str) -> None:
    with closed_port() as port:
        stairs = Stairs(new_app(), name, f"redis://127.0.0.1:{port}/0", patience=timedelta(milliseconds=50))
        async with stairs.app as app:
            await stairs.publish(1)
            await eventually(
                lambda: app.statistics().handlers[name].failed_attempts > 1,
                "it fails, is tried again and fails",
            )
    assert stairs.handled == []


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect: gaps are measured by the clock of the process in which the messages wait",
)
async def test_the_active_process_is_an_hour_ahead(amqp_url: str, redis_url: str, name: str) -> None:
    first = Stairs(App(amqp_url, clock=SkewedClock(3600)), name, redis_url)
    async with first.app:
        await first.publish(3, 1)
        await first.has_handled(1)
    second = Stairs(App(amqp_url), name, redis_url)
    async with second.app:
        await second.publish(2)
        await second.has_handled(2, 3)
