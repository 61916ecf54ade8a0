"""Reliability patterns on top of the SDK: deadlines, effects that happen once, delays, and the stores that
decide."""

from warren.patterns.dead_letter import ParkingLot
from warren.patterns.deadline import Deadline, DeadlineStatistics
from warren.patterns.decision import Outcome
from warren.patterns.delay import Cancellation, Delay, Levels, Native, WaitQueues, wait_queue
from warren.patterns.idempotency import (
    Natural,
    Once,
    OnceStatistics,
    TransactionalOnce,
    TransactionalStatistics,
    current_session,
)
from warren.patterns.outbox import Outbox, OutboxStatistics
from warren.patterns.store import PostgresStore, RedisStore, SqliteStore, Store, StoreUnavailable

__all__ = [
    "Cancellation",
    "Deadline",
    "DeadlineStatistics",
    "Delay",
    "Levels",
    "Native",
    "Natural",
    "Once",
    "OnceStatistics",
    "Outbox",
    "OutboxStatistics",
    "Outcome",
    "ParkingLot",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "Store",
    "StoreUnavailable",
    "TransactionalOnce",
    "TransactionalStatistics",
    "WaitQueues",
    "current_session",
    "wait_queue",
]
