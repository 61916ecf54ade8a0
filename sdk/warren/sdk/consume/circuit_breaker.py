"""The circuit breaker: a queue whose handlers keep failing is left alone for a while, and then tried with one message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from warren.sdk.durations import Duration, duration
from warren.sdk.errors import ConfigError
from warren.sdk.logger import log
from warren.sdk.protocols import Clock, Timer


@dataclass(frozen=True)
class CircuitBreaker:
    """`breaker=CircuitBreaker(failures=5, pause="30s", on=(ConnectionError,))` of a handler.

    After so many failures in a row (each after its attempts) the subscription is paused, and what fails goes back to its
    queue instead of to the dead letter queue. After the pause one message is tried: if it succeeds, the subscription goes
    on, else it is paused again.

    :ivar failures: in a row.
    :ivar pause: how long; a `timedelta`, seconds, or a text such as `30s`.
    :ivar on: the exceptions that count; others neither count nor end the row.
    """

    failures: int = 5
    pause: Duration = timedelta(seconds=30)
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ConfigError("CircuitBreaker: failures must be at least 1")
        duration(self.pause)


class Pausable(Protocol):
    """The subscription, as a circuit needs it."""

    def trip(self) -> bool:
        """Take nothing more; False if somebody else decides already what is taken."""
        ...

    def probe(self) -> bool:
        """Take one message at a time; False as for `trip`."""
        ...

    def close_circuit(self) -> None:
        """Take messages as before, unless somebody else decides."""
        ...


class Circuit:
    """One breaker of one subscription: closed, open, or half open while one message is tried."""

    def __init__(self, breaker: CircuitBreaker, subscription: Pausable, clock: Clock, queue: str) -> None:
        self._breaker = breaker
        self._subscription = subscription
        self._clock = clock
        self._queue = queue
        self._failures = 0
        self._probing = False
        self._timer: Timer | None = None

    @property
    def open(self) -> bool:
        return self._timer is not None

    def failed(self, error: Exception) -> bool:
        """A message has failed; returns whether it is to go back to its queue."""
        if not isinstance(error, self._breaker.on):
            return self.open
        self._failures += 1
        if self.open:
            return True
        if not self._probing and self._failures < self._breaker.failures:
            return False
        self._probing = False
        if not self._subscription.trip():
            # Paused by hand, cancelled or stopping: it takes nothing more as it is, and this message can wait.
            return True
        pause = duration(self._breaker.pause)
        log.error(
            "circuit open: queue=%s failures=%s pause=%gs error=%s: %s",
            self._queue, self._failures, pause.total_seconds(), type(error).__name__, error,
        )  # fmt: skip
        self._timer = self._clock.call_at(self._clock.now() + pause.total_seconds(), self._half_open)
        return True

    def succeeded(self) -> None:
        self._failures = 0
        if self._probing:
            self._probing = False
            log.warning("circuit closed: queue=%s", self._queue)
            self._subscription.close_circuit()

    def reset(self) -> None:
        """Forget the failures: somebody else decides what is taken, or nobody does any more."""
        self._failures = 0
        self._probing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _half_open(self) -> None:
        self._timer = None
        if self._subscription.probe():
            self._probing = True
            log.warning("circuit half open: queue=%s", self._queue)
