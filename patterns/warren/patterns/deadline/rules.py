"""The rules of a deadline: exactly one of *completed* and *expired* wins, whatever comes first, twice or
late.

    (none)     --start-->              pending
    (none)     --complete-->           completed   remembered: the start that follows finds it decided
    pending    --complete-->           completed
    pending    --expire, due-->        expired     the signal is owed
    pending    --complete(at > due)--> expired     it says itself that it came too late
    expired    --confirm-->            signalled   the broker has the signal
    completed, expired and signalled never change sides

Nothing here reads a clock or a store: a rule turns a record into the next one, and the store's
compare-and-set makes one of several concurrent rules win. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from warren.patterns.stores.store import RuleResult

Answer = TypeVar("Answer")

_json = json.JSONEncoder(separators=(",", ":")).encode


class DeadlineState(StrEnum):
    """Where a deadline stands. `FORGOTTEN` stands for no record: it was never started, or it was settled and
    kept long enough."""

    FORGOTTEN = "forgotten"
    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    SIGNALLED = "signalled"


class DeadlineOutcome(StrEnum):
    """What a completion came to."""

    WON = "won"
    """In time: the deadline will not expire. Said again to the same completion when it is redelivered."""
    LATE = "late"
    """The deadline had expired; its signal was or will be published. Said to every late completion, each
    time."""
    REPEATED = "repeated"
    """Another completion had won before."""


@dataclass(frozen=True, slots=True)
class DeadlineRecord:
    """One deadline's record: its state, when it is (or was) due, which completion won, and until when a
    settled one is kept."""

    state: DeadlineState
    due_ms: int | None = None
    by: str | None = None
    keep_until_ms: int = 0


def start(record: bytes | None, *, due_ms: int, now_ms: int, keep_ms: int) -> RuleResult[DeadlineRecord]:
    """Begin, once: a second start finds the first and changes nothing."""
    held = _read(record, now_ms)
    if held.state is DeadlineState.FORGOTTEN:
        return _write(DeadlineRecord(DeadlineState.PENDING, due_ms), now_ms, keep_ms)
    if held.state is DeadlineState.COMPLETED and held.due_ms is None:
        # The due time is kept now, so that the decision is still known if this start's due message comes.
        return _write(replace(held, due_ms=due_ms), now_ms, keep_ms)
    return RuleResult(record, held)


def complete(
    record: bytes | None, *, by: str, at_ms: int | None, now_ms: int, keep_ms: int
) -> RuleResult[DeadlineOutcome]:
    """Complete, as `by`. Without `at_ms` it is in time if it is here before the expiry; with it, if also
    `at_ms <= due`."""
    held = _read(record, now_ms)
    if held.state is DeadlineState.COMPLETED:
        return RuleResult(record, DeadlineOutcome.WON if held.by == by else DeadlineOutcome.REPEATED)
    if held.state in (DeadlineState.EXPIRED, DeadlineState.SIGNALLED):
        return RuleResult(record, DeadlineOutcome.LATE)
    if at_ms is not None and held.due_ms is not None and at_ms > held.due_ms:
        return _answering(
            DeadlineOutcome.LATE, _write(replace(held, state=DeadlineState.EXPIRED), now_ms, keep_ms)
        )
    return _answering(
        DeadlineOutcome.WON, _write(replace(held, state=DeadlineState.COMPLETED, by=by), now_ms, keep_ms)
    )


def extend(record: bytes | None, *, due_ms: int, now_ms: int, keep_ms: int) -> RuleResult[bool]:
    """Move the due time of a pending deadline to `due_ms`, later only; False if it is not pending."""
    held = _read(record, now_ms)
    if held.state is not DeadlineState.PENDING or held.due_ms is None:
        return RuleResult(record, False)
    if due_ms <= held.due_ms:
        return RuleResult(record, True)
    return _answering(True, _write(replace(held, due_ms=due_ms), now_ms, keep_ms))


def expire(record: bytes | None, *, now_ms: int, keep_ms: int) -> RuleResult[DeadlineRecord]:
    """The due message is here. *Expired* in the answer: the signal is owed; *pending*: it came too early,
    `due_ms` says when to come again."""
    held = _read(record, now_ms)
    if held.state is DeadlineState.PENDING and held.due_ms is not None and held.due_ms <= now_ms:
        return _write(replace(held, state=DeadlineState.EXPIRED), now_ms, keep_ms)
    return RuleResult(record, held)


def confirm(record: bytes | None, *, now_ms: int, keep_ms: int) -> RuleResult[None]:
    """The broker has the signal: it is not published again."""
    held = _read(record, now_ms)
    if held.state is not DeadlineState.EXPIRED:
        return RuleResult(record, None)
    return _answering(None, _write(replace(held, state=DeadlineState.SIGNALLED), now_ms, keep_ms))


def pending_record(due_ms: int, keep_ms: int) -> bytes:
    """As a start leaves it: a guess that spares a round trip where nothing has happened since."""
    return record_of(DeadlineRecord(DeadlineState.PENDING, due_ms, None, due_ms + keep_ms))


def record_of(decision: DeadlineRecord) -> bytes:
    return _json([decision.state, decision.due_ms, decision.by, decision.keep_until_ms]).encode()


def _read(record: bytes | None, now_ms: int) -> DeadlineRecord:
    if record is None:
        return DeadlineRecord(DeadlineState.FORGOTTEN)
    state, due_ms, by, keep_until_ms = json.loads(record)
    held = DeadlineRecord(DeadlineState(state), due_ms, by, keep_until_ms)
    settled = held.state in (DeadlineState.COMPLETED, DeadlineState.SIGNALLED)
    # What is pending or owes a signal is not forgotten because of its age: only the store may do that, and it
    # has been told to keep it.
    return DeadlineRecord(DeadlineState.FORGOTTEN) if settled and keep_until_ms <= now_ms else held


def _write(decision: DeadlineRecord, now_ms: int, keep_ms: int) -> RuleResult[DeadlineRecord]:
    """The step to `decision`, kept for `keep_ms` after it is due or decided, whichever is later."""
    keep_until_ms = max(now_ms, decision.due_ms or 0) + keep_ms
    decision = DeadlineRecord(decision.state, decision.due_ms, decision.by, keep_until_ms)
    return RuleResult(record_of(decision), decision, keep_until_ms - now_ms)


def _answering(answer: Answer, step: RuleResult[DeadlineRecord]) -> RuleResult[Answer]:
    return RuleResult(step.record, answer, step.keep_ms)


__all__ = [
    "DeadlineOutcome",
    "DeadlineRecord",
    "DeadlineState",
    "complete",
    "confirm",
    "expire",
    "extend",
    "pending_record",
    "record_of",
    "start",
]
