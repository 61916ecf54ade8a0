"""Effects that happen once, though messages come twice: `Once`, and the rules of its claims."""

from warren.patterns.idempotency.once import Once, OnceStatistics

__all__ = ["Once", "OnceStatistics"]
