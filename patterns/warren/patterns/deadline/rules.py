"""Rules of a deadline: exactly one of *completed* and *expired* wins, whatever arrives first, twice or late.

    (none)     --start-->              pending
    (none)     --complete-->           completed   remembered: a later start finds it decided
    pending    --complete-->           completed
    pending    --expire, due-->        expired     the signal must be published
    pending    --complete(at > due)--> expired     the completion's own time is too late
    expired    --confirm-->            signalled   the broker has the signal
    completed, expired and signalled never change into each other

The rules read neither a clock nor a store. Each computes the next record of a deadline from its present one; if several
processes do so at the same time, the store's compare-and-set lets one of them win. Times are milliseconds since the
epoch.
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
    """State of a deadline. `FORGOTTEN` means that the store has no record of it: it was never started, or it ended and
    `keep`, the time for which it is remembered, is over."""

    FORGOTTEN = "forgotten"
    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    SIGNALLED = "signalled"


class DeadlineOutcome(StrEnum):
    """Answer to a completion (a call of `complete`): whether it came in time, too late, or after another completion."""

    WON = "won"
    """The completion is in time, and the deadline will not expire. The same completion gets this answer again when it
    is redelivered."""
    LATE = "late"
    """The deadline had expired before the completion; its signal, the message for an expired deadline, was or will be
    published. Every late completion gets this answer."""
    REPEATED = "repeated"
    """Another completion of the same key had won before."""


@dataclass(frozen=True, slots=True)
class DeadlineRecord:
    """Stored state of one deadline. Times are milliseconds since the epoch.

    :ivar due_ms: due time; None if the deadline was completed before it was started.
    :ivar by: identity of the winning completion.
    :ivar keep_until_ms: time until which a completed or expired deadline is remembered.
    """

    state: DeadlineState
    due_ms: int | None = None
    by: str | None = None
    keep_until_ms: int = 0


def start(record: bytes | None, *, due_ms: int, now_ms: int, keep_ms: int) -> RuleResult[DeadlineRecord]:
    """Compute the deadline's record after its start: pending until `due_ms`. The result's `answer` is this
    record, decoded.

    A deadline that was started before is not changed; one that was completed before its start only gets its due time.

    :param record: the deadline's stored record; None if it has none.
    :param now_ms: present time.
    :param keep_ms: how long the deadline is remembered from `due_ms` or `now_ms` on, whichever is later.
    """
    held = _read(record, now_ms)
    if held.state is DeadlineState.FORGOTTEN:
        return _write(DeadlineRecord(DeadlineState.PENDING, due_ms), now_ms, keep_ms)
    if held.state is DeadlineState.COMPLETED and held.due_ms is None:
        # The due time is stored now, so that the decision is still known when this start's due message arrives.
        return _write(replace(held, due_ms=due_ms), now_ms, keep_ms)
    return RuleResult(record, held)


def complete(
    record: bytes | None, *, by: str, at_ms: int | None, now_ms: int, keep_ms: int
) -> RuleResult[DeadlineOutcome]:
    """Compute the deadline's record after the completion that `by` identifies. The result's `answer` is the outcome for
    this completion.

    The completion is in time if the deadline has not expired yet and, with `at_ms` (the time of the completing event),
    if also `at_ms` is not after the due time.

    :param record: the deadline's stored record; None if it has none.
    :param now_ms: present time.
    :param keep_ms: how long the deadline is remembered from its due time or `now_ms` on, whichever is later.
    """
    held = _read(record, now_ms)
    if held.state is DeadlineState.COMPLETED:
        return RuleResult(record, DeadlineOutcome.WON if held.by == by else DeadlineOutcome.REPEATED)
    if held.state in (DeadlineState.EXPIRED, DeadlineState.SIGNALLED):
        return RuleResult(record, DeadlineOutcome.LATE)
    if at_ms is not None and held.due_ms is not None and at_ms > held.due_ms:
        return _with_answer(
            DeadlineOutcome.LATE, _write(replace(held, state=DeadlineState.EXPIRED), now_ms, keep_ms)
        )
    return _with_answer(
        DeadlineOutcome.WON, _write(replace(held, state=DeadlineState.COMPLETED, by=by), now_ms, keep_ms)
    )


def extend(record: bytes | None, *, due_ms: int, now_ms: int, keep_ms: int) -> RuleResult[bool]:
    """Compute the deadline's record with its due time moved to `due_ms`, if that is later. The result's `answer` is
    True if the deadline is pending. If it is not, the answer is False, and the record is not changed."""
    held = _read(record, now_ms)
    if held.state is not DeadlineState.PENDING or held.due_ms is None:
        return RuleResult(record, False)
    if due_ms <= held.due_ms:
        return RuleResult(record, True)
    return _with_answer(True, _write(replace(held, due_ms=due_ms), now_ms, keep_ms))


def expire(record: bytes | None, *, now_ms: int, keep_ms: int) -> RuleResult[DeadlineRecord]:
    """Compute the deadline's record at the time `now_ms`: a pending deadline becomes expired if its due time is past.
    The result's `answer` is this record, decoded.

    The caller publishes the signal if the answer's state is `EXPIRED`. If it is `PENDING`, the check came too early,
    and the caller repeats it at the answer's `due_ms`.

    :param record: the deadline's stored record; None if it has none.
    :param keep_ms: how long the deadline is remembered from its due time or `now_ms` on, whichever is later.
    """
    held = _read(record, now_ms)
    if held.state is DeadlineState.PENDING and held.due_ms is not None and held.due_ms <= now_ms:
        return _write(replace(held, state=DeadlineState.EXPIRED), now_ms, keep_ms)
    return RuleResult(record, held)


def confirm(record: bytes | None, *, now_ms: int, keep_ms: int) -> RuleResult[None]:
    """Compute the deadline's record after the broker has confirmed the signal (the message of an expired deadline), so
    that the signal is not published again.

    :param now_ms: present time.
    :param keep_ms: how long the deadline is remembered from its due time or `now_ms` on, whichever is later.
    """
    held = _read(record, now_ms)
    if held.state is not DeadlineState.EXPIRED:
        return RuleResult(record, None)
    return _with_answer(None, _write(replace(held, state=DeadlineState.SIGNALLED), now_ms, keep_ms))


def pending_record(due_ms: int, keep_ms: int) -> bytes:
    """Return the stored form of a deadline that was started and not changed since. A caller passes it to the store as
    the expected record: if that is right, the compare-and-set needs no read before it.

    :param keep_ms: how long the deadline is remembered after `due_ms`.
    """
    return record_of(DeadlineRecord(DeadlineState.PENDING, due_ms, None, due_ms + keep_ms))


def record_of(record: DeadlineRecord) -> bytes:
    """Encode the record of a deadline for the store."""
    return _json([record.state, record.due_ms, record.by, record.keep_until_ms]).encode()


def _read(record: bytes | None, now_ms: int) -> DeadlineRecord:
    if record is None:
        return DeadlineRecord(DeadlineState.FORGOTTEN)
    state, due_ms, by, keep_until_ms = json.loads(record)
    held = DeadlineRecord(DeadlineState(state), due_ms, by, keep_until_ms)
    settled = held.state in (DeadlineState.COMPLETED, DeadlineState.SIGNALLED)
    # A pending deadline or an unpublished signal is not forgotten because of its age: the store was asked to keep it.
    return DeadlineRecord(DeadlineState.FORGOTTEN) if settled and keep_until_ms <= now_ms else held


def _write(record: DeadlineRecord, now_ms: int, keep_ms: int) -> RuleResult[DeadlineRecord]:
    """Return the result that stores `record`, to be kept for `keep_ms` after its due time or `now_ms`, whichever is
    later."""
    keep_until_ms = max(now_ms, record.due_ms or 0) + keep_ms
    record = replace(record, keep_until_ms=keep_until_ms)
    return RuleResult(record_of(record), record, keep_until_ms - now_ms)


def _with_answer(answer: Answer, result: RuleResult[DeadlineRecord]) -> RuleResult[Answer]:
    return RuleResult(result.record, answer, result.keep_ms)


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
