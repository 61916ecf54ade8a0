"""Limiters: a token bucket a key, whose tokens can be reserved ahead, so that who waits need not ask again.

The bucket is kept as one time (GCRA, the generic cell rate algorithm of ITU-T I.371, as a virtual schedule): when it would
be full again. A reservation moves that time on, and says how long it is until the token that it took exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from warren.sdk import Clock, ConfigError, SystemClock, WarrenError

KEYS: Final = 10_000
MICROSECOND: Final = timedelta(microseconds=1)


class RateLimitExceeded(WarrenError):
    """No token in the time that there is; nothing was taken.

    :ivar after: how long it will be until there is one, if nobody else takes it.
    """

    retryable: bool = True

    def __init__(self, key: str, after: timedelta) -> None:
        super().__init__(f"the rate limit of {key!r} has no room for {after}")
        self.after: timedelta = after


class RateLimiter(Protocol):
    """What limits a rate: `LocalRateLimiter` in one process, `RedisRateLimiter` over all."""

    async def reserve(self, key: str = "", *, cost: int = 1, within: timedelta) -> timedelta:
        """Take `cost` tokens, which exist at the latest `within` from now; how long it is until then.

        :raises Limited: they do not; none is taken.
        :raises StoreUnavailable: it is not known whether they were taken.
        """
        ...

    async def acquire(self, key: str = "", *, cost: int = 1, within: timedelta = ...) -> None:
        """Take `cost` tokens, and wait until they exist; errors as for `reserve`. By default for as long as it takes."""
        ...

    def follow(self, clock: Clock) -> None:
        """Take the time from `clock` from now on."""
        ...

    async def close(self) -> None:
        """Release connections. Idempotent; the next use opens them again."""
        ...


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in such a time, and so many at once.

    :raises ConfigError: a number is too small, or the rate above one a microsecond.
    """

    count: int
    per: timedelta
    burst: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.burst < 1 or self.per // MICROSECOND < self.count:
            raise ConfigError(
                f"a rate of {self.count} in {self.per} with {self.burst} at once: counts are at least 1, and a token a"
                " microsecond is the most"
            )

    @property
    def interval_us(self) -> int:
        """From one token to the next, in microseconds."""
        return self.per // MICROSECOND // self.count

    def check(self, cost: int) -> None:
        """:raises ConfigError: so many will never be there at once."""
        if not 1 <= cost <= self.burst:
            raise ConfigError(f"a cost of {cost} is not from 1 to {self.burst}, what the burst allows")


def take(full_us: int, now_us: int, rate: Rate, cost: int, within_us: int) -> tuple[bool, int, int]:
    """The rule: whether the tokens are taken, how many microseconds to wait for them, and when the bucket is full again."""
    after = max(full_us, now_us) + cost * rate.interval_us
    wait = max(0, after - rate.burst * rate.interval_us - now_us)
    return (True, wait, after) if wait <= within_us else (False, wait, full_us)


FOREVER: Final = timedelta(days=365)


class LocalRateLimiter:
    """A rate limit of this process: `LocalRateLimiter(50, per=timedelta(seconds=1))`.

    :param count: so many in `per`, for each key.
    :param burst: so many at once, after a while in which there were none. Default `count`.
    :raises ConfigError: a number is too small.
    """

    def __init__(self, count: int, *, per: timedelta, burst: int | None = None) -> None:
        self._rate = Rate(count, per, count if burst is None else burst)
        self._clock: Clock = SystemClock()
        self._full: dict[str, int] = {}

    async def reserve(self, key: str = "", *, cost: int = 1, within: timedelta) -> timedelta:
        """Take `cost` tokens, which exist at the latest `within` from now; how long it is until then.

        :raises Limited: they do not; none is taken.
        """
        self._rate.check(cost)
        now_us = int(self._clock.now() * 1_000_000)
        taken, wait, full = take(self._full.get(key, 0), now_us, self._rate, cost, within // MICROSECOND)
        if not taken:
            raise RateLimitExceeded(key, wait * MICROSECOND)
        self._full[key] = full
        if len(self._full) > KEYS:
            # A bucket that is full is as good as none.
            self._full = {known: at for known, at in self._full.items() if at > now_us}
        return wait * MICROSECOND

    async def acquire(self, key: str = "", *, cost: int = 1, within: timedelta = FOREVER) -> None:
        """Take `cost` tokens, and wait until they exist.

        :raises Limited: that is longer than `within`.
        """
        await self._clock.sleep((await self.reserve(key, cost=cost, within=within)).total_seconds())

    def follow(self, clock: Clock) -> None:
        """Take the time from `clock` from now on."""
        self._clock = clock

    async def close(self) -> None:
        """Nothing is open."""


__all__ = ["FOREVER", "MICROSECOND", "LocalRateLimiter", "Rate", "RateLimitExceeded", "RateLimiter", "take"]
