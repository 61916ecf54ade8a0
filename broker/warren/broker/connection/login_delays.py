"""Delays of refused logins, which slow down the guessing of passwords."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from warren.broker.connection.client_network import client_network

MOST_DELAY: Final = 3.0
"""Longest delay of a refusal in seconds, unless the first delay is longer. RabbitMQ's Java client waits for 5 seconds."""
FORGET_SECONDS: Final = 60.0
"""Seconds after the last refused login of an address until its next one is the first again."""
MOST_NETWORKS: Final = 4096
"""Most addresses that are remembered; the one whose last refused login is the longest ago is forgotten for another."""


class LoginDelays:
    """Delays of refused logins: they double with each refused login of the same client address, up to MOST_DELAY.

    RabbitMQ sends such refusals at once.

    :param first: seconds of the first delay; 0 delays nothing.
    :param time: returns the time in seconds.
    """

    def __init__(self, first: float, time: Callable[[], float]) -> None:
        self._first = first
        self._time = time
        self._refused: dict[str, tuple[int, float]] = {}
        """Number of refused logins and time of the last one, by network, the longest ago first."""

    def next_delay(self, address: str) -> float:
        """Count a refused login of an address, and return the seconds after which it is refused."""
        if not self._first:
            return 0.0
        now = self._time()
        network = client_network(address)
        count, last = self._refused.pop(network, (0, now))
        if now - last > FORGET_SECONDS:
            count = 0
        self._refused[network] = (count + 1, now)
        if len(self._refused) > MOST_NETWORKS:
            del self._refused[next(iter(self._refused))]
        return max(self._first, min(self._first * 2.0 ** min(count, 32), MOST_DELAY))
