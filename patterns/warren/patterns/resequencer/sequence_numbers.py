"""`SequenceNumbers`: consecutive numbers for the messages of each key, by which a resequencer restores their order."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from warren.patterns.argument_checks import check_store
from warren.patterns.stores import RuleResult, Store, StoreReference, apply_rule, required_key
from warren.sdk.extend import Duration, duration

SEQUENCE: Final = "warren-sequence"
"""Header with the message's number; the first number of a key is 1."""
SEQUENCE_KEY: Final = "warren-sequence-key"
"""Header with the key to which the number belongs."""


class SequenceNumbers:
    """Consecutive numbers for each key, as the headers that a `Resequencer` reads: `await app.publish(event,
    headers=await numbers.next(order_id))`.

    Each number of a key is issued once, over all processes that share the store. A number whose message was never
    published is a gap: if that matters, use a number from your own database (the version of the order), and configure
    it with `Resequencer(number=...)`.

    :param name: name of this set of numbers in the store.
    :param keep: how long a key is remembered after its last number. Default 365 days.
    """

    def __init__(self, name: str, *, store: Store, keep: Duration = timedelta(days=365)) -> None:
        self._name = name
        check_store(f"SequenceNumbers {name}", store)
        self._store = StoreReference(store)
        self._keep_ms = duration(keep, "SequenceNumbers: keep") // timedelta(milliseconds=1)

    async def next(self, key: str) -> dict[str, str | int]:
        """Return the headers with the key and its next number, for the next message of `key`.

        :raises ConfigError: the key is empty, or no text.
        :raises StoreUnavailable: a number may have been used up; calling again then leaves a gap.
        """
        number = await apply_rule(self._store, self._record_key(key), self._count)
        return {SEQUENCE_KEY: key, SEQUENCE: number}

    def _count(self, record: bytes | None) -> RuleResult[int]:
        number = int(record or b"0") + 1
        return RuleResult(str(number).encode(), number, self._keep_ms)

    def _record_key(self, key: str) -> str:
        return required_key("numbers", self._name, key)


__all__ = ["SEQUENCE", "SEQUENCE_KEY", "SequenceNumbers"]
