"""How a queue's messages are taken: how many at a time, in which order, and when not."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from warren.sdk.consume.circuit_breaker import CircuitBreaker
from warren.sdk.errors import ConfigError

CONCURRENCY: Final = 10
PREFETCH_PER_HANDLER: Final = 2
LARGEST_PREFETCH: Final = 65_535
"""It is 16 bits on the wire (AMQP 0-9-1, basic.qos)."""

OrderedBy = Callable[[Any], Hashable] | str
"""A function of the message, or the name of a header."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What all handlers of one queue agree on.

    :ivar concurrency: handlers at a time.
    :ivar prefetch: messages that the broker sends ahead of their acknowledgement.
    :ivar ordered_by: messages of one key are handled one at a time, in the order of the queue.
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
        """:raises ConfigError: if a number is out of its range."""
        if concurrency < 1:
            raise ConfigError("concurrency must be at least 1")
        wanted = concurrency * PREFETCH_PER_HANDLER if prefetch is None else prefetch
        if prefetch is not None and not 1 <= prefetch <= LARGEST_PREFETCH:
            raise ConfigError(f"prefetch must be from 1 to {LARGEST_PREFETCH}")
        return cls(concurrency, min(wanted, LARGEST_PREFETCH), ordered_by, breaker)
