"""`MemoryStore`: records in the memory of this process, for tests."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from heapq import heappop, heappush

from warren.patterns.stores.store import SwapResult
from warren.sdk import Clock, SystemClock
from warren.sdk.extend import AppClock

log: logging.Logger = logging.getLogger("warren.patterns")


class MemoryStore:
    """Store in the memory of this process, for tests: `Once(MemoryStore())`, or in place of another store with
    `override_store`.

    Records are kept until their time has passed by the clock of the App whose patterns use the store, so by the test's
    clock in a test, and are lost with the process; `close` keeps them. Threads and event loops may share it. On the
    system's clock, so outside of tests, the first use logs a warning (`memory_store.used`): after a restart duplicates
    would be handled again, and deadlines, timers and sagas be forgotten.

    :param clock: clock of the records' times; by default that of the App.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock
        self._records: dict[str, tuple[bytes, float]] = {}
        self._expiries: list[tuple[float, str]] = []
        """Heap of the times at which records may be deleted. A record that was changed has an entry for each change."""
        self._lock = threading.Lock()
        self._warned = False

    def use_clock(self, clock: Clock) -> None:
        """Take the times of records from `clock`, unless the constructor got a clock (called by patterns)."""
        if self._clock is None:
            self._clock = clock

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        with self._lock:
            now = self._now()
            self._delete_expired(now)
            current = self._records.get(key, (None, 0.0))[0]
            if current != expected:
                return SwapResult(False, current)
            if record is None:
                self._records.pop(key, None)
            elif record != current:
                keep_until = now + keep_ms / 1000
                self._records[key] = record, keep_until
                heappush(self._expiries, (keep_until, key))
            return SwapResult(True, record)

    async def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        with self._lock:
            self._delete_expired(self._now())
            found = [(key, record) for key, (record, _) in self._records.items() if key.startswith(prefix)]
        for key, record in found:
            yield key, record

    async def close(self) -> None:
        """Do nothing: there is no connection, and the records stay for the next use."""

    def _now(self) -> float:
        clock = self._clock or SystemClock()
        followed = clock.followed if isinstance(clock, AppClock) else clock
        if isinstance(followed, SystemClock) and not self._warned:
            self._warned = True
            log.warning(
                "event=memory_store.used consequence=%s",
                "records of patterns are lost when this process ends, and no other process sees them; name a"
                " RedisStore, PostgresStore or SqliteStore",
            )
        return clock.now()

    def _delete_expired(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] < now:
            _, key = heappop(self._expiries)
            held = self._records.get(key)
            if held is not None and held[1] < now:
                del self._records[key]

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._records)} records)"


__all__ = ["MemoryStore"]
