"""Replacement of stores in tests: patterns use their store by a `StoreReference`, which `override_store` redirects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import cast

from warren.patterns.stores.memory_store import MemoryStore
from warren.patterns.stores.store import ListingStore, Store, SwapResult
from warren.sdk import Clock, ConfigError

_overrides: dict[int, Store] = {}
"""Replacements by the identity of the store that they replace, while `override_store` holds both."""


def current_store(store: Store) -> Store:
    """Return the store that replaces `store` now, or `store` itself."""
    return _overrides.get(id(store), store)


class StoreReference:
    """Store of a pattern: passes each call to the store that the pattern was created with, or to its replacement.

    :param store: the store that the pattern was created with.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock: Clock | None = None

    def use_clock(self, clock: Clock) -> None:
        """Use the App's clock for a `MemoryStore` that has none of its own."""
        self._clock = clock

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        return await self._current().compare_and_set(key, expected, record, keep_ms=keep_ms)

    def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        return cast("ListingStore", self._current()).records(prefix)

    async def close(self) -> None:
        await self._current().close()

    def _current(self) -> Store:
        store = current_store(self._store)
        if isinstance(store, MemoryStore) and self._clock is not None:
            store.use_clock(self._clock)
        return store


@contextmanager
def override_store(store: Store, other: Store) -> Iterator[None]:
    """Let all patterns that were created with `store` use `other` instead until the block ends, for tests:
    `with override_store(redis, MemoryStore()):`.

    This concerns `Once`, `Deadline`, `Delay`, `Resequencer`, `SequenceNumbers`, `Saga` and `Timers`, in every App and
    without one. Start and stop the Apps inside the block: a running one would lose sight of its records. A
    `RedisRateLimiter` limits this process only while its store is replaced by another kind. `Outbox` and
    `TransactionalOnce` work in the application's own database.

    :param store: the object that the patterns were created with; the store itself need not be reachable.
    :param other: the replacement, such as `MemoryStore()`.
    :raises ConfigError: `store` or `other` is no store, or `other` cannot list its records although `store` can.
    """
    if isinstance(store, StoreReference) or not hasattr(store, "compare_and_set"):
        raise ConfigError(
            "override_store replaces a store that patterns were created with, not a"
            f" {type(store).__name__}: pass that store object; Outbox, TransactionalOnce and LocalRateLimiter have none"
        )
    if isinstance(other, StoreReference) or not hasattr(other, "compare_and_set"):
        raise ConfigError(
            f"override_store needs a store as the replacement, such as MemoryStore(), not {other!r}"
        )
    if hasattr(store, "records") and not hasattr(other, "records"):
        raise ConfigError(
            f"{type(other).__name__} cannot replace {type(store).__name__}: it has no `records`, which lists its records"
        )
    before = _overrides.get(id(store))
    _overrides[id(store)] = other
    try:
        yield
    finally:
        if before is None:
            del _overrides[id(store)]
        else:
            _overrides[id(store)] = before


__all__ = ["StoreReference", "current_store", "override_store"]
