"""Outbox: publish messages if, and only if, the transaction that wrote them commits."""

from warren.patterns.outbox.outbox import Outbox
from warren.patterns.outbox.relay import OutboxStatistics

__all__ = ["Outbox", "OutboxStatistics"]
