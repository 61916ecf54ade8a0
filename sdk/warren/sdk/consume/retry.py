"""Retry: a few attempts in this process, then delayed redeliveries, then the dead letter queue; by exception class."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Final

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from warren.sdk.consume.delivery import Delivery
from warren.sdk.durations import Duration, duration
from warren.sdk.errors import ConfigError, HandlerOutcome, RemoteError, RetryLater
from warren.sdk.protocols import Clock

ATTEMPTS: Final = 3
JITTER_STEPS: Final = 8
"""A random delay is one of so many and one, so that a backend with a queue a value needs no more queues."""


class Retry:
    """`Retry(3).then("5s", "1m", "10m").on(ConnectionError)`; each call returns a changed copy.

    :param attempts: in this process and in a row, including the first; 1 for none beyond it.
    :param first_wait: the first wait between them is random below it, and each later bound doubles.
    :param longest_wait: the cap of that bound.
    :raises ConfigError: if there are no attempts, or a wait is no duration.
    """

    def __init__(
        self, attempts: int = ATTEMPTS, *, first_wait: Duration = "50ms", longest_wait: Duration = "1s"
    ) -> None:
        if attempts < 1:
            raise ConfigError("attempts must be at least 1")
        self._attempts = attempts
        self._first_wait = duration(first_wait)
        self._longest_wait = duration(longest_wait)
        self._delays: tuple[timedelta, ...] = ()
        self._jitter = 0.0
        self._on: tuple[type[Exception], ...] = (Exception,)
        self._never: tuple[type[Exception], ...] = ()

    def then(self, *delays: Duration, jitter: float = 0.0) -> Retry:
        """After the attempts here, redeliver after each of these delays in turn, with attempts here each time.

        The message waits on the broker, not in this process; a restart of either loses nothing.

        :param jitter: the share of a delay that is added at random, so that what failed together does not come back
            together.
        """
        if jitter < 0:
            raise ConfigError("jitter must not be negative")
        changed = self._copy()
        changed._delays += tuple(duration(delay) for delay in delays)
        changed._jitter = jitter
        return changed

    def on(self, *errors: type[Exception]) -> Retry:
        """Retry only these; every other error dead-letters the message at once."""
        changed = self._copy()
        changed._on = _classes(errors)
        return changed

    def never(self, *errors: type[Exception]) -> Retry:
        """Never retry these, though they are among those of `on`."""
        changed = self._copy()
        changed._never += _classes(errors)
        return changed

    @property
    def delays(self) -> frozenset[timedelta]:
        """Every delay that may be asked for."""
        steps = range(JITTER_STEPS + 1) if self._jitter else (0,)
        return frozenset(self._stretched(delay, step) for delay in self._delays for step in steps)

    def attempts(self, clock: Clock) -> AsyncRetrying:
        return AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(
                multiplier=self._first_wait.total_seconds(), max=self._longest_wait.total_seconds()
            ),
            retry=retry_if_exception(self._again),
            sleep=clock.sleep,
            reraise=True,
        )

    def delay(self, error: Exception, delivery: Delivery) -> timedelta | None:
        asked = isinstance(error, RetryLater) or self._again(error)
        if not asked or delivery.attempt > len(self._delays):
            return None
        step = random.randint(0, JITTER_STEPS) if self._jitter else 0
        return self._stretched(self._delays[delivery.attempt - 1], step)

    def _again(self, error: BaseException) -> bool:
        return may_pass(error) and isinstance(error, self._on) and not isinstance(error, self._never)

    def _stretched(self, delay: timedelta, step: int) -> timedelta:
        return delay * (1 + self._jitter * step / JITTER_STEPS)

    def _copy(self) -> Retry:
        copy = Retry.__new__(Retry)
        copy.__dict__.update(self.__dict__)
        return copy


def may_pass(error: BaseException) -> bool:
    """Whether another attempt makes sense: not where the handler chose the outcome, nor for cancellation."""
    return isinstance(error, Exception) and not isinstance(error, HandlerOutcome | RemoteError)


def _classes(errors: tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise ConfigError(f"{error!r} is no exception class")
    return errors
