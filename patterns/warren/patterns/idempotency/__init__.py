"""Idempotency: effects that happen once although messages are delivered twice.

With a store (`Once`), in the handler's own database transaction (`TransactionalOnce`), or by the handler's nature
(`NaturallyIdempotent`).
"""

from warren.patterns.idempotency.naturally_idempotent import NaturallyIdempotent
from warren.patterns.idempotency.once import Once, OnceStatistics
from warren.patterns.idempotency.transactional_once import (
    TransactionalOnce,
    TransactionalOnceStatistics,
    current_session,
)

__all__ = [
    "NaturallyIdempotent",
    "Once",
    "OnceStatistics",
    "TransactionalOnce",
    "TransactionalOnceStatistics",
    "current_session",
]
