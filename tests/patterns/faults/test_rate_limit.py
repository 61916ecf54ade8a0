"""Rate limits in every fault, with a real Redis."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.patterns.conftest import PATIENCE, NewApp
from tests.patterns.faults.matrix import Fault, Matrix
from tests.patterns.faults.skewed_clock import SkewedClock
from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.processes import free_port
from tests.support.proxy import Proxy
from tests.support.redis import redis_server
from tests.support.worker_host import WorkerChannel
from tests.support.worker_processes import Workers
from warren.patterns import RateLimit, RedisRateLimiter, RedisStore
from warren.sdk import App, Command

MATRIX = Matrix("rate_limit", page="docs/patterns/rate_limit.md")

HOUR = timedelta(hours=1)


class Gate:
    """A queue of which two may pass in an hour, and who passed."""

    def __init__(self, app: App, name: str, redis: str, *, burst: int = 2, **settings: Any) -> None:
        class Pass(Command, queue=f"{name}.gate", type="pass"):
            number: int

        self.message = Pass
        self.app = app
        self.passed: list[int] = []
        # An answer that came too late would have taken a token, and there are few.
        store = RedisStore(redis, prefix=f"{name}:", timeout=PATIENCE)
        limiter = RedisRateLimiter(store, "gate", 1, per=HOUR, burst=burst)
        self.limit = RateLimit(
            limiter,
            queues=[f"{name}.gate"],
            wait=timedelta(0),
            again_after=timedelta(milliseconds=200),
            **settings,
        )
        app.include(self.limit)

        @app.handle(Pass)
        async def let_through(message: Pass) -> None:
            await self.before()
            self.passed.append(message.number)
            await self.after()

    async def before(self) -> None:
        """Run before the effect; tests override this."""

    async def after(self) -> None:
        """Run after the effect; tests override this."""

    async def send(self, app: App, *numbers: int) -> None:
        for number in numbers:
            await app.publish(self.message(number=number))

    async def has_passed(self, *numbers: int) -> None:
        await eventually(
            lambda: sorted(self.passed) == list(numbers), f"{numbers} have passed, not {self.passed}"
        )


async def guard(worker: WorkerChannel, url: str, name: str, redis: str, stop: str) -> None:
    """Take a token in a worker that stops before or after the effect."""
    gate = Gate(App(url), name, redis)

    async def stand_still() -> None:
        await worker.report_and_wait("stands still")

    setattr(gate, stop, stand_still)
    async with gate.app:
        await worker.report_and_wait("ready")


async def succeeded(url: str, redis: str, workers: Workers, new_app: NewApp, name: str, stop: str) -> Gate:
    """Kill a worker with the first of two tokens; check that the next one handles the message with the other."""
    doomed = await workers.start(guard, url=url, name=name, redis=redis, stop=stop)
    await workers.wait_for("ready")
    gate = Gate(new_app(), name, redis)
    async with new_app() as sender:
        await gate.send(sender, 1)
        await workers.wait_for("stands still")
    doomed.kill()
    async with gate.app as app:
        await gate.has_passed(1)
        await gate.send(app, 2)
        await eventually(lambda: gate.limit.statistics.delayed > 0, "there is no third token")
    return gate


@MATRIX.shows(
    Fault.CRASH_BEFORE_EFFECT,
    "the message is redelivered and takes another token; the first token is lost, so the actual rate is "
    "lower than the limit",
)
async def test_a_worker_dies_with_its_token_before_its_effect(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    gate = await succeeded(amqp_url, redis_url, workers, new_app, name, "before")
    assert gate.passed == [1]


@MATRIX.shows(
    Fault.CRASH_AFTER_EFFECT,
    "the message is redelivered and takes another token; the limit is kept",
)
async def test_a_worker_dies_after_its_effect(
    amqp_url: str, redis_url: str, workers: Workers, new_app: NewApp, name: str
) -> None:
    gate = await succeeded(amqp_url, redis_url, workers, new_app, name, "after")
    assert gate.passed == [1]


@MATRIX.shows(
    Fault.REORDERING,
    "delayed messages are handled after later ones: a rate limit does not keep the order",
)
async def test_what_is_put_aside_is_overtaken(redis_url: str, new_app: NewApp, name: str) -> None:
    gate = Gate(new_app(), name, redis_url, burst=1, key=lambda delivery: delivery.headers["tenant"])
    async with gate.app as app:
        # One after the other: handlers run side by side, and each asks Redis for a token in its own time.
        await app.publish(gate.message(number=1), headers={"tenant": "one"})
        await gate.has_passed(1)
        await app.publish(gate.message(number=2), headers={"tenant": "one"})
        await eventually(lambda: gate.limit.statistics.delayed > 0, "the second has no token")
        await app.publish(gate.message(number=3), headers={"tenant": "another"})
        await eventually(lambda: gate.passed == [1, 3], f"the third has passed, not {gate.passed}")
    wider = Gate(new_app(), name, redis_url, burst=10, key=lambda delivery: delivery.headers["tenant"])
    async with wider.app:
        await wider.has_passed(2)


@MATRIX.shows(
    Fault.LOST_ACK,
    "the message is redelivered and takes another token; the limit is kept",
)
async def test_the_acknowledgement_is_lost(amqp_url: str, redis_url: str, new_app: NewApp, name: str) -> None:
    async with Proxy(amqp_url) as proxy:
        gate = Gate(new_app(proxy.url), name, redis_url)

        async def deafen() -> None:
            if len(gate.passed) == 1:
                proxy.to_server.hold()

        gate.after = deafen  # type: ignore[method-assign]
        async with gate.app as app:
            await gate.send(app, 1)
            await gate.has_passed(1)
            proxy.cut()
            proxy.to_server.release()
            await gate.has_passed(1, 1)
            await gate.send(app, 2)
            await eventually(lambda: gate.limit.statistics.delayed > 0, "there is no third token")


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
async def test_the_broker_is_killed_while_messages_are_put_aside(
    mortal_broker: BrokerProcess, redis_url: str, name: str
) -> None:
    gate = Gate(App(mortal_broker.url), name, redis_url)
    async with gate.app as app:
        await gate.send(app, 1, 2, 3)
        await eventually(lambda: gate.limit.statistics.delayed > 0, "one is put aside")
        await asyncio.to_thread(mortal_broker.kill)
        await asyncio.to_thread(mortal_broker.start)
        before = gate.limit.statistics.delayed
        await eventually(lambda: gate.limit.statistics.delayed > before, "it comes again")
    assert len(gate.passed) >= 2


@MATRIX.shows(
    Fault.STORE_DOWN,
    "`fail_closed` (default): messages are delayed; `fail_open`: they are handled without a token",
)
async def test_the_store_is_down(new_app: NewApp, tmp_path: Path, name: str) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    closed = Gate(new_app(), name, url)
    opened = Gate(new_app(), f"{name}.open", url, on_store_failure="fail_open")
    async with closed.app as app, opened.app:
        await closed.send(app, 1)
        await opened.send(app, 1)
        await opened.has_passed(1)
        await eventually(lambda: closed.limit.statistics.postponed > 0, "it is put aside")
        assert closed.passed == []
        with redis_server(tmp_path, port=port):
            await closed.has_passed(1)


@MATRIX.shows(
    Fault.CLOCK_SKEW,
    "no effect: `RedisRateLimiter` uses the time of Redis",
)
async def test_a_machine_is_an_hour_ahead(amqp_url: str, redis_url: str, name: str) -> None:
    right, ahead = (
        Gate(App(amqp_url), name, redis_url),
        Gate(App(amqp_url, clock=SkewedClock(7200)), name, redis_url),
    )
    async with right.app as app:
        await right.send(app, 1, 2)
        await right.has_passed(1, 2)
    async with ahead.app as app:
        await ahead.send(app, 3)
        await eventually(lambda: ahead.limit.statistics.delayed > 0, "there is no token for it")
        assert ahead.passed == []
