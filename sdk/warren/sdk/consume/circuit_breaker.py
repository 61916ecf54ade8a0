"""Circuit breaker: pause a subscription whose handlers keep failing, then try it with a single message."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from warren.sdk.choices import check_whole_number
from warren.sdk.durations import Duration, duration
from warren.sdk.exception_text import exception_text
from warren.sdk.logger import log
from warren.sdk.protocols import Clock, Timer


@dataclass(frozen=True)
class CircuitBreaker:
    """Circuit breaker of a handler: `breaker=CircuitBreaker(failures=5, pause="30s", on=(ConnectionError,))`.

    After `failures` failed messages in a row (each after its attempts in this process) the circuit
    opens: the subscription pauses, and failed messages return to their queue instead of going to
    the dead letter queue. After `pause` the circuit is half open: one message is handled as a
    trial. If that succeeds the circuit closes, else it opens again.

    :ivar failures: consecutive failures that open the circuit, at least 1.
    :ivar pause: a `timedelta`, seconds, or a text such as `30s`.
    :ivar on: exceptions that count as failures; others neither count nor reset the count.
    :raises ConfigError: if a value is out of its range.
    """

    failures: int = 5
    pause: Duration = timedelta(seconds=30)
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        check_whole_number("CircuitBreaker: failures", self.failures)
        duration(self.pause, "CircuitBreaker: pause")


class Pausable(Protocol):
    """The methods of a subscription that its circuit breaker calls.

    They have no effect after the user has paused or cancelled the subscription, or while the App is stopping.
    """

    def trip(self) -> bool:
        """Stop consuming, because the circuit opened.

        Returns False, and changes nothing, if the user has paused or
        cancelled the subscription, or the App is stopping.
        """
        ...

    def probe(self) -> bool:
        """Consume one message at a time, to test whether the handlers succeed again.

        Returns False, and changes nothing, if the user has paused or
        cancelled the subscription, or the App is stopping.
        """
        ...

    def close_circuit(self) -> None:
        """Consume normally again, unless the user has paused or cancelled the subscription, or the App is stopping."""
        ...


class Circuit:
    """State of one circuit breaker: closed, open, or half open while one message is handled as a trial."""

    def __init__(self, breaker: CircuitBreaker, subscription: Pausable, clock: Clock, queue: str) -> None:
        self._breaker = breaker
        self._subscription = subscription
        self._clock = clock
        self._queue = queue
        self._failures = 0
        self._half_open = False
        self._timer: Timer | None = None
        """Timer of the end of the pause; set while the circuit is open."""

    @property
    def is_open(self) -> bool:
        return self._timer is not None

    def failed(self, error: BaseException) -> bool:
        """Count a failed message, and open the circuit after `CircuitBreaker.failures` of them in a row or a failed
        trial; return True if the message has to return to its queue.

        The message returns to its queue if the circuit is open, opens now, or would open now
        but the subscription is paused, cancelled or stopping.

        :param error: the error of the message's last attempt; counted only if it is of a class in `CircuitBreaker.on`.
        """
        if not isinstance(error, self._breaker.on):
            return self.is_open
        self._failures += 1
        if self.is_open:
            return True
        if not self._half_open and self._failures < self._breaker.failures:
            return False
        self._half_open = False
        if not self._subscription.trip():
            # The subscription is paused by hand, cancelled or stopping: it consumes nothing, and this message can wait.
            return True
        pause = duration(self._breaker.pause)
        self._timer = self._clock.call_at(self._clock.now() + pause.total_seconds(), self._end_pause)
        # An error of a log handler must not decide about the message.
        with suppress(Exception):
            log.error(
                "event=circuit.opened queue=%s failures=%s pause_seconds=%g error_type=%s error=%s",
                self._queue, self._failures, pause.total_seconds(), type(error).__name__, exception_text(error),
            )  # fmt: skip
        return True

    def succeeded(self) -> None:
        """Reset the count of consecutive failures, because a message was handled; close a half-open circuit."""
        self._failures = 0
        if self._half_open:
            self._half_open = False
            self._subscription.close_circuit()
            with suppress(Exception):
                log.warning("event=circuit.closed queue=%s", self._queue)

    def reset(self) -> None:
        """Close the circuit and set the count of failures to 0.

        Called when the user pauses, resumes or cancels the subscription, and when the App stops.
        """
        self._failures = 0
        self._half_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_pause(self) -> None:
        self._timer = None
        if self._subscription.probe():
            self._half_open = True
            log.warning("event=circuit.half_opened queue=%s", self._queue)
