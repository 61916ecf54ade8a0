"""Reliability patterns on top of the SDK: deadlines, effects that happen once, delays, and the stores that
decide."""

from warren.patterns.backoff import backoff
from warren.patterns.catch_all import CatchAll
from warren.patterns.dead_letters import ParkingLot
from warren.patterns.deadline import Deadline, DeadlineStatistics
from warren.patterns.deadline.rules import DeadlineOutcome
from warren.patterns.delay import (
    BinaryDelayQueues,
    Cancellation,
    Delay,
    DelayedExchange,
    DelayLadder,
    WaitQueues,
    wait_queue,
)
from warren.patterns.idempotency import (
    NaturallyIdempotent,
    Once,
    OnceStatistics,
    TransactionalOnce,
    TransactionalOnceStatistics,
    current_session,
)
from warren.patterns.immediate import Immediate, NoConsumer
from warren.patterns.outbox import Outbox, OutboxStatistics
from warren.patterns.stores import PostgresStore, RedisStore, SqliteStore, Store, StoreUnavailable
from warren.patterns.work_queue import WorkQueue

__all__ = [
    "BinaryDelayQueues",
    "Cancellation",
    "CatchAll",
    "Deadline",
    "DeadlineOutcome",
    "DeadlineStatistics",
    "Delay",
    "DelayLadder",
    "DelayedExchange",
    "Immediate",
    "NaturallyIdempotent",
    "NoConsumer",
    "Once",
    "OnceStatistics",
    "Outbox",
    "OutboxStatistics",
    "ParkingLot",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "Store",
    "StoreUnavailable",
    "TransactionalOnce",
    "TransactionalOnceStatistics",
    "WaitQueues",
    "WorkQueue",
    "backoff",
    "current_session",
    "wait_queue",
]
