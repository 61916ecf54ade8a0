"""The rules of cancelling what is delayed: a tombstone in a store, which is looked at when the message arrives.

    (none)            --schedule--> waiting(token)
    waiting(a)        --schedule--> waiting(b)   the message a is superseded: it ends when it arrives
    waiting           --cancel-->   cancelled    the message ends when it arrives
    waiting(a)        --arrive(a)-> passed(a)    from here on it goes to its target, and cannot be cancelled
    cancelled, passed --schedule--> waiting(b)   the key is used again

Nothing here reads a clock or a store. Times are milliseconds since the epoch; a token is a message id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from warren.patterns.stores.store import RuleResult

CLOCKS_DIFFER_MS: Final = 60_000
"""So much longer is a record kept than a message may pass without it: the store forgets by a clock of its own."""


class Cancellation(StrEnum):
    """What became of a cancellation."""

    CANCELLED = "cancelled"
    """It will not reach its target. Said again to every cancellation of the same message."""
    TOO_LATE = "too_late"
    """It has passed on to its target."""
    UNKNOWN = "unknown"
    """Nothing is delayed under this key, or it was decided longer ago than it is kept."""


class ArrivalDecision(StrEnum):
    """What is to be done with a message whose time has come."""

    PASS = "pass"
    UNKNOWN = "unknown"
    """The store has lost its record: it passes, so that it is not lost as well."""
    FORGOTTEN = "forgotten"
    """It comes later than its record is kept: nobody knows any more whether it was cancelled."""
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """Another message was scheduled under the same key after it."""


class DelayState(StrEnum):
    """Where a delayed message stands."""

    WAITING = "waiting"
    PASSED = "passed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that waits.

    :ivar key: by which it can be cancelled.
    :ivar exchange: with `routing_key`, where it goes when it is due.
    """

    key: str
    due: datetime
    message_id: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class DelayRecord:
    """The record of one key."""

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


def schedule(record: bytes | None, ticket: DelayRecord, *, now_ms: int, keep_ms: int) -> RuleResult[None]:
    """Note what is delayed from now on under its key."""
    return RuleResult(_write(ticket), None, _keep(ticket, now_ms, keep_ms))


def withdraw(record: bytes | None, token: str, *, now_ms: int, keep_ms: int) -> RuleResult[None]:
    """It was not published after all."""
    held = read(record)
    return RuleResult(None if held is not None and held.token == token else record, None, keep_ms)


def cancel(record: bytes | None, *, now_ms: int, keep_ms: int) -> RuleResult[Cancellation]:
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
    """The message is due. Once it may pass it may pass again: the process that let it pass may have died over it.

    :param due_ms: when it was due, as the message says; None if it does not.
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
    if record is None:
        return None
    state, *rest = json.loads(record)
    return DelayRecord(DelayState(state), *rest)


def _write(ticket: DelayRecord) -> bytes:
    values = [ticket.state, ticket.key, ticket.token, ticket.due_ms, ticket.exchange, ticket.routing_key]
    return json.dumps(values, separators=(",", ":")).encode()


def _keep(ticket: DelayRecord, now_ms: int, keep_ms: int) -> int:
    """Longer than the message waits: its tombstone must be there when it arrives."""
    return max(0, ticket.due_ms - now_ms) + keep_ms + CLOCKS_DIFFER_MS


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
