"""Delayed retries in every fault."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from tests.patterns.conftest import NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import CRASH_BEFORE_EFFECT, Process, restart
from tests.patterns.topology_cleanup import delete_topology
from tests.support.async_client import take_one
from tests.support.blocking_client import Connection
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.proxy_tampering import Tampering
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


class Till(Process):
    """A process whose handler fails a given number of times and records each attempt.

    :ivar handled: the numbers of the attempts
    :ivar attempts: the orders and the numbers of the attempts
    """

    def __init__(
        self,
        app: App,
        name: str,
        *,
        handles: bool = True,
        fails: int = 1,
        steps: int = 2,
        step: timedelta = STEP,
    ) -> None:
        super().__init__(app, name)
        self.attempts: list[tuple[str, int]] = []
        if handles:

            @app.handle(charge_in(name), retry=Retry(1).then(*[step] * steps))
            async def charge(command: Any, delivery: Delivery) -> None:
                self.attempts.append((command.order_id, delivery.attempt))
                await self.handle(delivery.attempt)
                if delivery.attempt <= fails:
                    raise ConnectionError("no line")

    async def publish(self, number: int) -> None:
        await self.app.publish(charge_in(self.name)(order_id=f"{number}"), message_id=f"{number}")


@pytest.fixture
def new_till(new_app: NewApp, amqp_url: str, name: str) -> Any:
    def new(url: str = amqp_url, **settings: Any) -> Till:
        return Till(new_app(url), name, **settings)

    return new


@pytest.mark.parametrize("backend", ["wait queues", "delay"])
async def test_a_message_is_retried_and_then_dead_lettered_with_its_origin(
    amqp_url: str, new_app: NewApp, name: str, backend: str
) -> None:
    """Both backends do the same."""
    strategy = BinaryDelayQueues(unit=timedelta(milliseconds=50), levels=6)
    delays = WaitQueues() if backend == "wait queues" else Delay(f"{name}.delay", strategy=strategy)
    till = Till(App(amqp_url, delay=delays), name, fails=9)
    async with till.app:
        await till.publish(42)
        dead = await take_one(amqp_url, f"{name}.dead")
    await delete_topology(amqp_url, [till.app], name)
    assert till.attempts == [("42", 1), ("42", 2), ("42", 3)]
    assert (dead.message_id, dead.headers["warren-attempt"]) == ("42", 3)
    assert (dead.headers["warren-exchange"], dead.headers["warren-key"]) == ("", name)


async def attempted_with_the_same_number(till: Till) -> None:
    await till.has_handled(1, 2)


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Till,
    "a message that waits for its next attempt is not affected; one that was being handled is redelivered"
    " with the same attempt number",
    attempted_with_the_same_number,
)


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the copy for the next attempt is on the broker and the original is redelivered: from then on both "
    "are attempted, with the same message id, and `Once` recognises them",
)
async def test_another_process_gets_the_original_again(new_till: Any, amqp_url: str, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        proxy.to_server.rewrite = Tampering(forget=1)
        first = new_till(proxy.url, fails=9, steps=1, step=timedelta(seconds=1))
        async with first.app:
            await first.publish(42)
            await eventually(lambda: first.app.statistics().handlers[name].delayed == 1, "a copy waits")
    assert first.attempts == [("42", 1)]
    second = new_till(fails=9, steps=1, step=timedelta(seconds=1))
    async with second.app:
        letters = [await take_one(amqp_url, f"{name}.dead") for _ in range(2)]
    assert [letter.message_id for letter in letters] == ["42", "42"]
    assert sorted(second.attempts) == [("42", 1), ("42", 2), ("42", 2)]


@MATRIX.shows(
    Fault.LOST_ACK,
    "the App that has handled the original recognises it when it comes again, and acknowledges it without another attempt; "
    "another process attempts both, as after a crash",
)
async def test_the_same_app_recognises_the_original(new_till: Any, amqp_url: str, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        till = new_till(proxy.url, fails=9, steps=1)
        confirmed = asyncio.Event()

        async def lose(attempt: int) -> None:
            if len(till.attempts) == 1:
                # Else the publisher would publish the message again.
                await confirmed.wait()
                # All that this connection acknowledges from here on is lost; the copy goes over the other one.
                proxy.cut()

        till.before = lose
        async with till.app:
            await till.publish(42)
            confirmed.set()
            letter = await take_one(amqp_url, f"{name}.dead")
    assert letter.message_id == "42"
    assert till.attempts == [("42", 1), ("42", 2)]
    with Connection(amqp_url) as connection:
        channel = connection.channel()
        assert (channel.ready(name), channel.ready(f"{name}.dead")) == (0, 0)


@MATRIX.shows(
    Fault.LOST_CONFIRM, "the copy is published again, marked `warren-republished`: it may be attempted twice"
)
async def test_the_confirm_of_the_copy_is_lost(new_till: Any, amqp_url: str, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        till = new_till(proxy.url)

        async def lose(attempt: int) -> None:
            if len(till.attempts) == 1:
                proxy.to_client.hold()
                asyncio.get_running_loop().call_later(0.1, cut)

        def cut() -> None:
            proxy.cut()
            proxy.to_client.release()

        till.before = lose
        async with till.app:
            await till.publish(42)
            await eventually(lambda: ("42", 2) in till.attempts, "it is attempted again")


@MATRIX.shows(Fault.DUPLICATE, "each copy counts its own attempts")
async def test_a_message_comes_twice(new_till: Any, name: str) -> None:
    till = new_till()
    async with till.app:
        await till.publish(42)
        await till.publish(42)
        await eventually(lambda: len(till.attempts) == 4, "each is attempted twice")
    assert sorted(till.attempts) == [("42", 1), ("42", 1), ("42", 2), ("42", 2)]


@MATRIX.shows(
    Fault.REORDERING,
    "a retried message comes after those that arrived meanwhile: retries give up the order",
)
@pytest.mark.slow  # waits for 20 s
async def test_a_later_message_is_handled_first(new_till: Any, name: str) -> None:
    till = new_till(step=timedelta(seconds=20))  # Longer than a busy machine needs for the other one.
    async with till.app:
        await till.publish(1)
        await eventually(lambda: len(till.attempts) == 1, "it failed")
        await till.publish(2)
        await eventually(lambda: len(till.attempts) == 4, "both came back")
    assert [order for order, _ in till.attempts] == ["1", "2", "1", "2"]


@MATRIX.shows(
    Fault.BROKER_RESTART,
    "waiting messages are in durable queues, and their time goes on meanwhile",
)
async def test_the_broker_is_killed_while_a_message_waits(mortal_broker: BrokerProcess, name: str) -> None:
    till = Till(App(mortal_broker.url), name)
    async with till.app:
        await till.publish(42)
        await eventually(lambda: till.app.statistics().handlers[name].delayed == 1, "it waits")
        await restart(mortal_broker)
        await eventually(lambda: ("42", 2) in till.attempts, "it comes back")


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
