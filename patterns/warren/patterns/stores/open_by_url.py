"""Opening of a store by its URL, for command-line tools."""

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
    """Return the store at `redis://...` or `postgresql://...`, or in an existing SQLite file.

    :param prefix: prefix of all keys in Redis.
    :raises UsageError: the address is neither such a URL nor an existing SQLite file.
    """
    scheme = urlsplit(address).scheme if "://" in address else ""
    if scheme in ("redis", "rediss", "unix"):
        return RedisStore(address, prefix=prefix)
    if scheme in ("postgresql", "postgres"):
        return PostgresStore(address)
    if scheme or not Path(address).is_file():
        raise UsageError(
            f"there is no store at {address}: give redis://HOST:PORT/DATABASE, postgresql://HOST/DATABASE, or the path of"
            " an existing SQLite file"
            if not scheme
            else f"{scheme}:// is no store: give redis://..., postgresql://..., or the path of an SQLite file"
        )
    return SqliteStore(address)


@asynccontextmanager
async def open_store_from_url(address: str, prefix: str) -> AsyncIterator[ListingStore]:
    """Open the store at `address` (a URL of Redis or PostgreSQL, or an existing SQLite file), and close it at the
    end of the block.

    :param prefix: prefix of all keys in Redis; not used by the other stores.
    :raises UsageError: the address is neither such a URL nor an existing SQLite file.
    """
    store = store_from_url(address, prefix=prefix)
    try:
        yield store
    finally:
        await store.close()


__all__ = ["open_store_from_url", "store_from_url"]
