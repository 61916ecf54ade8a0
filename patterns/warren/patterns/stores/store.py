"""Store protocol: one record per key, changed only by an atomic compare-and-set.

A store does not depend on the patterns that use it. It replaces a record if the record is still the expected one, in
one Lua script (`RedisStore`), one statement (`PostgresStore`) or one transaction (`SqliteStore`). The rules of each
pattern (claims, deadlines and so on) are pure functions that compute the next record from the present one
(`warren.patterns.idempotency.rules`, `warren.patterns.deadline.rules`), so they are written once for every store.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from warren.patterns.monotonic_time import monotonic_time
from warren.sdk import Clock, ConfigError, WarrenError
from warren.sdk.extend import MessageOutcome

Answer = TypeVar("Answer")


class StoreUnavailable(WarrenError):
    """The store did not answer in time, so the requested change may or may not have been made; or it refused the request for
    now, as while it starts, recovers, or has no memory. The operation can be retried."""

    help_section: ClassVar[str] = "patterns"
    retryable: bool = True
    outcome: MessageOutcome = "unknown"


class SwapResult(NamedTuple):
    """Result of a compare-and-set.

    :ivar swapped: True if the record was the expected one, and so was replaced.
    :ivar current: the record after the operation; None if there is none.
    """

    swapped: bool
    current: bytes | None


KEY_BYTES: Final = 256
"""Longest key, in bytes of UTF-8, that `record_key` returns as it is; a longer one is replaced by its SHA-256
digest."""
FIRST_RETRY_SECONDS: Final = 0.02
"""Seconds before the first retry of a failed store operation; each further wait is doubled, up to
`MAX_RETRY_SECONDS`."""
MAX_RETRY_SECONDS: Final = 1.0


class Store(Protocol):
    """Storage for the records of patterns, one per key. A record is a non-empty byte string; `None` stands for no
    record."""

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        """Replace the record of `key` if it is `expected`, atomically among all processes that use the store.

        With `record == expected` nothing is written: the call is a read. The record is kept for at least `keep_ms`
        milliseconds of real time; after that the store may delete it. A pattern must not rely on that deletion: its
        rules read expiry times from the record itself.

        :return: whether the record was `expected`, and the record now.
        :raises StoreUnavailable: the store did not answer. The change may have been made or not, so the function that
            computed `record` must recognise its own change when it is called again.
        """
        ...

    async def close(self) -> None:
        """Release threads, files and the connections of the running event loop. Idempotent; the next use opens both."""
        ...


class ListingStore(Store, Protocol):
    """Store that can also list its records, as `RedisStore`, `SqliteStore` and `PostgresStore` can."""

    def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield all records whose key begins with `prefix`, in no order. Meant for tools and for start-up, not for each
        message.

        A record that changes meanwhile is yielded before or after the change, or (in Redis) twice.

        :raises StoreUnavailable: the store did not answer.
        """
        ...


class RuleResult(NamedTuple, Generic[Answer]):
    """Result of applying a pattern's rule (a function that computes the next record from the present one) to a record.

    :ivar record: record to store; None deletes the present one.
    :ivar answer: value that the rule returns to its caller once the record is stored.
    :ivar keep_ms: how long the record must be kept, in milliseconds.
    """

    record: bytes | None
    answer: Answer
    keep_ms: int = 0


def record_key(pattern: str, owner: str, key: str) -> str:
    """Return the key under which the store keeps the record of `key`, for a pattern such as `delay` or `once` and for
    its `owner` (the name of a queue, deadline and so on).

    Different owners never share a record, whatever characters their names and keys contain. The returned keys of one
    owner begin with `record_key(pattern, owner, "")`, by which a store can list them.

    Keys often come from messages, so their length is limited: a result above `KEY_BYTES` is replaced by the pattern and
    a SHA-256 digest. Such records cannot be listed by owner; see `listed_key`.

    :raises ConfigError: the key is no text, for example None: all that lacks a key would share one record.
    """
    if not isinstance(key, str):
        raise ConfigError(f"{pattern} {owner}: the key is {key!r}, and must be a text")
    whole = f"{pattern}:{quote(owner, safe='')}:{key}"
    if len(whole.encode()) <= KEY_BYTES:
        return whole
    return f"{pattern}:{hashlib.sha256(whole.encode()).hexdigest()}"


def required_key(pattern: str, owner: str, key: str) -> str:
    """Return the key as `record_key` does, for a pattern in which an empty key means that there is none.

    :raises ConfigError: the key is empty, or no text.
    """
    if key == "":
        raise ConfigError(f"{pattern} {owner}: the key is empty")
    return record_key(pattern, owner, key)


def listed_key(pattern: str, owner: str, key: str) -> str:
    """Return the key as `record_key` does, for a record that is found by listing those of its owner.

    :raises ConfigError: the key is too long, or empty, or no text.
    """
    whole, prefix = required_key(pattern, owner, key), record_key(pattern, owner, "")
    if not whole.startswith(prefix):
        room = max(0, KEY_BYTES - len(prefix))
        raise ConfigError(
            f"{pattern} {owner}: the key {key[:40]!r}... has {len(key.encode())} bytes; with this name at most {room} fit"
        )
    return whole


async def apply_rule(
    store: Store, key: str, rule: Callable[[bytes | None], RuleResult[Answer]], *, guess: bytes | None = None
) -> Answer:
    """Replace the record of `key` in the store by the one that `rule` computes from it, atomically, and return
    the rule's answer.

    The rule is first applied to `guess`, the record that the caller expects; if the guess is right, one round trip is
    enough. If the store has another record, the rule is applied to that one, and so on until no other caller has
    changed the record meanwhile. Each repetition means that another caller succeeded, so the loop ends.

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
    """Replace the record of `key` in the store by the one that `rule` computes from it, atomically, and return the
    rule's answer. Retry for up to `patience` seconds while the store fails.

    The rule is called again for each attempt, so it should read the clock itself.

    :param guess: record that the caller expects; if it is right, no read is needed. None for no record.
    :raises StoreUnavailable: the store did not answer within `patience`.
    """
    give_up = monotonic_time(clock) + patience
    wait = FIRST_RETRY_SECONDS
    while True:
        try:
            return await apply_rule(store, key, rule, guess=guess)
        except StoreUnavailable:
            if monotonic_time(clock) + wait > give_up:
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
    "listed_key",
    "record_key",
    "required_key",
]
