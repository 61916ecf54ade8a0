"""Rate limiters: token buckets per key, whose tokens can be reserved before they are available."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Protocol

from warren.sdk import Clock, WarrenError
from warren.sdk.extend import Duration


class RateLimitExceeded(WarrenError):
    """The requested tokens do not become available within the permitted time; none was reserved.

    :ivar after: time until they become available, if no other caller reserves them.
    """

    help_section: ClassVar[str] = "patterns"
    retryable: bool = True

    def __init__(self, key: str, after: timedelta) -> None:
        super().__init__(f"the rate limit of {key!r} is exhausted for {after}")
        self.after: timedelta = after


class RateLimiter(Protocol):
    """Token bucket for each key: `LocalRateLimiter` for one process, `RedisRateLimiter` for all processes together."""

    async def reserve(self, key: str = "", *, cost: int = 1, within: Duration) -> timedelta:
        """Reserve `cost` tokens if all of them become available within the time `within`, and return the time until
        then.

        :param key: whose tokens to use, such as a customer's id; each key has a bucket of its own.
        :raises RateLimitExceeded: the tokens become available only later; none is reserved.
        :raises StoreUnavailable: it is unknown whether they were reserved.
        :raises ConfigError: `cost` is below 1 or above the burst.
        """
        ...

    async def acquire(self, key: str = "", *, cost: int = 1, within: Duration = ...) -> None:
        """Reserve `cost` tokens and wait until they are available.

        :param key: whose tokens to use, such as a customer's id; each key has a bucket of its own.
        :param within: longest wait; by default 365 days.
        :raises RateLimitExceeded: the wait would be longer than `within`; none is reserved.
        :raises StoreUnavailable: it is unknown whether the tokens were reserved.
        :raises ConfigError: `cost` is below 1 or above the burst.
        """
        ...

    def use_clock(self, clock: Clock) -> None:
        """Use `clock` from now on to wait for tokens."""
        ...

    async def close(self) -> None:
        """Close the limiter's connections. Idempotent; the next use opens them again."""
        ...


__all__ = ["RateLimitExceeded", "RateLimiter"]
