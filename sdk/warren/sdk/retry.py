"""The default retry policy: a few attempts in this process, then the dead letter queue."""

from __future__ import annotations

from datetime import timedelta

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from warren.sdk.delivery import Delivery
from warren.sdk.errors import ConfigError, HandlerOutcome, RemoteError
from warren.sdk.protocols import Clock


class InProcess:
    """So many attempts, with random waits that grow from 50 ms to 1 s.

    :param attempts: including the first; 1 for none beyond it.
    """

    def __init__(self, clock: Clock, attempts: int = 3) -> None:
        if attempts < 1:
            raise ConfigError("attempts must be at least 1")
        self._clock = clock
        self._attempts = attempts

    def attempts(self) -> AsyncRetrying:
        return AsyncRetrying(
            stop=stop_after_attempt(self._attempts),
            wait=wait_random_exponential(multiplier=0.05, max=1),
            retry=retry_if_exception(may_pass),
            sleep=self._clock.sleep,
            reraise=True,
        )

    def delay(self, error: Exception, delivery: Delivery) -> timedelta | None:
        return None


def may_pass(error: BaseException) -> bool:
    """Whether another attempt makes sense: not where the handler chose the outcome, nor for cancellation."""
    return isinstance(error, Exception) and not isinstance(error, HandlerOutcome | RemoteError)
