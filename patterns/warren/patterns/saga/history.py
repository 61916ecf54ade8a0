"""The story of one saga, for a person to read: where it stands, what it knows, what it owes, and how it got there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from warren.patterns.saga.rules import TIMEOUT, HistoryEntry, SagaInstance, read
from warren.patterns.stores import ListingStore, Store, record_key


@dataclass(frozen=True, slots=True)
class SagaHistory:
    """`str(story)` is a page of text, `story.as_json()` the same for programs.

    :ivar data: what the saga knows, as JSON.
    :ivar owed: types of the messages that are saved and not known to be published; not empty for long means that no
        message of this saga could be handled to its end since.
    :ivar undo: types of the messages that would undo it, the next one first.
    """

    name: str
    key: str
    instance: SagaInstance

    @property
    def state(self) -> str:
        return self.instance.state

    @property
    def moved(self) -> datetime:
        """When it last took a message."""
        return datetime.fromtimestamp(self.instance.history[-1].at_ms / 1000, UTC)

    @property
    def data(self) -> str:
        return self.instance.data

    @property
    def owed(self) -> tuple[str, ...]:
        return tuple(owed.type for owed in self.instance.owed)

    @property
    def undo(self) -> tuple[str, ...]:
        return tuple(step.type for step in reversed(self.instance.undo))

    @property
    def history(self) -> tuple[HistoryEntry, ...]:
        return self.instance.history

    def as_json(self) -> dict[str, Any]:
        return {
            "saga": self.name,
            "key": self.key,
            "state": self.state,
            "data": json.loads(self.data),
            "awaiting": self.instance.awaiting,
            "undo": list(self.undo),
            "owed": list(self.owed),
            "history": [
                {**line._asdict(), "at_ms": line.at_ms, "sent": list(line.sent)} for line in self.history
            ],
        }

    def __str__(self) -> str:
        lines = [f"saga {self.name} of {self.key}: {self.state}", f"  knows {self.data}"]
        if self.instance.awaiting:
            lines.append(f"  waits for {self.instance.awaiting}")
        if self.undo:
            lines.append(f"  would be undone by {', then '.join(self.undo)}")
        if self.owed:
            lines.append(f"  owes {', '.join(self.owed)}")
        forgotten = self.instance.steps - len(self.history)
        if forgotten:
            lines.append(f"  ({forgotten} older steps are forgotten)")
        lines += [_line(passed) for passed in self.history]
        return "\n".join(lines)


async def read_history(store: Store, name: str, key: str, *, now_ms: int) -> SagaHistory | None:
    """The story of the saga `key`; None if it never began, or was forgotten.

    :raises StoreUnavailable: the store did not answer.
    """
    held = await store.compare_and_set(record_key("saga", name, key), None, None, keep_ms=1)
    instance = read(held.current, now_ms)
    return None if instance is None else SagaHistory(name, key, instance)


async def read_histories(store: ListingStore, name: str, *, now_ms: int) -> AsyncIterator[SagaHistory]:
    """The stories of all sagas whose keys are short enough to stand in the store's keys, in no order.

    :raises StoreUnavailable: the store did not answer.
    """
    prefix = record_key("saga", name, "")
    async for key, record in store.records(prefix):
        instance = read(record, now_ms)
        if instance is not None:
            yield SagaHistory(name, key.removeprefix(prefix), instance)


def _line(passed: HistoryEntry) -> str:
    at = datetime.fromtimestamp(passed.at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    what = "it took too long" if passed.message == TIMEOUT else passed.message
    where = passed.after if passed.after != passed.before else f"still {passed.after}"
    line = f"  {at.removesuffix('+00:00')}  {what} -> {where}"
    if passed.sent:
        line += f", sent {', '.join(passed.sent)}"
    return f"{line} ({passed.note})" if passed.note else line


__all__ = ["SagaHistory", "read_histories", "read_history"]
