"""Rules of cancelling a delayed message: its record in a store is marked, and is read when the message is due.

    (none)            --schedule--> waiting(token)
    waiting(a)        --schedule--> waiting(b)   message a is superseded: it is dropped when it arrives
    waiting           --cancel-->   cancelled    the message is dropped when it arrives
    waiting(a)        --arrive(a)-> passed(a)    it goes to its target and cannot be cancelled any more
    cancelled, passed --schedule--> waiting(b)   the key is used again

There is one record for each `cancel_key`, the name under which a publisher may cancel its message. The rules read
neither a clock nor a store. Times are milliseconds since the epoch; a token is a message id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from warren.patterns.stores.store import RuleResult

CLOCKS_DIFFER_MS: Final = 60_000
"""Milliseconds for which a record is kept longer than it is needed. The store deletes records by its own clock, which
may be ahead of the clock of the process that computed the time."""


class Cancellation(StrEnum):
    """Outcome of cancelling a delayed message."""

    CANCELLED = "cancelled"
    """The message will not reach its target. Further cancellations of the same message get the same outcome."""
    TOO_LATE = "too_late"
    """The message has already been forwarded to its target."""
    UNKNOWN = "unknown"
    """No delayed message has this `cancel_key`, or its record has been deleted after the time `keep`."""


class ArrivalDecision(StrEnum):
    """Decision about a delayed message that is due: forward it (`PASS`, `UNKNOWN`), drop it (`CANCELLED`, `SUPERSEDED`)
    or dead-letter it (`FORGOTTEN`)."""

    PASS = "pass"
    UNKNOWN = "unknown"
    """The store has lost the message's record. The message is forwarded, so that it is not lost as well."""
    FORGOTTEN = "forgotten"
    """The message arrives later than its record is kept, so it is unknown whether it was cancelled."""
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """Another message was later published with the same `cancel_key` and replaces this one."""


class DelayState(StrEnum):
    """State of a delayed message that was published with a `cancel_key`."""

    WAITING = "waiting"
    PASSED = "passed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """Waiting message that can be cancelled.

    :ivar key: `cancel_key` with which it was published.
    :ivar due: time at which it is due.
    :ivar exchange: exchange to which it goes, with `routing_key`, when it is due.
    """

    key: str
    due: datetime
    message_id: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class DelayRecord:
    """Stored state of the delayed message that was last published with a `cancel_key`, the name under which it can be
    cancelled.

    :ivar key: the `cancel_key`.
    :ivar token: id of the message.
    :ivar due_ms: due time in milliseconds since the epoch.
    :ivar exchange: exchange to which the message goes, with `routing_key`, when it is due.
    """

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
    """Compute the record of a new delayed message. It replaces the record of an earlier message with the same
    `cancel_key`.

    :param record: stored record of the `cancel_key`, not used; None if there is none.
    :param entry: the new message.
    :param now_ms: present time.
    :param keep_ms: how long the record is kept after the due time.
    """
    return RuleResult(_write(entry), None, _keep(entry, now_ms, keep_ms))


def withdraw(record: bytes | None, token: str, *, now_ms: int, keep_ms: int) -> RuleResult[None]:
    """Compute the record of a `cancel_key` after its message could not be published: the record is deleted, but left
    unchanged if another message has replaced this one. It is then kept for `keep_ms`; `now_ms` is not used.

    :param record: stored record of the `cancel_key`; None if there is none.
    :param token: id of the message.
    """
    held = read(record)
    return RuleResult(None if held is not None and held.token == token else record, None, keep_ms)


def cancel(record: bytes | None, *, now_ms: int, keep_ms: int) -> RuleResult[Cancellation]:
    """Compute the record of a delayed message after its cancellation: marked as cancelled, unless the message has been
    forwarded to its target. The result's `answer` is the outcome.

    :param record: stored record of the message's `cancel_key`; None if there is none.
    :param now_ms: present time.
    :param keep_ms: how long the record is kept after the due time.
    """
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
    """Decide whether a due message is forwarded to its target, dropped or dead-lettered. The decision is the result's
    `answer`, and the record stores that a message is forwarded.

    For a message that an earlier call decided to forward, the decision is the same again, because the process that
    called may have died before it forwarded the message.

    :param record: stored record of the message's `cancel_key`; None if there is none.
    :param token: id of the due message.
    :param due_ms: due time according to the message; None if it has none.
    :param now_ms: present time.
    :param keep_ms: how long the record is kept after the due time.
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
    """Decode the stored state of a delayed message; None if there is no record."""
    if record is None:
        return None
    state, *rest = json.loads(record)
    return DelayRecord(DelayState(state), *rest)


def _write(entry: DelayRecord) -> bytes:
    values = [entry.state, entry.key, entry.token, entry.due_ms, entry.exchange, entry.routing_key]
    return json.dumps(values, separators=(",", ":")).encode()


def _keep(entry: DelayRecord, now_ms: int, keep_ms: int) -> int:
    """Return the milliseconds for which the store must keep the record: until the message is due, then for `keep_ms`,
    and a minute more because clocks may differ."""
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
