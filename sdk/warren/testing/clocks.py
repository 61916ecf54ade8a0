"""Clock for Apps under test that counts the handlers which are sleeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from warren.sdk import Clock, Delivery, Timer, current_delivery
from warren.sdk.extend import poll_at


class HandlerClock:
    """Clock that Apps under test use. It counts the sleeping handlers by queue, so that the test
    harness does not wait for them as it does for running ones.

    It follows the clock of the test environment: a handler that awaits its `sleep`
    continues when the test has advanced the time far enough.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asleep: Counter[Delivery] = Counter()

    def now(self) -> float:
        return self._clock.now()

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return self._clock.call_at(when, callback)

    def poll_at(self, when: float, callback: Callable[[], object]) -> Timer:
        return poll_at(self._clock, when, callback)

    async def sleep(self, seconds: float) -> None:
        with self._sleeping(current_delivery()):
            await self._clock.sleep(seconds)

    def asleep(self) -> Counter[str]:
        """Return the number of deliveries whose handler is sleeping, by queue."""
        return Counter(delivery.queue for delivery in self._asleep)

    @contextmanager
    def _sleeping(self, delivery: Delivery | None) -> Iterator[None]:
        if delivery is None:
            yield
            return
        self._asleep[delivery] += 1
        try:
            yield
        finally:
            self._asleep[delivery] -= 1
            if not self._asleep[delivery]:
                del self._asleep[delivery]
