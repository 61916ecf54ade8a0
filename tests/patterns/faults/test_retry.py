"""Delayed retries in every fault."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.topology_cleanup import delete_topology
from tests.support.async_client import take_one
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import BinaryDelayQueues, Delay, WaitQueues, backoff
from warren.sdk import App, Command, ConfigError, Delivery, Retry

MATRIX = Matrix("retry", page="docs/patterns/retry.md")

STEP = timedelta(milliseconds=200)


class Charge(Command, queue="replaced"):
    order_id: str


@cache  # One class a queue: what it must reach is declared once.
def charge_in(queue_name: str) -> type[Charge]:
    class ChargeHere(Charge, queue=queue_name, type="charge"):
        pass

    return ChargeHere


class Till:
    """App whose handler fails a given number of times and records each attempt."""

    def __init__(
        self, app: App, queue: str, fails: int = 1, *, steps: int = 2, step: timedelta = STEP
    ) -> None:
        self.app = app
        self.attempts: list[tuple[str, int]] = []

        @app.handle(charge_in(queue), retry=Retry(1).then(*[step] * steps))
        async def charge(command: Any, delivery: Delivery) -> None:
            self.attempts.append((command.order_id, delivery.attempt))
            await self.before()
            if delivery.attempt <= fails:
                raise ConnectionError("no line")

    async def before(self) -> None:
        """Run before the handler fails; tests override this."""


async def till(worker: WorkerChannel, url: str, queue: str) -> None:
    its = Till(App(url), queue)

    async def before() -> None:
        await worker.report_and_wait(f"attempt {its.attempts[-1][1]}")

    its.before = before  # type: ignore[method-assign]
    async with its.app:
        await asyncio.Event().wait()


async def place(app: App, queue: str, order_id: str = "42") -> None:
    await app.publish(charge_in(queue)(order_id=order_id), message_id=order_id)


@pytest.fixture
def new_till(new_app: NewApp, amqp_url: str, name: str) -> Any:
    def new(url: str = amqp_url, **settings: Any) -> Till:
        return Till(new_app(url), name, **settings)

    return new


@pytest.mark.parametrize("backend", ["wait queues", "delay"])
async def test_it_comes_back_and_then_is_parked_with_its_origin(
    amqp_url: str, new_app: NewApp, name: str, backend: str
) -> None:
    """Both backends do the same."""
    way = BinaryDelayQueues(unit=timedelta(milliseconds=50), levels=6)
    delays = WaitQueues() if backend == "wait queues" else Delay(f"{name}.delay", strategy=way)
    here = Till(App(amqp_url, delay=delays), name, fails=9)
    async with here.app:
        await place(here.app, name)
        dead = await take_one(amqp_url, f"{name}.dead")
    await delete_topology(amqp_url, [here.app], name)
    assert here.attempts == [("42", 1), ("42", 2), ("42", 3)]
    assert (dead.message_id, dead.headers["warren-attempt"]) == ("42", 3)
    assert (dead.headers["warren-exchange"], dead.headers["warren-key"]) == ("", name)


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "a message that waits for its next attempt is not affected; one that was being handled is redelivered"
    " with the same attempt number",
)
async def test_the_process_dies_while_it_handles(
    amqp_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    doomed = await workers.start(till, url=amqp_url, queue=name)
    async with new_app() as app:
        await place(app, name)
        await workers.wait_for("attempt 1")
        doomed.kill()
        second = await workers.start(till, url=amqp_url, queue=name)
        await workers.wait_for("attempt 1", times=2)
        second.resume()
        await workers.wait_for("attempt 2")


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the copy for the next attempt is on the broker and the original is redelivered: from then on both "
    "are attempted, with the same message id, and `Once` recognises them",
)
@MATRIX.shows(
    Fault.LOST_ACK,
    "as after a crash: two copies with the same message id",
)
async def test_the_original_is_not_acknowledged(new_till: Any, amqp_url: str, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        here = new_till(proxy.url, fails=9, steps=1)

        async def deafen() -> None:
            if len(here.attempts) == 1:
                # All that this connection acknowledges from here on is lost; the copy goes over the other one.
                proxy.cut()

        here.before = deafen
        async with here.app:
            await place(here.app, name)
            await eventually(lambda: here.attempts.count(("42", 1)) >= 2, "the original comes again")
            await eventually(lambda: here.attempts.count(("42", 2)) >= 2, "and both copies")
            first, second = await take_one(amqp_url, f"{name}.dead"), await take_one(amqp_url, f"{name}.dead")
    assert first.message_id == second.message_id == "42"


@MATRIX.shows(
    Fault.LOST_CONFIRM, "the copy is published again, marked `warren-republished`: it may be attempted twice"
)
async def test_the_confirm_of_the_copy_is_lost(new_till: Any, amqp_url: str, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        here = new_till(proxy.url)

        async def deafen() -> None:
            if len(here.attempts) == 1:
                proxy.to_client.hold()
                asyncio.get_running_loop().call_later(0.1, cut)

        def cut() -> None:
            proxy.cut()
            proxy.to_client.release()

        here.before = deafen
        async with here.app:
            await place(here.app, name)
            await eventually(lambda: ("42", 2) in here.attempts, "it is attempted again")


@MATRIX.shows(Fault.DUPLICATE, "each copy counts its own attempts")
async def test_two_copies(new_till: Any, name: str) -> None:
    here = new_till()
    async with here.app:
        await place(here.app, name)
        await place(here.app, name)
        await eventually(lambda: len(here.attempts) == 4, "each is attempted twice")
    assert sorted(here.attempts) == [("42", 1), ("42", 1), ("42", 2), ("42", 2)]


@MATRIX.shows(
    Fault.REORDERING,
    "a retried message comes after those that arrived meanwhile: retries give up the order",
)
async def test_what_came_later_is_handled_first(new_till: Any, name: str) -> None:
    here = new_till(step=timedelta(seconds=20))  # Longer than a busy machine needs for the other one.
    async with here.app:
        await place(here.app, name, "1")
        await eventually(lambda: len(here.attempts) == 1, "it failed")
        await place(here.app, name, "2")
        await eventually(lambda: len(here.attempts) == 4, "both came back")
    assert [order for order, _ in here.attempts] == ["1", "2", "1", "2"]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "waiting messages are in durable queues, and their time goes on meanwhile",
)
async def test_the_broker_is_killed_while_it_waits(mortal_broker: BrokerProcess, name: str) -> None:
    here = Till(App(mortal_broker.url), name)
    async with here.app:
        await place(here.app, name)
        await eventually(lambda: here.app.statistics().handlers[name].delayed == 1, "it waits")
        await asyncio.to_thread(mortal_broker.kill)
        await asyncio.to_thread(mortal_broker.start)
        await eventually(lambda: ("42", 2) in here.attempts, "it comes back")


MATRIX.spared(
    Fault.STORE_DOWN,
    "no effect: there is no store; the attempts are counted in the message",
)
MATRIX.spared(
    Fault.CLOCK_SKEW,
    "no effect: the broker alone measures the delay, as a duration",
)


def test_backoff_grows_to_its_cap() -> None:
    assert [delay.total_seconds() for delay in backoff("1s", factor=3, times=5, longest="20s")] == [
        1,
        3,
        9,
        20,
        20,
    ]
    with pytest.raises(ConfigError, match="at least 1"):
        backoff("1s", times=0)
    with pytest.raises(ConfigError, match="at least 1"):
        backoff("1s", factor=0.5)
    with pytest.raises(ConfigError, match="above 0"):
        backoff("0s")
