"""What patterns ask of a store, where they keep what they decided: one record a key, changed only by an
atomic compare-and-set.

A store knows nothing of claims or deadlines. It answers one question, *is the record still what I think it
is? then make it this*, in one Lua step (`RedisStore`), one statement (`PostgresStore`) or one transaction
(`SqliteStore`). The rules are pure functions from a record to the next one
(`warren.patterns.idempotency.rules`, `warren.patterns.deadline.rules`), written once for every store.
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
    """The store gave no answer in time: what was asked of it has happened or not. Worth trying again."""

    retryable: bool = True
    outcome: Outcome = "unknown"


class SwapResult(NamedTuple):
    """Whether the record was what the caller expected, and what it is now."""

    done: bool
    current: bytes | None


KEY_BYTES: Final = 256
FIRST_WAIT: Final = 0.02
LAST_WAIT: Final = 1.0


class Store(Protocol):
    """What a pattern asks of a store. Every record is a non-empty byte string; `None` stands for no
    record."""

    async def compare_and_set(
        self, key: str, expected: bytes | None, record: bytes | None, *, keep_ms: int
    ) -> SwapResult:
        """Replace the record of `key` if it is `expected`, atomically among all users of the store.

        With `record == expected` nothing is written: it is a read. The record is kept for at least `keep_ms`
        milliseconds of real time, after which the store may forget it; what a record means at a given time,
        the rules say.

        :return: whether the record was `expected`, and what it is now.
        :raises StoreUnavailable: the store did not answer; the change may have been made or not, so rules
            must recognise their own earlier attempt.
        """
        ...

    async def close(self) -> None:
        """Release connections, threads and files. Idempotent; the next use opens the store again."""
        ...


class ListingStore(Store, Protocol):
    """A store that can say what it holds; `RedisStore`, `SqliteStore` and `PostgresStore` are."""

    def records(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """All records whose key begins with `prefix`, in no order; for people and for starts, not for each message.

        What is changed meanwhile may be seen before, after, or (in Redis) twice.

        :raises StoreUnavailable: the store did not answer.
        """
        ...


class RuleResult(NamedTuple, Generic[Answer]):
    """What a rule says to a record: the record that follows, the answer to the caller, and how long it must
    be kept."""

    record: bytes | None
    answer: Answer
    keep_ms: int = 0


def record_key(pattern: str, owner: str, key: str) -> str:
    """The store's key for what `pattern` keeps about `key` on behalf of `owner` (a queue, a deadline's name).

    Two owners never share a record, whatever their names and keys are; the records of one owner whose keys are not
    too long begin with `record_key(pattern, owner, "")`. A key is content that somebody sent:
    its length is theirs, the store's memory is ours, so that a long one is kept by its digest.
    """
    whole = f"{pattern}:{quote(owner, safe='')}:{key}"
    if len(whole.encode()) <= KEY_BYTES:
        return whole
    return f"{pattern}:{hashlib.sha256(whole.encode()).hexdigest()}"


async def apply_rule(
    store: Store, key: str, rule: Callable[[bytes | None], RuleResult[Answer]], *, guess: bytes | None = None
) -> Answer:
    """Apply `rule` to the record of `key`, atomically, and return its answer.

    The first attempt takes `guess` for the present record, so that a right guess costs one round trip. When
    somebody else was faster the rule is applied to what they left; each such round is another caller's
    success, so that the loop ends.

    :raises StoreUnavailable: the store did not answer.
    """
    step = rule(guess)
    while True:
        swap = await store.compare_and_set(key, guess, step.record, keep_ms=step.keep_ms)
        if swap.done:
            return step.answer
        guess = swap.current
        step = rule(guess)
        if step.record == guess:
            return step.answer


async def apply_rule_with_retry(
    store: Store,
    key: str,
    rule: Callable[[bytes | None], RuleResult[Answer]],
    *,
    clock: Clock,
    patience: float,
    guess: bytes | None = None,
) -> Answer:
    """`apply_rule`, and while the store fails, again, for up to `patience` seconds.

    The rule is applied anew each time, so that it should read the clock itself.

    :raises StoreUnavailable: the store did not answer in all that time.
    """
    give_up = clock.now() + patience
    wait = FIRST_WAIT
    while True:
        try:
            return await apply_rule(store, key, rule, guess=guess)
        except StoreUnavailable:
            if clock.now() + wait > give_up:
                raise
            await clock.sleep(wait)
            wait = min(2 * wait, LAST_WAIT)


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
