"""Rate limits in every fault, with a real Redis."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.scenarios import (
    CRASH_AFTER_EFFECT,
    CRASH_BEFORE_EFFECT,
    LOST_ACKNOWLEDGEMENT,
    Process,
    handled_again,
    handled_by_successor,
    restart,
)
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import free_port
from tests.support.redis import redis_server
from warren.patterns import RateLimit, RedisRateLimiter, RedisStore
from warren.sdk import App, Command

MATRIX = Matrix("rate_limit", page="docs/patterns/rate_limit.md")

HOUR = timedelta(hours=1)


class Gate(Process):
    """A process with a queue whose rate limit lets two messages pass in an hour."""

    servers = ("redis_url",)

    def __init__(
        self,
        app: App,
        name: str,
        redis_url: str,
        *,
        handles: bool = True,
        burst: int = 2,
        **settings: Any,
    ) -> None:
        class Pass(Command, queue=f"{name}.gate", type="pass"):
            number: int

        super().__init__(app, name)
        self.message = Pass
        # An answer that came too late would have taken a token, and there are few.
        store = RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE)
        limiter = RedisRateLimiter(store, "gate", 1, per=HOUR, burst=burst)
        self.limit = RateLimit(
            limiter,
            queues=[f"{name}.gate"],
            wait=timedelta(0),
            again_after=timedelta(milliseconds=200),
            **settings,
        )
        if handles:
            app.include(self.limit)

            @app.handle(Pass)
            async def let_through(message: Pass) -> None:
                await self.handle(message.number)

    async def publish(self, *numbers: int) -> None:
        for number in numbers:
            await self.app.publish(self.message(number=number))

    async def has_passed(self, *numbers: int) -> None:
        await eventually(
            lambda: sorted(self.handled) == list(numbers), f"{numbers} have passed, not {self.handled}"
        )

    async def publish_beyond_the_limit(self) -> None:
        """Publish one more message, and wait until it is delayed."""
        await self.publish(2)
        await eventually(lambda: self.limit.statistics.delayed > 0, "there is no third token")


async def takes_the_second_token(gate: Gate) -> None:
    await handled_by_successor(gate)
    await gate.publish_beyond_the_limit()
    await gate.app.stop()
    assert gate.handled == [1]


async def takes_a_token_each_time(gate: Gate) -> None:
    await handled_again(gate)
    await gate.publish_beyond_the_limit()


CRASH_BEFORE_EFFECT.of(
    MATRIX,
    Gate,
    "the message is redelivered and takes another token; the first token is lost, so the actual rate is "
    "lower than the limit",
    takes_the_second_token,
)
CRASH_AFTER_EFFECT.of(
    MATRIX,
    Gate,
    "the message is redelivered and takes another token; the limit is kept",
    takes_the_second_token,
)
LOST_ACKNOWLEDGEMENT.of(
    MATRIX,
    Gate,
    "the message is redelivered and takes another token; the limit is kept",
    takes_a_token_each_time,
)


@MATRIX.shows(
    Fault.REORDERING,
    "delayed messages are handled after later ones: a rate limit does not keep the order",
)
async def test_a_delayed_message_is_overtaken(redis_url: str, new_app: NewApp, name: str) -> None:
    gate = Gate(new_app(), name, redis_url, burst=1, key=lambda delivery: delivery.headers["tenant"])
    async with gate.app as app:
        # One after the other: handlers run side by side, and each asks Redis for a token in its own time.
        await app.publish(gate.message(number=1), headers={"tenant": "one"})
        await gate.has_passed(1)
        await app.publish(gate.message(number=2), headers={"tenant": "one"})
        await eventually(lambda: gate.limit.statistics.delayed > 0, "the second has no token")
        await app.publish(gate.message(number=3), headers={"tenant": "another"})
        await eventually(lambda: gate.handled == [1, 3], f"the third has passed, not {gate.handled}")
    wider = Gate(new_app(), name, redis_url, burst=10, key=lambda delivery: delivery.headers["tenant"])
    async with wider.app:
        await wider.has_passed(2)


@MATRIX.shows(
    Fault.LOST_CONFIRM,
    "each copy takes a token, like any message; `Once` outside of the rate limit recognises the second",
)
@MATRIX.shows(Fault.DUPLICATE, "each copy takes a token, like any message")
async def test_a_message_comes_three_times(redis_url: str, new_app: NewApp, name: str) -> None:
    gate = Gate(new_app(), name, redis_url)
    async with gate.app as app:
        for _ in range(3):
            await app.publish(gate.message(number=1), message_id="the same")
        await eventually(lambda: gate.limit.statistics.delayed > 1, "one is put aside, again and again")
        await gate.has_passed(1, 1)


@MATRIX.shows(Fault.BROKER_RESTART, "delayed messages wait in a durable queue and return")
async def test_the_broker_is_killed_while_messages_are_delayed(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    gate = Gate(App(mortal_broker.url), name, redis_url)
    async with gate.app:
        await gate.publish(1, 2, 3)
        await eventually(lambda: gate.limit.statistics.delayed > 0, "one is put aside")
        await restart(mortal_broker)
        before = gate.limit.statistics.delayed
        await eventually(lambda: gate.limit.statistics.delayed > before, "it comes again")
    assert len(gate.handled) >= 2


@MATRIX.shows(
    Fault.STORE_DOWN,
    "`fail_closed` (default): messages are delayed; `fail_open`: they are handled without a token",
)
async def test_the_store_is_down(new_app: NewApp, tmp_path: Path, name: str) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    closed = Gate(new_app(), name, url)
    opened = Gate(new_app(), f"{name}.open", url, on_store_failure="fail_open")
    async with closed.app, opened.app:
        await closed.publish(1)
        await opened.publish(1)
        await opened.has_passed(1)
        await eventually(lambda: closed.limit.statistics.postponed > 0, "it is put aside")
        assert closed.handled == []
        with redis_server(tmp_path, port=port):
            await closed.has_passed(1)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect: `RedisRateLimiter` uses the time of Redis",
)
async def test_a_machine_is_two_hours_ahead(amqp_url: str, redis_url: str, name: str) -> None:
    right, ahead = (
        Gate(App(amqp_url), name, redis_url),
        Gate(App(amqp_url, clock=SkewedClock(7200)), name, redis_url),
    )
    async with right.app:
        await right.publish(1, 2)
        await right.has_passed(1, 2)
    async with ahead.app:
        await ahead.publish(3)
        await eventually(lambda: ahead.limit.statistics.delayed > 0, "there is no token for it")
        assert ahead.handled == []
