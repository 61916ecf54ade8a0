"""Stores for the state of patterns: Redis or PostgreSQL for processes, SQLite on one machine, memory in tests."""

from warren.patterns.stores.memory_store import MemoryStore
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
    listed_key,
    record_key,
    required_key,
)
from warren.patterns.stores.store_override import StoreReference, override_store

__all__ = [
    "KEY_BYTES",
    "ListingStore",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "RuleResult",
    "SqliteStore",
    "Store",
    "StoreReference",
    "StoreUnavailable",
    "SwapResult",
    "apply_rule",
    "apply_rule_with_retry",
    "listed_key",
    "override_store",
    "record_key",
    "required_key",
]
