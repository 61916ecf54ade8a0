"""Rate limiters: token buckets per key, whose tokens can be reserved ahead."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from warren.sdk import Clock, WarrenError


class RateLimitExceeded(WarrenError):
    """No token within the permitted time; none was reserved.

    :ivar after: how long it is until there is one, if no other caller reserves it.
    """

    retryable: bool = True

    def __init__(self, key: str, after: timedelta) -> None:
        super().__init__(f"the rate limit of {key!r} is exhausted for {after}")
        self.after: timedelta = after


class RateLimiter(Protocol):
    """Rate limiter: `LocalRateLimiter` for one process, `RedisRateLimiter` for all processes."""

    async def reserve(self, key: str = "", *, cost: int = 1, within: timedelta) -> timedelta:
        """Reserve `cost` tokens that exist within `within` from now, and return how long it is until they do.

        :raises RateLimitExceeded: they do not; none is reserved.
        :raises StoreUnavailable: it is unknown whether they were reserved.
        """
        ...

    async def acquire(self, key: str = "", *, cost: int = 1, within: timedelta = ...) -> None:
        """Reserve `cost` tokens and wait until they exist, by default however long it takes; errors as for `reserve`."""
        ...

    def use_clock(self, clock: Clock) -> None:
        """Use `clock` from now on."""
        ...

    async def close(self) -> None:
        """Release connections. Idempotent; the next use opens them again."""
        ...


__all__ = ["RateLimitExceeded", "RateLimiter"]
