"""Reliability patterns on top of the SDK. All public names can be imported from here; optional packages, such as
database drivers, are imported only when a pattern that needs them is used."""

from typing import TYPE_CHECKING

from warren.core.misplaced_names import raise_missing_name
from warren.patterns.backoff import backoff
from warren.patterns.catch_all import CatchAll
from warren.patterns.claim_check import (
    BlobClaim,
    BlobStore,
    BlobStoreUnavailable,
    ClaimCheck,
    ClaimCheckStatistics,
    FolderBlobStore,
    S3BlobStore,
)
from warren.patterns.dead_letters import (
    Cause,
    DeadLetterGroup,
    DeadLetterSelection,
    LetterEdit,
    ParkedMessage,
    ParkingLot,
    SelectionResult,
    dead_letter_queue,
    discard,
    group,
    replay,
    replay_edited,
)
from warren.patterns.deadline import (
    Deadline,
    DeadlineOutcome,
    DeadlineStatistics,
)
from warren.patterns.delay import (
    BinaryDelayQueues,
    Cancellation,
    Delay,
    DelayedExchange,
    DelayedMessage,
    DelayLadder,
    DelayStatistics,
    DelayStrategy,
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
from warren.patterns.immediate import (
    Immediate,
    NoConsumer,
)
from warren.patterns.outbox import (
    Outbox,
    OutboxStatistics,
)
from warren.patterns.partitions import Partitions
from warren.patterns.protection import (
    Encryption,
    ProtectionStatistics,
    Signing,
)
from warren.patterns.rate_limit import (
    LocalRateLimiter,
    RateLimit,
    RateLimiter,
    RateLimitExceeded,
    RateLimitStatistics,
    RedisRateLimiter,
)
from warren.patterns.resequencer import (
    Resequencer,
    ResequencerStatistics,
    SequenceNumbers,
)
from warren.patterns.routing_slip import (
    AbortRoutingSlip,
    RoutingSlipEnded,
    RoutingSlips,
    RoutingSlipStatistics,
    RoutingSlipStep,
)
from warren.patterns.saga import (
    COMPENSATED,
    COMPENSATING,
    COMPLETED,
    CompensateSaga,
    Compensation,
    CompleteSaga,
    Saga,
    SagaHistory,
    SagaStatistics,
    SagaTransition,
    StayInState,
    TransitionTo,
)
from warren.patterns.stores import (
    ListingStore,
    MemoryStore,
    PostgresStore,
    RedisStore,
    SqliteStore,
    Store,
    StoreUnavailable,
    override_store,
)
from warren.patterns.timers import (
    CronSchedule,
    DateSchedule,
    IntervalSchedule,
    MissedPolicy,
    Schedule,
    TimerInfo,
    Timers,
    TimersStatistics,
)
from warren.patterns.work_queue import (
    WorkQueue,
    WorkQueueStatistics,
)

__all__ = [
    "COMPENSATED",
    "COMPENSATING",
    "COMPLETED",
    "AbortRoutingSlip",
    "BinaryDelayQueues",
    "BlobClaim",
    "BlobStore",
    "BlobStoreUnavailable",
    "Cancellation",
    "CatchAll",
    "Cause",
    "ClaimCheck",
    "ClaimCheckStatistics",
    "CompensateSaga",
    "Compensation",
    "CompleteSaga",
    "CronSchedule",
    "DateSchedule",
    "DeadLetterGroup",
    "DeadLetterSelection",
    "Deadline",
    "DeadlineOutcome",
    "DeadlineStatistics",
    "Delay",
    "DelayLadder",
    "DelayStatistics",
    "DelayStrategy",
    "DelayedExchange",
    "DelayedMessage",
    "Encryption",
    "FolderBlobStore",
    "Immediate",
    "IntervalSchedule",
    "LetterEdit",
    "ListingStore",
    "LocalRateLimiter",
    "MemoryStore",
    "MissedPolicy",
    "NaturallyIdempotent",
    "NoConsumer",
    "Once",
    "OnceStatistics",
    "Outbox",
    "OutboxStatistics",
    "ParkedMessage",
    "ParkingLot",
    "Partitions",
    "PostgresStore",
    "ProtectionStatistics",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitStatistics",
    "RateLimiter",
    "RedisRateLimiter",
    "RedisStore",
    "Resequencer",
    "ResequencerStatistics",
    "RoutingSlipEnded",
    "RoutingSlipStatistics",
    "RoutingSlipStep",
    "RoutingSlips",
    "S3BlobStore",
    "Saga",
    "SagaHistory",
    "SagaStatistics",
    "SagaTransition",
    "Schedule",
    "SelectionResult",
    "SequenceNumbers",
    "Signing",
    "SqliteStore",
    "StayInState",
    "Store",
    "StoreUnavailable",
    "TimerInfo",
    "Timers",
    "TimersStatistics",
    "TransactionalOnce",
    "TransactionalOnceStatistics",
    "TransitionTo",
    "WaitQueues",
    "WorkQueue",
    "WorkQueueStatistics",
    "backoff",
    "current_session",
    "dead_letter_queue",
    "discard",
    "group",
    "override_store",
    "replay",
    "replay_edited",
    "wait_queue",
]

if not TYPE_CHECKING:
    # Type checkers must not see it: with it, they would accept any name.
    def __getattr__(name: str) -> object:
        raise_missing_name(__name__, "warren.sdk", name)
