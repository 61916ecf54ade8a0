"""The resequencer in every fault, with a real Redis and workers that are killed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import closed_port, free_port
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
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


class Stairs:
    """An App that takes steps in order."""

    def __init__(self, app: App, name: str, redis: str, **settings: Any) -> None:
        self.app = app
        self.name = name
        self.taken: list[int] = []
        self.resequencer = Resequencer(
            name,
            store=RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE),
            key=lambda step: "stairs",
            number=lambda step: int(step.number),
            again_after=timedelta(milliseconds=50),
            # A broker that is killed may take a minute to be back.
            **{"gap_timeout": timedelta(minutes=10), **settings},
        )

        @self.resequencer.handle(step_in(name))
        async def step(step: Any) -> None:
            await self.before(step.number)
            self.taken.append(step.number)
            await self.after(step.number)

        app.include(self.resequencer)

    async def before(self, number: int) -> None:
        """Run before the effect; tests override this."""

    async def after(self, number: int) -> None:
        """Run after the effect; tests override this."""

    async def send(self, app: App, *numbers: int) -> None:
        await app.publish_many([step_in(self.name)(number=number) for number in numbers])

    async def has_taken(self, *numbers: int) -> None:
        await eventually(lambda: self.taken == list(numbers), f"{numbers} are taken, not {self.taken}")


async def climber(worker: WorkerChannel, url: str, name: str, redis: str, stop: str) -> None:
    """Handle steps in a worker that stops before or after step 2."""
    stairs = Stairs(App(url), name, redis)

    async def before(number: int) -> None:
        if (number, stop) == (2, "before"):
            await worker.report_and_wait("stands still")

    async def after(number: int) -> None:
        worker.report(f"took {number}")
        if (number, stop) == (2, "after"):
            await worker.report_and_wait("stands still")

    stairs.before, stairs.after = before, after  # type: ignore[method-assign]
    async with stairs.app:
        await worker.report_and_wait("ready")


async def succeeded(url: str, redis: str, workers: Workers, new_app: NewApp, name: str, stop: str) -> Stairs:
    """Kill a worker at step 2 while 3 and 4 wait in its memory; check that the next one gets them all."""
    doomed = await workers.start(climber, url=url, name=name, redis=redis, stop=stop)
    await workers.wait_for("ready")
    stairs = Stairs(new_app(), name, redis)
    async with stairs.app as app:
        await stairs.send(app, 4, 3, 2, 1)
        await workers.wait_for("stands still")
        assert stairs.taken == []
        doomed.kill()
        await stairs.has_taken(2, 3, 4)
    return stairs


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the message that it handled and those in its memory are redelivered, to the process that takes over,"
    " in order",
)
async def test_who_is_active_dies_before_its_effect(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    await succeeded(amqp_url, redis_url, workers, new_app, name, "before")
    assert workers.reports.count("took 2") == 0


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "if the number was not recorded yet, it is handled again, then those that follow, in order",
)
async def test_who_is_active_dies_after_its_effect(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    await succeeded(amqp_url, redis_url, workers, new_app, name, "after")
    assert workers.reports.count("took 2") == 1


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is redelivered and its number is recorded already: it is acknowledged without running "
    "the handler",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    async with Proxy(amqp_url) as proxy, new_app() as sender:
        stairs = Stairs(new_app(proxy.url), name, redis_url)

        async def deafen(number: int) -> None:
            if number == 2:
                proxy.to_server.hold()

        stairs.after = deafen  # type: ignore[method-assign]
        async with stairs.app:
            await stairs.send(sender, 2, 1)
            await stairs.has_taken(1, 2)
            await eventually(lambda: stairs.resequencer.statistics.handled == 2, "it is recorded")
            proxy.cut()
            proxy.to_server.release()
            await eventually(lambda: stairs.resequencer.statistics.repeated >= 1, "it comes again")
            await stairs.send(sender, 3)
            await stairs.has_taken(1, 2, 3)


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "the copy has the same number: it is acknowledged without running the handler",
)
async def test_the_confirm_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    stairs = Stairs(new_app(), name, redis_url)
    async with stairs.app, Proxy(amqp_url) as proxy, new_app(proxy.url) as sender:
        await stairs.send(sender, 1)
        await stairs.has_taken(1)
        proxy.to_client.hold()
        sending = asyncio.ensure_future(stairs.send(sender, 2))
        await stairs.has_taken(1, 2)
        proxy.cut()
        proxy.to_client.release()
        await sending
        await eventually(lambda: stairs.resequencer.statistics.repeated >= 1, "the copy has come")
    assert stairs.taken == [1, 2]


@MATRIX.shows(
    Fault.DUPLICATE,
    "the number is recorded already: the copy is acknowledged without running the handler",
)
@MATRIX.shows(
    Fault.REORDERING,
    "early messages wait",
)
async def test_everything_comes_twice_and_backwards(redis_url: str, new_app: NewApp, name: str) -> None:
    stairs = Stairs(new_app(), name, redis_url)
    async with stairs.app as app:
        await stairs.send(app, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1)
        await stairs.has_taken(1, 2, 3, 4, 5)
        await eventually(lambda: stairs.resequencer.statistics.repeated == 5, "five are known")
    assert stairs.taken == [1, 2, 3, 4, 5]


@MATRIX.shows(
    Fault.REORDERING,
    "a missing number is skipped after `gap_timeout`, and its message is dead-lettered if it arrives later",
)
async def test_a_number_comes_after_it_was_given_up(
    amqp_url: str, redis_url: str, new_app: NewApp, name: str
) -> None:
    stairs = Stairs(new_app(), name, redis_url, gap_timeout=timedelta(milliseconds=300))
    async with stairs.app as app:
        await stairs.send(app, 1)
        await stairs.has_taken(1)
        await stairs.send(app, 3)
        await stairs.has_taken(1, 3)
        await stairs.send(app, 2)
        dead = await take_one(amqp_url, f"{name}.dead")
    assert "after it was skipped" in str(dead.headers["warren-dead-error"])
    assert stairs.taken == [1, 3]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "waiting messages are redelivered with the others of the queue, in order",
)
async def test_the_broker_is_killed_while_messages_wait(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    stairs = Stairs(App(mortal_broker.url), name, redis_url)
    async with stairs.app as app:
        await stairs.send(app, 4, 3, 2)
        await eventually(lambda: stairs.resequencer.statistics.waiting == 3, "three wait")
        await asyncio.to_thread(mortal_broker.kill)
        await asyncio.to_thread(mortal_broker.start)
        await stairs.send(app, 1)
        await stairs.has_taken(1, 2, 3, 4)


@MATRIX.shows(
    Fault.STORE_DOWN,
    "messages wait up to `patience`, unacknowledged",
)
async def test_the_store_is_down(new_app: NewApp, tmp_path: Path, name: str) -> None:
    port = free_port()
    stairs = Stairs(new_app(), name, f"redis://127.0.0.1:{port}/0")
    async with stairs.app as app:
        await stairs.send(app, 2, 1)
        await eventually(lambda: app.statistics().subscriptions[name].running == 2, "both wait for the store")
        assert stairs.taken == []
        with redis_server(tmp_path, port=port):
            await stairs.has_taken(1, 2)
            await app.stop()


@MATRIX.shows(Fault.STORE_DOWN, "then they fail and follow their retry policy")
async def test_the_store_is_down_for_longer_than_messages_wait(new_app: NewApp, name: str) -> None:
    with closed_port() as port:
        stairs = Stairs(new_app(), name, f"redis://127.0.0.1:{port}/0", patience=timedelta(milliseconds=50))
        async with stairs.app as app:
            await stairs.send(app, 1)
            await eventually(
                lambda: app.statistics().handlers[name].failed_attempts > 1,
                "it fails, is tried again and fails",
            )
    assert stairs.taken == []


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect: gaps are measured by the clock of the process in which the messages wait",
)
async def test_an_active_one_that_is_an_hour_ahead(amqp_url: str, redis_url: str, name: str) -> None:
    first = Stairs(App(amqp_url, clock=SkewedClock(3600)), name, redis_url)
    async with first.app as app:
        await first.send(app, 3, 1)
        await first.has_taken(1)
    second = Stairs(App(amqp_url), name, redis_url)
    async with second.app as app:
        await second.send(app, 2)
        await second.has_taken(2, 3)
