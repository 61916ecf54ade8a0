"""`LocalRateLimiter`: a rate limit for one process."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from warren.patterns.monotonic_time import monotonic_time
from warren.patterns.rate_limit.rate_limiter import RateLimitExceeded
from warren.patterns.rate_limit.rules import FOREVER, MICROSECOND, Rate, reserve_tokens
from warren.sdk import Clock, SystemClock
from warren.sdk.extend import AppClock, Duration, duration

MAX_KEYS: Final = 10_000
"""Number of buckets (one per key) above which the full ones are deleted. A deleted bucket loses nothing: it is created
again, full, when its key is used."""


class LocalRateLimiter:
    """Rate limit of this process: `LocalRateLimiter(50, per=timedelta(seconds=1))`.

    :param count: tokens that become available in the time `per`, for each key.
    :param burst: largest number of tokens that collect while none is used, and so may be reserved at once. Default
        `count`.
    :raises ConfigError: a number is too small.
    """

    def __init__(self, count: int, *, per: Duration, burst: int | None = None) -> None:
        self._rate = Rate(count, duration(per, "LocalRateLimiter: per"), count if burst is None else burst)
        self._clock: Clock = SystemClock()
        self._followed: Clock = self._clock
        """The clock whose times `_full_at` has."""
        self._full_at: dict[str, int] = {}
        self._most_entries = MAX_KEYS

    async def reserve(self, key: str = "", *, cost: int = 1, within: Duration) -> timedelta:
        """Reserve `cost` tokens if all of them become available within the time `within`, and return the time until
        then.

        :param key: whose tokens to use, such as a customer's id; each key has a bucket of its own.
        :raises RateLimitExceeded: the tokens become available only later; none is reserved.
        :raises ConfigError: `cost` is below 1 or above the burst.
        """
        self._rate.check_cost(cost)
        followed = self._clock.followed if isinstance(self._clock, AppClock) else self._clock
        if followed is not self._followed:
            # The times of another clock, such as that of an earlier test, mean nothing on this one.
            self._followed = followed
            self._full_at.clear()
        now_us = int(monotonic_time(self._clock) * 1_000_000)
        taken, wait, full = reserve_tokens(
            self._full_at.get(key, 0), now_us, self._rate, cost, duration(within, "within") // MICROSECOND
        )
        if not taken:
            raise RateLimitExceeded(key, wait * MICROSECOND)
        self._full_at[key] = full
        if len(self._full_at) > self._most_entries:
            # A full bucket needs no entry. The limit grows with the others, so that this is rare however many there are.
            self._full_at = {known: at for known, at in self._full_at.items() if at > now_us}
            self._most_entries = max(MAX_KEYS, 2 * len(self._full_at))
        return wait * MICROSECOND

    async def acquire(self, key: str = "", *, cost: int = 1, within: Duration = FOREVER) -> None:
        """Reserve `cost` tokens and wait until they are available.

        :param key: whose tokens to use, such as a customer's id; each key has a bucket of its own.
        :param within: longest wait; by default 365 days.
        :raises RateLimitExceeded: the wait would be longer than `within`; none is reserved.
        :raises ConfigError: `cost` is below 1 or above the burst.
        """
        await self._clock.sleep((await self.reserve(key, cost=cost, within=within)).total_seconds())

    def use_clock(self, clock: Clock) -> None:
        """Use `clock` from now on to refill the buckets and to wait."""
        self._clock = clock

    async def close(self) -> None:
        """Do nothing: no connection is open."""


__all__ = ["LocalRateLimiter"]
