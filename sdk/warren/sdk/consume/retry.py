"""Retry policy: attempts in this process, then delayed redeliveries, then the dead letter queue."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Final, NamedTuple

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from warren.sdk.choices import check_number, check_whole_number
from warren.sdk.consume.delivery import Delivery
from warren.sdk.durations import Duration, duration
from warren.sdk.errors import ConfigError, HandlerOutcome, RemoteError, RetryLater
from warren.sdk.protocols import Clock, RetryPolicy

ATTEMPTS: Final = 3
JITTER_STEPS: Final = 8
"""Number of equal steps in which jitter can lengthen a delay. Steps keep the number of distinct delays
small, because a delay backend may need a queue for each of them."""


class Retry:
    """Retry policy by exception class: `Retry(3).then("5s", "1m", "10m").on(ConnectionError)`. Methods return copies.

    :param attempts: attempts in a row in this process, including the first; at least 1.
    :param first_wait: upper bound of the random wait before the second attempt; the bound doubles with each attempt.
    :param longest_wait: largest value of that bound.
    :raises ConfigError: if `attempts` is no whole number or less than 1, or a wait is not a duration.
    """

    def __init__(
        self, attempts: int = ATTEMPTS, *, first_wait: Duration = "50ms", longest_wait: Duration = "1s"
    ) -> None:
        check_whole_number("attempts", attempts)
        self._attempts = attempts
        self._first_wait = duration(first_wait, "first_wait")
        self._longest_wait = duration(longest_wait, "longest_wait")
        self._delays: tuple[timedelta, ...] = ()
        self._jitter = 0.0
        self._on: tuple[type[Exception], ...] = (Exception,)
        self._never: tuple[type[Exception], ...] = ()

    def then(self, *delays: Duration, jitter: float = 0.0) -> Retry:
        """Add delayed redeliveries, one for each delay in turn; each begins with new attempts in this process.

        The message waits on the broker, not in this process; a restart of either does not lose it.

        :param jitter: largest random addition to a delay, as a fraction of it (0.1 for up to 10 %), so that messages
            that failed together do not come back together.
        :raises ConfigError: if `jitter` is negative or no finite number, or a delay is not a duration.
        """
        check_number("jitter", jitter)
        changed = self._copy()
        changed._delays += tuple(duration(delay) for delay in delays)
        changed._jitter = jitter
        return changed

    def on(self, *errors: type[Exception]) -> Retry:
        """Retry only these errors. Every other error dead-letters the message at once."""
        changed = self._copy()
        changed._on = _classes(errors)
        return changed

    def never(self, *errors: type[Exception]) -> Retry:
        """Do not retry these errors, even if `on` includes them."""
        changed = self._copy()
        changed._never += _classes(errors)
        return changed

    @property
    def attempts_in_process(self) -> int:
        """Number of attempts in a row in this process, including the first."""
        return self._attempts

    @property
    def deliveries(self) -> int:
        """Number of deliveries of a message: the first, and one for each delay."""
        return 1 + len(self._delays)

    @property
    def delays(self) -> frozenset[timedelta]:
        """All delays that the policy can return, including those lengthened by jitter."""
        steps = range(JITTER_STEPS + 1) if self._jitter else (0,)
        return frozenset(self._with_jitter(delay, step) for delay in self._delays for step in steps)

    def attempts(self, clock: Clock) -> AsyncRetrying:
        """Return tenacity's object that repeats a call: as often as the policy allows in this process, after errors
        that it covers, with random waits between the attempts.

        :param clock: clock that measures the waits.
        """
        return AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(
                multiplier=self._first_wait.total_seconds(), max=self._longest_wait.total_seconds()
            ),
            retry=retry_if_exception(self._is_retried),
            sleep=clock.sleep,
            reraise=True,
        )

    def delay(self, error: Exception, delivery: Delivery) -> timedelta | None:
        """Return the delay after which the broker redelivers a message whose attempts in this process have failed.

        :param error: the error of the last attempt.
        :return: None if the policy does not retry the error, or all its delays have been used: dead-letter the message.
        """
        is_covered = isinstance(error, RetryLater) or self._is_retried(error)
        if not is_covered or delivery.attempt > len(self._delays):
            return None
        step = random.randint(0, JITTER_STEPS) if self._jitter else 0
        return self._with_jitter(self._delays[delivery.attempt - 1], step)

    def _is_retried(self, error: BaseException) -> bool:
        return is_retryable(error) and isinstance(error, self._on) and not isinstance(error, self._never)

    def _with_jitter(self, delay: timedelta, step: int) -> timedelta:
        return delay * (1 + self._jitter * step / JITTER_STEPS)

    def _copy(self) -> Retry:
        copy = Retry.__new__(Retry)
        copy.__dict__.update(self.__dict__)
        return copy


def is_retryable(error: BaseException) -> bool:
    """Return True if another attempt may succeed.

    False for a cancellation, for an outcome that the handler chose, and for a `RemoteError`, which is its answer.
    """
    return isinstance(error, Exception) and not isinstance(error, HandlerOutcome | RemoteError)


def _classes(errors: tuple[type[Exception], ...]) -> tuple[type[Exception], ...]:
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, Exception)):
            raise ConfigError(f"{error!r} is not an exception class")
    return errors


class AttemptNumber(NamedTuple):
    """Number of a failed attempt, counted over all deliveries, and the largest number: `2 of 3`."""

    attempt: int
    attempts: int | str
    """`?` for a policy of the user's own, which does not say."""

    @classmethod
    def of(cls, policy: RetryPolicy, delivery: Delivery, number: int) -> AttemptNumber:
        """Return the number of an attempt.

        :param number: number of the attempt in this process, from 1.
        """
        if not isinstance(policy, Retry):
            return cls(number, "?")
        before = (delivery.attempt - 1) * policy.attempts_in_process
        return cls(before + number, policy.attempts_in_process * policy.deliveries)


def check_retry_policy(retry: object) -> None:
    """Check that `retry=` is a retry policy or None.

    :raises ConfigError: if it is anything else, such as a number of attempts.
    """
    if retry is not None and not isinstance(retry, RetryPolicy):
        attempts = retry if isinstance(retry, int) else "..."
        raise ConfigError(f"retry={retry!r} is no retry policy: write retry=Retry({attempts})")
