"""Numbers: counts the messages of each key, for a resequencer to order them by."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from warren.patterns.stores import RuleResult, Store, apply_rule, record_key

SEQUENCE: Final = "warren-sequence"
"""Header: the message's number, from 1."""
SEQUENCE_KEY: Final = "warren-sequence-key"
"""Header: what the numbers are counted for."""


class SequenceNumbers:
    """Gives the headers that a Resequencer orders by: `await app.publish(event, headers=await numbers.next(order_id))`.

    Every number is given once for each key, over all processes that share the store. A number that was taken and whose
    message was never published is a gap: where that matters, take the number from what you store anyway (the version of
    the order), and name it with `Resequencer(number=...)`.

    :param name: of these numbers in the store.
    :param keep: how long a key is remembered after its last number. Default 365 days.
    """

    def __init__(self, name: str, *, store: Store, keep: timedelta = timedelta(days=365)) -> None:
        self._name = name
        self._store = store
        self._keep_ms = keep // timedelta(milliseconds=1)

    async def next(self, key: str) -> dict[str, str | int]:
        """The headers of the next message of `key`.

        :raises StoreUnavailable: a number may have been taken; ask again, and there is a gap.
        """
        number = await apply_rule(self._store, self._record_key(key), self._count)
        return {SEQUENCE_KEY: key, SEQUENCE: number}

    def _count(self, record: bytes | None) -> RuleResult[int]:
        number = int(record or b"0") + 1
        return RuleResult(str(number).encode(), number, self._keep_ms)

    def _record_key(self, key: str) -> str:
        return record_key("numbers", self._name, key)


__all__ = ["SEQUENCE", "SEQUENCE_KEY", "SequenceNumbers"]
