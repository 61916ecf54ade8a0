"""`RedisRateLimiter`: a rate limit over all processes that share a Redis; one Lua script per reservation, by the clock
of Redis."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, cast

from warren.patterns.argument_checks import check_object
from warren.patterns.rate_limit.local_rate_limiter import LocalRateLimiter
from warren.patterns.rate_limit.rate_limiter import RateLimitExceeded
from warren.patterns.rate_limit.rules import FOREVER, MICROSECOND, Rate
from warren.patterns.stores import RedisStore, record_key
from warren.patterns.stores.store_override import current_store
from warren.sdk import Clock, SystemClock
from warren.sdk.extend import Duration, duration

# The rule of `rules.reserve_tokens`, by the clock of Redis, so that the clocks of its users do not matter. Numbers in Lua
# are exact up to 2^53: microseconds until the year 2255.
RESERVE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, cost, burst, within = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + cost * interval
local wait = math.max(0, full - burst * interval - now)
if wait > within then return {0, wait} end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000) + 1)
return {1, wait}
"""


class RedisRateLimiter:
    """Rate limit over all processes: `RedisRateLimiter(RedisStore(url), "payment-service", 50,
    per=timedelta(seconds=1))`.

    A token that a process reserved before it died is lost. When Redis loses its data (a restart without persistence),
    the bucket is full: at most one additional burst.

    :param name: name of the limited resource; processes with the same name share the rate, and should configure the
        same one.
    :param count: tokens that become available in the time `per`, for each key.
    :param burst: largest number of tokens that collect while none is used, and so may be reserved at once. Default
        `count`.
    :raises ConfigError: a number is too small.
    """

    def __init__(
        self, store: RedisStore, name: str, count: int, *, per: Duration, burst: int | None = None
    ) -> None:
        check_object("RedisRateLimiter", store, "a RedisStore", ("run",), "RedisStore('redis://HOST')")
        self._store = store
        self._name = name
        self._rate = Rate(count, duration(per, "RedisRateLimiter: per"), count if burst is None else burst)
        self._local = LocalRateLimiter(count, per=per, burst=burst)
        """Limiter for tests that replace the store by one without scripts."""
        self._clock: Clock = SystemClock()

    async def reserve(self, key: str = "", *, cost: int = 1, within: Duration) -> timedelta:
        """Reserve `cost` tokens if all of them become available within the time `within`, and return the time until
        then.

        :param key: whose tokens to use, such as a customer's id; each key has a bucket of its own.
        :raises RateLimitExceeded: the tokens become available only later; none is reserved.
        :raises StoreUnavailable: it is unknown whether they were reserved.
        :raises ConfigError: `cost` is below 1 or above the burst.
        """
        self._rate.check_cost(cost)
        rate = self._rate
        store = current_store(self._store)
        if not isinstance(store, RedisStore):
            return await self._local.reserve(key, cost=cost, within=min(duration(within, "within"), FOREVER))
        answer = await store.run(
            RESERVE,
            record_key("rate", self._name, key),
            rate.interval_us,
            cost,
            rate.burst,
            min(duration(within, "within"), FOREVER) // MICROSECOND,
        )
        taken, wait = cast("tuple[int, int]", answer)
        if not taken:
            raise RateLimitExceeded(key or self._name, wait * MICROSECOND)
        return wait * MICROSECOND

    async def acquire(self, key: str = "", *, cost: int = 1, within: Duration = FOREVER) -> None:
        """Reserve `cost` tokens and wait until they are available.

        :param key: whose tokens to use, such as a customer's id; each key has a bucket of its own.
        :param within: longest wait; by default 365 days.
        :raises RateLimitExceeded: the wait would be longer than `within`; none is reserved.
        :raises StoreUnavailable: it is unknown whether they were reserved.
        :raises ConfigError: `cost` is below 1 or above the burst.
        """
        await self._clock.sleep((await self.reserve(key, cost=cost, within=within)).total_seconds())

    def use_clock(self, clock: Clock) -> None:
        """Use `clock` from now on to wait for tokens; the buckets are refilled by the clock of Redis."""
        self._clock = clock
        self._local.use_clock(clock)

    async def close(self) -> None:
        await self._store.close()


__all__ = ["RedisRateLimiter"]
