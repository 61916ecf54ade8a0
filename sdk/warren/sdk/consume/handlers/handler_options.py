"""Options that every handler may have."""

from __future__ import annotations

from typing import TypedDict

from warren.sdk.consume.circuit_breaker import CircuitBreaker
from warren.sdk.consume.consumer_options import OrderedBy
from warren.sdk.protocols import Idempotency, RetryPolicy


class HandlerOptions(TypedDict, total=False):
    """Options of `app.handle`."""

    concurrency: int
    """Handlers that run at the same time for this queue, at least 1, 10 by default. All handlers of a queue share it."""
    prefetch: int | None
    """Messages that the broker sends ahead of their acknowledgement, 1 to 65,535; by default twice the concurrency."""
    ordered_by: OrderedBy | None
    """Key of a message: a function of it, or the name of a header. Messages with the same key are handled one at a time, in
    the order of the queue; other keys run concurrently. Redelivery and delays break the order."""
    breaker: CircuitBreaker | None
    """Circuit breaker, which pauses the consumption of the queue while its handlers keep failing."""
    retry: RetryPolicy | None
    """Retry policy; by default the App's."""
    once: Idempotency | None
    """Idempotency: a duplicate of a message gets the stored result, and the handler does not run again."""
