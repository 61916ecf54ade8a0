"""Stores of decisions: in Redis or PostgreSQL, shared by processes, and in a SQLite file, where one machine suffices."""

from warren.patterns.store.contract import (
    KEY_BYTES,
    ListingStore,
    Step,
    Store,
    StoreUnavailable,
    Swap,
    decide,
    decide_patiently,
    record_key,
)
from warren.patterns.store.postgres import PostgresStore
from warren.patterns.store.redis import RedisStore
from warren.patterns.store.sqlite import SqliteStore

__all__ = [
    "KEY_BYTES",
    "ListingStore",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "Step",
    "Store",
    "StoreUnavailable",
    "Swap",
    "decide",
    "decide_patiently",
    "record_key",
]
