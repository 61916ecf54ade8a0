"""Store protocol: one record per key, changed only by an atomic compare-and-set.

A store knows nothing of claims or deadlines. It replaces a record if the record is still the expected one, in one Lua
script (`RedisStore`), one statement (`PostgresStore`) or one transaction (`SqliteStore`). The rules of each pattern
are pure functions from a record to the next one (`warren.patterns.idempotency.rules`,
`warren.patterns.deadline.rules`), so they are written once for every store.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from warren.sdk import Clock, WarrenError
from warren.sdk.extend import Outcome

Answer = TypeVar("Answer")


class StoreUnavailable(WarrenError):
    """The store did not answer in time, so the requested change may or may not have been made. Retryable."""

    retryable: bool = True
    outcome: Outcome = "unknown"


class SwapResult(NamedTuple):
    """Result of a compare-and-set.

    :ivar swapped: the record was the expected one.
    :ivar current: the record now; None if there is none.
    """

    swapped: bool
    current: bytes | None


KEY_BYTES: Final = 256
"""Longest key, in bytes of UTF-8, that is stored as it is; a longer one is stored by its SHA-256 digest."""
FIRST_RETRY_SECONDS: Final = 0.02
"""Wait before the first retry of a failed store; it doubles up to `MAX_RETRY_SECONDS`."""
MAX_RETRY_SECONDS: Final = 1.0


class Store(Protocol):
    """Place for the records of patterns. A record is a non-empty byte string; `None` stands for no record."""

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        """Replace the record of `key` if it is `expected`, atomically among all users of the store.

        With `record == expected` nothing is written: the call is a read. The record is kept for at least `keep_ms`
        milliseconds of real time; after that the store may delete it. The rules, not the store, interpret what a
        record means at a given time.

        :return: whether the record was `expected`, and the record now.
        :raises StoreUnavailable: the store did not answer. The change may have been made or not, so rules must
            recognise their own earlier attempt.
        """
        ...

    async def close(self) -> None:
        """Release connections, threads and files. Idempotent; the next use opens the store again."""
        ...


class ListingStore(Store, Protocol):
    """Store that can list its records, as `RedisStore`, `SqliteStore` and `PostgresStore` can."""

    def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield all records whose key begins with `prefix`, in no order. Meant for tools and for start-up, not for each
        message.

        A record that changes meanwhile is yielded before or after the change, or (in Redis) twice.

        :raises StoreUnavailable: the store did not answer.
        """
        ...


class RuleResult(NamedTuple, Generic[Answer]):
    """Result of applying a rule to a record.

    :ivar record: the next record; None deletes it.
    :ivar answer: the value for the caller.
    :ivar keep_ms: how long the next record must be kept, in milliseconds.
    """

    record: bytes | None
    answer: Answer
    keep_ms: int = 0


def record_key(pattern: str, owner: str, key: str) -> str:
    """Return the store's key for the record that `pattern` keeps about `key` on behalf of `owner` (a queue, a deadline's
    name).

    Two owners never share a record, whatever their names and keys are. The keys of one owner begin with
    `record_key(pattern, owner, "")`, unless they are too long. A sender chooses the length of a key, but its memory
    is the store's: a key above `KEY_BYTES` is replaced by its digest.
    """
    whole = f"{pattern}:{quote(owner, safe='')}:{key}"
    if len(whole.encode()) <= KEY_BYTES:
        return whole
    return f"{pattern}:{hashlib.sha256(whole.encode()).hexdigest()}"


async def apply_rule(
    store: Store, key: str, rule: Callable[[bytes | None], RuleResult[Answer]], *, guess: bytes | None = None
) -> Answer:
    """Apply `rule` to the record of `key` atomically, and return its answer.

    The first attempt assumes that the record is `guess`, so a right guess costs one round trip. When another caller
    was faster, the rule is applied to the record that this caller left. Each further round is another caller's
    success, so the loop ends.

    :raises StoreUnavailable: the store did not answer.
    """
    result = rule(guess)
    while True:
        swap = await store.compare_and_set(key, guess, result.record, keep_ms=result.keep_ms)
        if swap.swapped:
            return result.answer
        guess = swap.current
        result = rule(guess)
        if result.record == guess:
            return result.answer


async def apply_rule_with_retry(
    store: Store,
    key: str,
    rule: Callable[[bytes | None], RuleResult[Answer]],
    *,
    clock: Clock,
    patience: float,
    guess: bytes | None = None,
) -> Answer:
    """Apply `rule` as `apply_rule` does, and retry for up to `patience` seconds while the store fails.

    The rule is applied anew each time, so it should read the clock itself.

    :raises StoreUnavailable: the store did not answer in all that time.
    """
    give_up = clock.now() + patience
    wait = FIRST_RETRY_SECONDS
    while True:
        try:
            return await apply_rule(store, key, rule, guess=guess)
        except StoreUnavailable:
            if clock.now() + wait > give_up:
                raise
            await clock.sleep(wait)
            wait = min(2 * wait, MAX_RETRY_SECONDS)


__all__ = [
    "KEY_BYTES",
    "ListingStore",
    "RuleResult",
    "Store",
    "StoreUnavailable",
    "SwapResult",
    "apply_rule",
    "apply_rule_with_retry",
    "record_key",
]
