"""Idempotency: effects that happen once although a message may be delivered several times.

The protection uses a store (`Once`) or the handler's own database transaction (`TransactionalOnce`), or declares that
none is needed (`NaturallyIdempotent`).
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
