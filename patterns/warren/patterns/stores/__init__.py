"""Stores for the state of patterns: Redis or PostgreSQL shared by processes, or a SQLite file on one machine."""

from warren.patterns.stores.postgres_store import PostgresStore
from warren.patterns.stores.redis_store import RedisStore
from warren.patterns.stores.sqlite_store import SqliteStore
from warren.patterns.stores.store import (
    KEY_BYTES,
    ListingStore,
    RuleResult,
    Store,
    StoreUnavailable,
    SwapResult,
    apply_rule,
    apply_rule_with_retry,
    record_key,
)

__all__ = [
    "KEY_BYTES",
    "ListingStore",
    "PostgresStore",
    "RedisStore",
    "RuleResult",
    "SqliteStore",
    "Store",
    "StoreUnavailable",
    "SwapResult",
    "apply_rule",
    "apply_rule_with_retry",
    "record_key",
]
