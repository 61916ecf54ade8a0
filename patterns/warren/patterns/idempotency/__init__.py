"""Effects that happen once, though messages come twice: with a store (`Once`), in the handler's own database transaction
(`TransactionalOnce`), or by the handler's nature (`Natural`)."""

from warren.patterns.idempotency.natural import Natural
from warren.patterns.idempotency.once import Once, OnceStatistics
from warren.patterns.idempotency.transactional_once import (
    TransactionalOnce,
    TransactionalStatistics,
    current_session,
)

__all__ = [
    "Natural",
    "Once",
    "OnceStatistics",
    "TransactionalOnce",
    "TransactionalStatistics",
    "current_session",
]
