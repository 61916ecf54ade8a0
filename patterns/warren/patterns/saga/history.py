"""History of one saga, readable for people: its state, data, pending messages and past transitions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from warren.core.text_escapes import escape, escape_json, escape_value
from warren.patterns.saga.rules import TIMEOUT, HistoryEntry, SagaInstance, read
from warren.patterns.stores import ListingStore, Store, record_key


@dataclass(frozen=True, slots=True)
class SagaHistory:
    """State and past transitions of one saga: `str(history)` is a readable text, `history.as_json()` the same for
    programs.

    :ivar key: key of the saga.
    :ivar instance: stored state of the saga.
    """

    name: str
    key: str
    instance: SagaInstance

    @property
    def state(self) -> str:
        return self.instance.state

    @property
    def last_transition_at(self) -> datetime:
        """Time of the saga's last transition."""
        return datetime.fromtimestamp(self.instance.history[-1].at_ms / 1000, UTC)

    @property
    def data(self) -> str:
        """Data of the saga, as JSON."""
        return self.instance.data

    @property
    def pending(self) -> tuple[str, ...]:
        """Types of the messages that are saved but not yet known to be published. If this stays non-empty for long,
        every attempt to publish them has failed."""
        return tuple(pending.type for pending in self.instance.pending)

    @property
    def compensations(self) -> tuple[str, ...]:
        """Types of the messages that would compensate the saga's steps, in the order in which they would be sent."""
        return tuple(step.type for step in reversed(self.instance.compensations))

    @property
    def entries(self) -> tuple[HistoryEntry, ...]:
        return self.instance.history

    def as_json(self) -> dict[str, Any]:
        """Return the history as a dictionary for JSON output.

        :return: `saga` (its name), `key`, `state`, `data`, `awaiting` (type of the awaited answer), `undo` (types of
            the compensations), `owed` (types of the pending messages) and `history` (transitions).
        """
        return {
            "saga": self.name,
            "key": self.key,
            "state": self.state,
            "data": json.loads(self.data),
            "awaiting": self.instance.awaited,
            "undo": list(self.compensations),
            "owed": list(self.pending),
            "history": [
                {**line._asdict(), "at_ms": line.at_ms, "sent": list(line.sent)} for line in self.entries
            ],
        }

    def __str__(self) -> str:
        # A key may come from a message and contain anything, and so may data, which is JSON.
        name, key, state = map(escape_value, (self.name, self.key, self.state))
        lines = [f"saga {name} of {key}: {state}", f"  data {escape_json(self.data)}"]
        if self.instance.awaited:
            lines.append(f"  waits for {self.instance.awaited}")
        if self.compensations:
            lines.append(f"  would be compensated by {', then '.join(self.compensations)}")
        if self.pending:
            lines.append(f"  has yet to publish {', '.join(self.pending)}")
        forgotten = self.instance.transitions - len(self.entries)
        if forgotten:
            lines.append(f"  ({forgotten} older transitions are forgotten)")
        lines += [_line(entry) for entry in self.entries]
        return "\n".join(map(escape, lines))


async def read_history(store: Store, name: str, key: str, *, now_ms: int) -> SagaHistory | None:
    """Return the history of the saga with this key; None if it was never started, or was forgotten after `keep`.

    :param name: name of the kind of saga, `Saga(name)`.
    :param now_ms: present time in milliseconds since the epoch; decides whether `keep` is over.
    :raises StoreUnavailable: the store did not answer.
    """
    held = await store.compare_and_set(record_key("saga", name, key), None, None, keep_ms=1)
    instance = read(held.current, now_ms)
    return None if instance is None else SagaHistory(name, key, instance)


async def read_histories(store: ListingStore, name: str, *, now_ms: int) -> AsyncIterator[SagaHistory]:
    """Yield the histories of all sagas called `name`, in no order.

    :param now_ms: present time in milliseconds since the epoch; sagas whose `keep` is over are left out.
    :raises StoreUnavailable: the store did not answer.
    """
    prefix = record_key("saga", name, "")
    async for key, record in store.records(prefix):
        instance = read(record, now_ms)
        if instance is not None:
            yield SagaHistory(name, key.removeprefix(prefix), instance)


def _line(entry: HistoryEntry) -> str:
    at = datetime.fromtimestamp(entry.at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    what = "timeout" if entry.message == TIMEOUT else entry.message
    where = entry.after if entry.after != entry.before else f"still {entry.after}"
    line = f"  {at.removesuffix('+00:00')}  {what} -> {where}"
    if entry.sent:
        line += f", sent {', '.join(entry.sent)}"
    return f"{line} ({entry.note})" if entry.note else line


__all__ = ["SagaHistory", "read_histories", "read_history"]
