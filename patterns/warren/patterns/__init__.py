"""Reliability patterns on top of the SDK: deadlines, effects that happen once, delays, and the stores that
decide."""

from warren.patterns.backoff import backoff
from warren.patterns.catch_all import CatchAll
from warren.patterns.dead_letters import ParkingLot
from warren.patterns.deadline import Deadline, DeadlineStatistics
from warren.patterns.deadline.rules import Outcome
from warren.patterns.delay import Cancellation, Delay, Ladder, Levels, Native, WaitQueues, wait_queue
from warren.patterns.idempotency import (
    Natural,
    Once,
    OnceStatistics,
    TransactionalOnce,
    TransactionalStatistics,
    current_session,
)
from warren.patterns.immediate import Immediate, NoConsumer
from warren.patterns.outbox import Outbox, OutboxStatistics
from warren.patterns.stores import PostgresStore, RedisStore, SqliteStore, Store, StoreUnavailable
from warren.patterns.work_queue import WorkQueue

__all__ = [
    "Cancellation",
    "CatchAll",
    "Deadline",
    "DeadlineStatistics",
    "Delay",
    "Immediate",
    "Ladder",
    "Levels",
    "Native",
    "Natural",
    "NoConsumer",
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
    "WorkQueue",
    "backoff",
    "current_session",
    "wait_queue",
]
