"""Rate limit: handlers of some queues start at a limited rate; no message is lost.

Guarantees: an attempt to handle a message of these queues begins only with a token of the limiter's token bucket. A
message whose token becomes available soon waits for it, unacknowledged; one that would wait longer is acknowledged and
delayed in a wait queue. If the limiter's store fails, messages are delayed (`fail_closed`) or handled without a token
(`fail_open`).

Costs: one reservation per attempt, and a wait queue for each limited queue.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from warren.patterns.argument_checks import check_function, check_object
from warren.patterns.delay import wait_queue
from warren.patterns.rate_limit.rate_limiter import RateLimiter, RateLimitExceeded
from warren.patterns.stores import StoreUnavailable
from warren.sdk import App, Clock, ConfigError, DeadLetter, Delivery, SystemClock
from warren.sdk.extend import Duration, IncludedComponent, duration

log: logging.Logger = logging.getLogger("warren.patterns")

LIMITERS: Final = (
    "RedisRateLimiter(RedisStore('redis://HOST'), 'NAME', 50, per='1s') or LocalRateLimiter(50, per='1s')"
)
"""Remedy of the error for a missing rate limiter."""


@dataclass(slots=True)
class RateLimitStatistics:
    """Counters of one `RateLimit` in this process."""

    passed: int = 0
    """Attempts to handle a message that began with a token."""
    waited: int = 0
    """Attempts, among those that `passed` counts, that first waited for their token."""
    delayed: int = 0
    """Messages that were delayed because they would have waited longer than `wait` for their token."""
    unlimited: int = 0
    """Attempts that began without a token, because the store failed and `on_store_failure="fail_open"`."""
    postponed: int = 0
    """Messages that were delayed because the limiter's store failed and `on_store_failure="fail_closed"`."""


class RateLimit(IncludedComponent):
    """Middleware that limits the rate of handler starts on some queues: `app.include(RateLimit(limiter,
    queues=["payments"]))`.

    To limit a part of a handler instead, call `await limiter.acquire()` there.

    :param limiter: `RedisRateLimiter`, over all processes, or `LocalRateLimiter`.
    :param queues: queues whose handlers share the limit.
    :param key: returns the key of a delivery; each key has a rate of its own (`lambda delivery:
        delivery.headers["tenant"]`). By default all deliveries share one rate.
    :param wait: how long a message may wait for its token. It stays unacknowledged, and counts as one of the queue's
        concurrent handlers. Default 5 s.
    :param again_after: delay of a message that would have waited longer than `wait`. Default 5 s.
    :param on_store_failure: `fail_closed`, the default: the message is delayed by `again_after`; `fail_open`: it is
        handled.
    :raises ConfigError: there is no queue, or a duration is not positive.
    """

    def __init__(
        self,
        limiter: RateLimiter,
        *,
        queues: Sequence[str],
        key: Callable[[Delivery], str] | None = None,
        wait: Duration = timedelta(seconds=5),
        again_after: Duration = timedelta(seconds=5),
        on_store_failure: Literal["fail_closed", "fail_open"] = "fail_closed",
    ) -> None:
        check_object("RateLimit", limiter, "a rate limiter", ("reserve", "acquire", "use_clock"), LIMITERS)
        check_function("RateLimit: key", key, "key=lambda delivery: delivery.headers['tenant']")
        if not queues or isinstance(queues, str):
            raise ConfigError("RateLimit needs a list of queues: queues=['payments']")
        wait, again_after = duration(wait, "RateLimit: wait"), duration(again_after, "RateLimit: again_after")
        if min(wait, again_after - timedelta(milliseconds=1)) < timedelta(0):
            raise ConfigError(
                f"RateLimit: wait ({wait}) must not be negative, and again_after ({again_after}) must be at least 1 ms"
            )
        self.statistics: RateLimitStatistics = RateLimitStatistics()
        """Counters of what this object has done in this process."""
        self._limiter = limiter
        self._queues = frozenset(queues)
        self._key = key
        self._wait = wait
        self._again_after = again_after
        self._fail_open = on_store_failure == "fail_open"
        super().__init__()
        self._clock: Clock = SystemClock()

    @property
    def lost_without_app(self) -> str:
        return "its queues are consumed without a limit"

    def register(self, app: App) -> None:
        super().register(app)
        self._clock = app.clock
        self._limiter.use_clock(app.clock)
        app.declare(*(wait_queue(queue, self._again_after) for queue in self._queues))
        app.middleware(handle=self._limit)

    async def on_start(self) -> None:
        """Do nothing when the App starts: it calls this middleware for each message that it handles."""

    async def on_stop(self) -> None:
        """Close the limiter's connections."""
        await self._limiter.close()

    async def _limit(self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        if delivery.queue not in self._queues:
            await call_next(delivery)
            return
        try:
            rest = await self._limiter.reserve(self._key_of(delivery), within=self._wait)
        except RateLimitExceeded:
            self.statistics.delayed += 1
            await self._delay(delivery)
            return
        except StoreUnavailable as error:
            log.warning("event=rate_limit.store_failed queue=%s error=%s", delivery.queue, error)
            if not self._fail_open:
                self.statistics.postponed += 1
                await self._delay(delivery)
                return
            self.statistics.unlimited += 1
            await call_next(delivery)
            return
        if rest:
            self.statistics.waited += 1
            await self._clock.sleep(rest.total_seconds())
        self.statistics.passed += 1
        await call_next(delivery)

    def _key_of(self, delivery: Delivery) -> str:
        if self._key is None:
            return ""
        key = self._key(delivery)
        if not isinstance(key, str):
            raise DeadLetter(
                f"the rate limit of queue {delivery.queue}: the key of the message is {key!r}, not a text"
            )
        return key

    async def _delay(self, delivery: Delivery) -> None:
        waiting = wait_queue(delivery.queue, self._again_after)
        await self.included_in().forward(delivery, key=waiting.name)


__all__ = ["RateLimit", "RateLimitStatistics"]
