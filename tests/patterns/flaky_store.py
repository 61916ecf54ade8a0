"""A real store with faults: lost answers, outages, and hooks before and after each change."""

from __future__ import annotations

from collections.abc import AsyncIterator

from warren.patterns import ListingStore, StoreUnavailable
from warren.patterns.stores import SwapResult


class FlakyStore:
    """Store that wraps a real one and injects faults.

    :param only: prefix of the keys whose changes are counted
    :ivar down: every operation fails before it reaches the store
    :ivar lose_answer_of: numbers of changes, from 1, that are made and whose answers are lost.
    """

    def __init__(self, store: ListingStore, only: str = "") -> None:
        self._store = store
        self._only = only
        self.down = False
        self.lose_answer_of: set[int] = set()
        self.changes = 0

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        if self.down:
            raise StoreUnavailable("down, as the test says")
        counted = record != expected and key.startswith(self._only)
        if counted:
            await self.before(self.changes + 1)
        swap = await self._store.compare_and_set(key, expected, record, keep_ms=keep_ms)
        if swap.swapped and counted:
            self.changes += 1
            await self.after(self.changes)
            if self.changes in self.lose_answer_of:
                raise StoreUnavailable("the answer is lost, as the test says")
        return swap

    async def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        if self.down:
            raise StoreUnavailable("down, as the test says")
        async for entry in self._store.records(prefix):
            yield entry

    async def before(self, change: int) -> None:
        """Run before this change is sent to the store; tests override this."""

    async def after(self, change: int) -> None:
        """Run after the change is made; tests override this."""

    async def close(self) -> None:
        await self._store.close()
