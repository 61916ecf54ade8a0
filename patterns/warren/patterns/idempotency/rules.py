"""The rules of a claim: who may do a piece of work, and what is said to those who come second.

A claim is *free* (no record), *claimed* until its lease ends, or *done* until it has been kept long enough:

    free     --claim-->             claimed
    claimed  --claim, lease over--> claimed   by the newcomer, with a higher token
    claimed  --renew-->             claimed   with a longer lease
    claimed  --finish-->            done      with the result
    claimed  --release-->           free
    done     --claim, keep over-->  claimed

Only the holder of the present token moves a claim on: one whose lease was taken over is refused (fencing
token, Kleppmann, "How to do distributed locking"). Times are milliseconds since the epoch, by the clock of
who asks: clocks that differ by more than a lease let a second worker begin early; its token still keeps the
first from overwriting what the second finished.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from warren.patterns.stores.store import RuleResult

_json = json.JSONEncoder(separators=(",", ":")).encode


class Claimed(NamedTuple):
    """The work is yours until the lease ends. `token` grows with every claim of a key: hand it on to what you
    change."""

    owner: str
    token: int
    until_ms: int

    def record(self) -> bytes:
        """As the store has it, unless it was renewed or lost: a guess that spares a round trip."""
        return _write(_Record(_State.CLAIMED, self.owner, self.token, self.until_ms))


class Busy(NamedTuple):
    """Somebody else is at it, until `until_ms` at the latest unless they renew."""

    until_ms: int


class Done(NamedTuple):
    """The work was done, and this was its result."""

    result: bytes


def claim(
    record: bytes | None, *, owner: str, now_ms: int, lease_ms: int
) -> RuleResult[Claimed | Busy | Done]:
    """Ask for the work. The same `owner` asking twice, because an answer was lost, gets the same claim
    twice."""
    held = _read(record)
    if held is not None and held.until_ms > now_ms:
        if held.state is _State.DONE:
            return RuleResult(record, Done(held.result))
        if held.owner != owner:
            return RuleResult(record, Busy(held.until_ms))
        return RuleResult(record, Claimed(owner, held.token, held.until_ms))
    # From the clock, so that it grows even after the store has forgotten a key; from the last token, so that
    # it grows even if the clock does not.
    token = max(now_ms * 1000, held.token + 1 if held else 1)
    taken = _Record(_State.CLAIMED, owner, token, now_ms + lease_ms)
    return RuleResult(_write(taken), Claimed(owner, token, taken.until_ms), lease_ms)


def renew(record: bytes | None, claimed: Claimed, *, now_ms: int, lease_ms: int) -> RuleResult[bool]:
    """Lengthen the lease; False if the claim was lost."""
    if not _may_move(_read(record), claimed):
        return RuleResult(record, False)
    return RuleResult(
        _write(_Record(_State.CLAIMED, claimed.owner, claimed.token, now_ms + lease_ms)), True, lease_ms
    )


def finish(
    record: bytes | None, claimed: Claimed, result: bytes, *, now_ms: int, keep_ms: int
) -> RuleResult[bool]:
    """Say that the work is done; False if somebody else took it over, whose result then stands."""
    done = _Record(_State.DONE, claimed.owner, claimed.token, now_ms + keep_ms, result)
    held = _read(record)
    if held is not None and held.state is _State.DONE:
        return RuleResult(record, (held.owner, held.token) == (claimed.owner, claimed.token))
    if not _may_move(held, claimed):
        return RuleResult(record, False)
    return RuleResult(_write(done), True, keep_ms)


def release(record: bytes | None, claimed: Claimed) -> RuleResult[bool]:
    """Give the work back undone, for the next who asks; False if it was not held any more."""
    held = _read(record)
    if held is None or not _may_move(held, claimed):
        return RuleResult(record, False)
    return RuleResult(None, True)


class _State(StrEnum):
    CLAIMED = "claimed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class _Record:
    state: _State
    owner: str
    token: int
    until_ms: int
    result: bytes = b""


def _may_move(held: _Record | None, claimed: Claimed) -> bool:
    # A claim that the store forgot is still its holder's: nobody else has asked since, or there would be a
    # record.
    return held is None or (
        held.state is _State.CLAIMED and (held.owner, held.token) == (claimed.owner, claimed.token)
    )


def _read(record: bytes | None) -> _Record | None:
    if record is None:
        return None
    head, _, result = record.partition(b"\n")
    state, owner, token, until_ms = json.loads(head)
    return _Record(_State(state), owner, token, until_ms, result)


def _write(record: _Record) -> bytes:
    head = _json([record.state, record.owner, record.token, record.until_ms])
    return head.encode() + b"\n" + record.result


__all__ = ["Busy", "Claimed", "Done", "claim", "finish", "release", "renew"]
