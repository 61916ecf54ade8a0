"""Rules of cancelling a delayed message: a tombstone in a store, which is read when the message arrives.

    (none)            --schedule--> waiting(token)
    waiting(a)        --schedule--> waiting(b)   message a is superseded: it is dropped when it arrives
    waiting           --cancel-->   cancelled    the message is dropped when it arrives
    waiting(a)        --arrive(a)-> passed(a)    it goes to its target and cannot be cancelled any more
    cancelled, passed --schedule--> waiting(b)   the key is used again

The rules read neither a clock nor a store. Times are milliseconds since the epoch; a token is a message id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from warren.patterns.stores.store import RuleResult

CLOCKS_DIFFER_MS: Final = 60_000
"""Extra time that a record is kept: the store deletes it by its own clock, which may be ahead of the publisher's."""


class Cancellation(StrEnum):
    """Outcome of a cancellation."""

    CANCELLED = "cancelled"
    """The message will not reach its target. Every cancellation of the same message gets this answer."""
    TOO_LATE = "too_late"
    """The message has been forwarded to its target."""
    UNKNOWN = "unknown"
    """No message is delayed under this key, or its record is older than it is kept."""


class ArrivalDecision(StrEnum):
    """Decision on a message whose time has come."""

    PASS = "pass"
    UNKNOWN = "unknown"
    """The store has lost its record: the message is forwarded, so that it is not lost as well."""
    FORGOTTEN = "forgotten"
    """The message arrives later than its record is kept, so it is unknown whether it was cancelled."""
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """Another message was scheduled under the same key after it."""


class DelayState(StrEnum):
    """State of a delayed message."""

    WAITING = "waiting"
    PASSED = "passed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """Message that waits and can be cancelled.

    :ivar key: its cancel key.
    :ivar due: when it is due.
    :ivar exchange: exchange to which it goes with `routing_key` when it is due.
    """

    key: str
    due: datetime
    message_id: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class DelayRecord:
    """Record of one cancel key; `token` is the id of the message that waits."""

    state: DelayState
    key: str
    token: str
    due_ms: int
    exchange: str
    routing_key: str

    @property
    def delayed(self) -> DelayedMessage:
        due = datetime.fromtimestamp(self.due_ms / 1000, UTC)
        return DelayedMessage(self.key, due, self.token, self.exchange, self.routing_key)


def schedule(record: bytes | None, entry: DelayRecord, *, now_ms: int, keep_ms: int) -> RuleResult[None]:
    """Record the message that waits from now on under its key."""
    return RuleResult(_write(entry), None, _keep(entry, now_ms, keep_ms))


def withdraw(record: bytes | None, token: str, *, now_ms: int, keep_ms: int) -> RuleResult[None]:
    """Remove the record of a message that was not published after all."""
    held = read(record)
    return RuleResult(None if held is not None and held.token == token else record, None, keep_ms)


def cancel(record: bytes | None, *, now_ms: int, keep_ms: int) -> RuleResult[Cancellation]:
    """Cancel the message of the key, unless it has been forwarded."""
    held = read(record)
    if held is None:
        return RuleResult(record, Cancellation.UNKNOWN)
    if held.state is DelayState.PASSED:
        return RuleResult(record, Cancellation.TOO_LATE)
    cancelled = replace(held, state=DelayState.CANCELLED)
    return RuleResult(_write(cancelled), Cancellation.CANCELLED, _keep(held, now_ms, keep_ms))


def arrive(
    record: bytes | None, token: str, due_ms: int | None, *, now_ms: int, keep_ms: int
) -> RuleResult[ArrivalDecision]:
    """Decide what happens to a due message.

    A message that may pass may pass again: the process that let it pass may have died before it forwarded the
    message.

    :param due_ms: due time according to the message; None if it has none.
    """
    held = read(record)
    if held is None:
        late = due_ms is not None and now_ms >= due_ms + keep_ms
        return RuleResult(record, ArrivalDecision.FORGOTTEN if late else ArrivalDecision.UNKNOWN)
    if held.token != token:
        return RuleResult(record, ArrivalDecision.SUPERSEDED)
    if held.state is DelayState.CANCELLED:
        return RuleResult(record, ArrivalDecision.CANCELLED)
    passed = replace(held, state=DelayState.PASSED)
    return RuleResult(_write(passed), ArrivalDecision.PASS, _keep(held, now_ms, keep_ms))


def read(record: bytes | None) -> DelayRecord | None:
    """Return the record of a key; None if there is none."""
    if record is None:
        return None
    state, *rest = json.loads(record)
    return DelayRecord(DelayState(state), *rest)


def _write(entry: DelayRecord) -> bytes:
    values = [entry.state, entry.key, entry.token, entry.due_ms, entry.exchange, entry.routing_key]
    return json.dumps(values, separators=(",", ":")).encode()


def _keep(entry: DelayRecord, now_ms: int, keep_ms: int) -> int:
    """Return how long to keep the record: longer than the message waits, because it is read when the message arrives."""
    return max(0, entry.due_ms - now_ms) + keep_ms + CLOCKS_DIFFER_MS


__all__ = [
    "ArrivalDecision",
    "Cancellation",
    "DelayRecord",
    "DelayState",
    "DelayedMessage",
    "arrive",
    "cancel",
    "read",
    "schedule",
    "withdraw",
]
