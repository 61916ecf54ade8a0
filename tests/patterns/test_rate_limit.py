"""Rate limits: the rule, over processes in Redis, and queues whose handlers keep to one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patterns.conftest import PATIENCE, NewApp
from tests.support.polling import eventually
from tests.support.tiers import examples
from warren.broker import VirtualClock
from warren.patterns import (
    LocalRateLimiter,
    MemoryStore,
    RateLimit,
    RateLimiter,
    RateLimitExceeded,
    RedisRateLimiter,
    RedisStore,
    StoreUnavailable,
    override_store,
)
from warren.patterns.rate_limit.rules import Rate, reserve_tokens
from warren.sdk import App, Command, ConfigError, Depends
from warren.testing import Warren

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
NONE = timedelta(0)


@settings(max_examples=examples(60), deadline=None)
@given(
    gaps=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=60),
    count=st.integers(1, 5),
    burst=st.integers(1, 5),
)
def test_no_second_has_more_starts_than_rate_and_burst(gaps: list[int], count: int, burst: int) -> None:
    rate = Rate(count, SECOND, burst)
    now = full = 1
    begun: list[int] = []
    for gap in gaps:
        now += gap
        taken, wait, full = reserve_tokens(full, now, rate, 1, within_us=500_000)
        assert taken == (wait <= 500_000)
        if taken:
            begun.append(now + wait)
    for at in begun:
        assert len([other for other in begun if at <= other < at + 1_000_000]) <= count + burst


async def test_tokens_are_reserved_ahead_and_come_back_with_time() -> None:
    clock = VirtualClock(start=1000.0)
    limiter = LocalRateLimiter(2, per=SECOND)
    limiter.use_clock(clock)
    waits = [(await limiter.reserve("a", within=HOUR)).total_seconds() for _ in range(4)]
    assert waits == [0, 0, 0.5, 1]
    with pytest.raises(
        RateLimitExceeded, match=r"the rate limit of 'a' is exhausted for 0:00:01\.5"
    ) as limited:
        await limiter.reserve("a", within=SECOND)
    assert limited.value.after == 1.5 * SECOND
    assert await limiter.reserve("b", cost=2, within=NONE) == NONE
    await clock.advance(3)
    assert await limiter.reserve("a", cost=2, within=NONE) == NONE


async def test_redis_limits_all_processes_together(redis_url: str, name: str) -> None:
    async with (
        RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE) as one,
        RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE) as other,
    ):
        limiters = [RedisRateLimiter(store, "service", 1, per=HOUR, burst=5) for store in (one, other)]
        waits = await asyncio.gather(*(limiters[n % 2].reserve("a", within=NONE) for n in range(5)))
        assert set(waits) == {NONE}
        for limiter in limiters:
            with pytest.raises(RateLimitExceeded) as limited:
                await limiter.reserve("a", within=HOUR / 2)
            assert HOUR - SECOND * 60 < limited.value.after <= HOUR
        assert await limiters[0].reserve("b", within=NONE) == NONE
        ahead = [await limiter.reserve("a", within=3 * HOUR) for limiter in limiters]
        assert [round(wait / HOUR, 1) for wait in ahead] == [1.0, 2.0]


async def test_a_replaced_store_needs_no_redis() -> None:
    clock = VirtualClock(start=1000.0)
    async with RedisStore("redis://127.0.0.1:1", timeout=0.1) as store:
        limiter = RedisRateLimiter(store, "service", 1, per=SECOND, burst=2)
        limiter.use_clock(clock)
        with override_store(store, MemoryStore()):
            waits = [await limiter.reserve("a", within=HOUR) for _ in range(3)]
            assert waits == [NONE, NONE, SECOND]
            with pytest.raises(RateLimitExceeded):
                await limiter.reserve("a", within=SECOND)
        with pytest.raises(StoreUnavailable):
            await limiter.reserve("a", within=SECOND)


class LimitedQueue:
    """App with a rate-limited queue, which records the start times of its handler, and a queue without a limit."""

    def __init__(self, app: App, name: str, limiter: RateLimiter, **settings: Any) -> None:
        class LimitedCommand(Command, queue=f"{name}.limited", type="limited"):
            key: str

        class UnlimitedCommand(Command, queue=f"{name}.unlimited", type="unlimited"):
            key: str

        self.limited_command, self.unlimited_command = LimitedCommand, UnlimitedCommand
        self.app = app
        self.limit = RateLimit(limiter, queues=[f"{name}.limited"], **settings)
        app.include(self.limit)
        self.started: list[float] = []
        self.unlimited_handled = 0

        @app.handle(LimitedCommand)
        async def handle_limited(command: LimitedCommand) -> None:
            self.started.append(app.clock.now())

        @app.handle(UnlimitedCommand)
        async def handle_unlimited(command: UnlimitedCommand) -> None:
            self.unlimited_handled += 1


async def test_a_rate_limited_queue_delays_messages_and_loses_none(warren: Warren) -> None:
    limited = LimitedQueue(
        App(), "limited", LocalRateLimiter(1, per=timedelta(seconds=10)), wait=timedelta(seconds=15)
    )
    async with warren.running(limited.app) as harness:
        began = harness.now.timestamp()
        for number in range(5):
            await harness.publish(limited.limited_command(key=f"{number}"))
            await harness.publish(limited.unlimited_command(key=f"{number}"))
        assert (len(limited.started), limited.unlimited_handled) == (1, 5)
        await harness.advance(seconds=100)
        times = [round(at - began) for at in limited.started]
        assert len(times) == 5
        assert all(later - earlier >= 10 for earlier, later in pairwise(times))
        assert limited.limit.statistics.delayed > 0
        assert harness.dead_letters == []


async def test_each_key_has_a_rate_of_its_own(new_app: NewApp, name: str, redis_url: str) -> None:
    store = RedisStore(redis_url, prefix=f"{name}:", timeout=PATIENCE)
    limiter = RedisRateLimiter(store, "tenants", 1, per=HOUR)
    limited = LimitedQueue(
        new_app(),
        name,
        limiter,
        key=lambda delivery: str(delivery.headers["tenant"]),
        wait=NONE,
        again_after=HOUR,
    )
    async with limited.app as app:
        for tenant in ("blue", "blue", "red", "red", "green"):
            await app.publish(limited.limited_command(key="x"), headers={"tenant": tenant})
        await eventually(
            lambda: (limited.limit.statistics.delayed, len(limited.started)) == (2, 3), "three are started"
        )


async def test_a_handler_may_acquire_a_token_itself(new_app: NewApp, name: str) -> None:
    class Ask(Command, queue=f"{name}.asks"):
        pass

    limiter = LocalRateLimiter(1, per=HOUR, burst=2)
    refused: list[timedelta] = []
    passed: list[None] = []

    async def token() -> None:
        await limiter.acquire(within=NONE)

    app = new_app()

    @app.handle(Ask)
    async def ask(message: Ask, token: Annotated[None, Depends(token)]) -> None:
        passed.append(token)
        try:
            await limiter.acquire(within=NONE)
        except RateLimitExceeded as limited:
            refused.append(limited.after)

    async with app:
        await app.publish(Ask())
        await eventually(lambda: len(passed) == 1, "one is handled")
    assert refused == []
    with pytest.raises(RateLimitExceeded):
        await limiter.acquire(within=NONE)


async def test_invalid_arguments_raise_errors(redis_url: str) -> None:
    with pytest.raises(ConfigError, match="of a rate must be at least 1, not 0"):
        LocalRateLimiter(0, per=SECOND)
    with pytest.raises(ConfigError, match="at most one token per microsecond"):
        RedisRateLimiter(RedisStore(redis_url), "x", 2, per=timedelta(microseconds=1))
    with pytest.raises(ConfigError, match="a cost of 3 is no whole number from 1 to the burst of 2"):
        await LocalRateLimiter(2, per=SECOND).reserve(cost=3, within=NONE)
    with pytest.raises(ConfigError, match="needs a list of queues"):
        RateLimit(LocalRateLimiter(1, per=SECOND), queues="payments")
    with pytest.raises(ConfigError, match="again_after"):
        RateLimit(LocalRateLimiter(1, per=SECOND), queues=["payments"], again_after=NONE)
