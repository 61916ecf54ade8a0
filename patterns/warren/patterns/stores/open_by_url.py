"""A store by its address, for commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from warren.core.errors import UsageError
from warren.patterns.stores.postgres_store import PostgresStore
from warren.patterns.stores.redis_store import RedisStore
from warren.patterns.stores.sqlite_store import SqliteStore
from warren.patterns.stores.store import ListingStore


def store_from_url(address: str, *, prefix: str = "warren:") -> ListingStore:
    """The store at `redis://...`, `postgresql://...`, or in an SQLite file that exists.

    :param prefix: of the keys in Redis.
    :raises UsageError: there is none.
    """
    scheme = urlsplit(address).scheme if "://" in address else ""
    if scheme in ("redis", "rediss", "unix"):
        return RedisStore(address, prefix=prefix)
    if scheme in ("postgresql", "postgres"):
        return PostgresStore(address)
    if scheme or not Path(address).is_file():
        raise UsageError(
            f"there is no store at {address}: redis://HOST:PORT/DATABASE, postgresql://HOST/DATABASE, or an SQLite file"
            if not scheme
            else f"a store is at redis://..., postgresql://..., or in an SQLite file, not at {scheme}://"
        )
    return SqliteStore(address)


@asynccontextmanager
async def open_store_from_url(address: str, prefix: str) -> AsyncIterator[ListingStore]:
    """`store_from_url`, closed at the end."""
    store = store_from_url(address, prefix=prefix)
    try:
        yield store
    finally:
        await store.close()


__all__ = ["open_store_from_url", "store_from_url"]
