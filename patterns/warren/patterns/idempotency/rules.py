"""Rules of a claim: one holder at a time, and the stored result for duplicates.

A claim is the right of one worker to handle a message key. It is *free* (no record), *claimed* until its lease expires,
or *done* until its result has been kept long enough:

    free     --claim-->                claimed
    claimed  --claim, lease expired--> claimed   by the newcomer, with a higher token
    claimed  --renew-->                claimed   with a longer lease
    claimed  --finish-->               done      with the result
    claimed  --release-->              free
    done     --claim, keep over-->     claimed

Only the holder of the present token may change a claim: a holder whose lease was taken over is refused (fencing token,
Kleppmann, "How to do distributed locking"). Times are milliseconds since the epoch, by the caller's clock. If clocks
differ by more than a lease, a second worker may begin too early; its higher token still prevents the first from
overwriting the second's result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from warren.patterns.stores.store import RuleResult

_json = json.JSONEncoder(separators=(",", ":")).encode


class Claimed(NamedTuple):
    """Answer to a worker that claims a key (the right to handle its message): the worker holds the claim until
    `until_ms`, when the lease expires.

    :ivar token: fencing token, which grows with every claim of a key. Send it with the changes that the handler makes
        elsewhere, so that a system can refuse those of an earlier holder.
    """

    owner: str
    token: int
    until_ms: int

    def record(self) -> bytes:
        """Encode this claim as the store holds it, unless the claim was renewed or lost since. A caller passes it to
        the store as the expected record: if that is right, the compare-and-set needs no read before it."""
        return _write(_Record(_State.CLAIMED, self.owner, self.token, self.until_ms))


class Busy(NamedTuple):
    """Answer to a worker that claims a key (the right to handle its message): another worker holds the claim until
    `until_ms`, or longer if it renews the lease."""

    until_ms: int


class Done(NamedTuple):
    """Answer to a worker that claims a key (the right to handle its message): the handler has already run, with this
    encoded result."""

    result: bytes


def claim(
    record: bytes | None, *, owner: str, now_ms: int, lease_ms: int
) -> RuleResult[Claimed | Busy | Done]:
    """Compute the record after `owner` has asked for the claim (the right to handle a key's message). The
    result's `answer` is the claim (`Claimed`), the lease of its present holder (`Busy`), or the handler's stored
    result (`Done`).

    An `owner` that asks again, because the store's answer was lost, gets the same claim.

    :param record: the key's stored record; None if it has none.
    :param owner: id of the worker, unique for each attempt to handle a message.
    :param now_ms: present time; a new claim lasts until `lease_ms` after it.
    """
    held = _read(record)
    if held is not None and held.until_ms > now_ms:
        if held.state is _State.DONE:
            return RuleResult(record, Done(held.result))
        if held.owner != owner:
            return RuleResult(record, Busy(held.until_ms))
        return RuleResult(record, Claimed(owner, held.token, held.until_ms))
    # From the clock, so that it grows even after the store has deleted the record; from the last token, so that it
    # grows even if the clock does not.
    token = max(now_ms * 1000, held.token + 1 if held else 1)
    taken = _Record(_State.CLAIMED, owner, token, now_ms + lease_ms)
    return RuleResult(_write(taken), Claimed(owner, token, taken.until_ms), lease_ms)


def renew(record: bytes | None, claimed: Claimed, *, now_ms: int, lease_ms: int) -> RuleResult[bool]:
    """Compute the record of a claim whose lease ends `lease_ms` after `now_ms`. The result's `answer` is False if
    another worker has taken the claim over; the record is not changed then.

    :param record: the key's stored record; None if it has none.
    :param claimed: the claim that the caller holds.
    """
    if not _holds(_read(record), claimed):
        return RuleResult(record, False)
    return RuleResult(
        _write(_Record(_State.CLAIMED, claimed.owner, claimed.token, now_ms + lease_ms)), True, lease_ms
    )


def finish(
    record: bytes | None, claimed: Claimed, result: bytes, *, now_ms: int, keep_ms: int
) -> RuleResult[bool]:
    """Compute the record with the handler's result in place of its claim. The result's `answer` is False if another
    worker has taken the claim over; the record is not changed then, because that worker's result counts.

    :param record: the key's stored record; None if it has none.
    :param claimed: the claim under which the handler ran.
    :param result: the handler's encoded result.
    :param now_ms: present time; the result is kept until `keep_ms` after it.
    """
    done = _Record(_State.DONE, claimed.owner, claimed.token, now_ms + keep_ms, result)
    held = _read(record)
    if held is not None and held.state is _State.DONE:
        return RuleResult(record, (held.owner, held.token) == (claimed.owner, claimed.token))
    if not _holds(held, claimed):
        return RuleResult(record, False)
    return RuleResult(_write(done), True, keep_ms)


def release(record: bytes | None, claimed: Claimed) -> RuleResult[bool]:
    """Compute the record after the claim is given up without a result. The result's `answer` is False if the caller did
    not hold the claim any more; the record is not changed then.

    :param record: the key's stored record; None if it has none.
    :param claimed: the claim to give up.
    """
    held = _read(record)
    if held is None or not _holds(held, claimed):
        return RuleResult(record, False)
    return RuleResult(None, True)


def withdraw(record: bytes | None, owner: str) -> RuleResult[bool]:
    """Compute the record after `owner` has given up its request for the claim, which it may have got. The result's `answer`
    is True if it had the claim.

    :param record: the key's stored record; None if it has none.
    :param owner: id of the worker that asked.
    """
    held = _read(record)
    if held is None or held.state is not _State.CLAIMED or held.owner != owner:
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


def _holds(held: _Record | None, claimed: Claimed) -> bool:
    # A claim whose record the store has deleted still belongs to its holder: another claim would have left a record.
    """Return whether `claimed` is still the present claim of the record, and may change it."""
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


__all__ = ["Busy", "Claimed", "Done", "claim", "finish", "release", "renew", "withdraw"]
