"""Consumer options of a queue: concurrency, prefetch, ordering by key and circuit breaker."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from warren.sdk.choices import check_whole_number
from warren.sdk.consume.circuit_breaker import CircuitBreaker

CONCURRENCY: Final = 10
"""Default number of handlers of a queue that run at the same time."""
PREFETCH_PER_HANDLER: Final = 2
"""Default prefetch, as a multiple of the concurrency."""
LARGEST_PREFETCH: Final = 65_535
"""Largest prefetch count, which has 16 bits on the wire (AMQP 0-9-1, basic.qos)."""

OrderedBy = Callable[[Any], Hashable] | str
"""A function that returns a message's key, or the name of a header."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Options that all handlers of one queue share.

    :ivar concurrency: handlers that run at the same time.
    :ivar prefetch: messages that the broker sends ahead of their acknowledgement, 1 to 65,535.
    :ivar ordered_by: function or header name that gives the key of a message. Messages with the same key are handled
        one at a time, in the order of the queue. None without ordering by key.
    :ivar breaker: circuit breaker of the queue's subscription, or None.
    """

    concurrency: int
    prefetch: int
    ordered_by: OrderedBy | None = None
    breaker: CircuitBreaker | None = None

    @classmethod
    def of(
        cls,
        concurrency: int,
        prefetch: int | None,
        ordered_by: OrderedBy | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> ConsumerOptions:
        """Check the options and return them. If `prefetch` is None, it becomes `PREFETCH_PER_HANDLER` for each of
        the `concurrency` handlers that may run at a time.

        :raises ConfigError: if a number is no whole one, or out of its range.
        """
        check_whole_number("concurrency", concurrency)
        wanted = concurrency * PREFETCH_PER_HANDLER if prefetch is None else prefetch
        if prefetch is not None:
            check_whole_number("prefetch", prefetch, 1, LARGEST_PREFETCH)
        return cls(concurrency, min(wanted, LARGEST_PREFETCH), ordered_by, breaker)
