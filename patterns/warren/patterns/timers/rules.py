"""Rules of a timer's record: due time, firing and cancellation.

    (none)    --put-->           waiting    until `next_ms`
    waiting   --begin_firing-->  firing     its message is being published; this time cannot be cancelled any more
    firing    --finish_firing--> waiting    for its next time; or fired, if there is none
    waiting   --begin_firing-->  waiting    missed times are skipped; or fired, if there is no other
    waiting   --cancel-->        cancelled
    firing    --cancel-->        cancelled  if it recurs; the present time is published
    fired, cancelled --put--> waiting, except for the same timer that was fired, and for a standing timer with a
                                       definition that was cancelled

A time is *missed* if it is more than `late` behind. One firing stands for one time, unless the timer's `missed` has one
message published for several: for all that are missed (`catch_up`), or for all that have passed (`coalesce`).
`begin_firing` stores the last of them as `through_ms`, so that each process which continues the firing goes on with the
same next time.

`put` and `cancel` store a token, by which a caller that repeats a call after a lost answer recognises its own change.
For this purpose the record of a timer without a further time is kept for a while. That of a standing timer, which each
start of an App puts again, is kept for good, so that it neither fires again nor comes back after its cancellation. Such
a timer is not listed.

The rules read neither a clock nor a store. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID, uuid5

from warren.patterns.stores import RuleResult
from warren.patterns.timers.schedules import next_time_ms

NAMESPACE: Final = UUID("2b0b5f0e-77c1-5b1b-8d7a-4c3c53f9f2ad")
KEEP_MS: Final = 400 * 24 * 3600 * 1000
"""Milliseconds for which a timer's record is kept after its due time, for the case that no process runs to publish
it."""
NEW_FIELDS: Final = ("through_ms", "cancelled")
"""Fields of a record that Warren 0.1 does not have."""
MAX_CANCELLED: Final = 100
"""Number of cancelled definitions of a standing timer that its record keeps, the latest ones."""
FIRED: Final = "fired"
CANCELLED: Final = "cancelled"
KEEP_OVER_MS: Final = 3600 * 1000
"""Milliseconds for which the record of a fired or cancelled timer is kept: longer than a caller retries after a lost
answer."""
KEEP_STANDING_MS: Final = 100 * KEEP_MS
"""Milliseconds for which the record of a fired or cancelled standing timer is kept: longer than any deployment, because
each start of an App puts the timer again."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Stored timer; its record has fields with the same names. Times are milliseconds since the epoch.

    :ivar spec: schedule of the timer: `{"at_ms": ...}` for a date, `{"every_ms": ...}` for an interval, or `{"cron":
        ..., "zone": ...}`.
    :ivar type: wire type (property `type`) of the message to publish.
    :ivar body: message to publish, as JSON.
    :ivar missed: `catch_up`, `skip` or `coalesce`: handling of times that have passed.
    :ivar anchor_ms: time at which the timer was stored, from which intervals count.
    :ivar next_ms: time at which it is due next.
    :ivar firing: True while the message for `next_ms` is being published.
    :ivar fired: number of times that it was published.
    :ivar token: random token of the last `put` or `cancel`, by which a caller that repeats it recognises its own
        change.
    :ivar standing: True if each start of an App stores the timer, unless it is stored already; its record is then kept
        for good after it has fired or was cancelled, so that it does not come back.
    :ivar over: `fired` or `cancelled` if it has no further time, else empty.
    :ivar through_ms: latest time for which the message for `next_ms` stands; 0 if it stands for `next_ms` only.
    :ivar cancelled: digests of the definitions of this standing timer that were cancelled.
    """

    name: str
    spec: dict[str, Any]
    type: str
    body: str
    missed: str
    anchor_ms: int
    next_ms: int
    firing: bool = False
    fired: int = 0
    token: str = ""
    standing: bool = False
    over: str = ""
    through_ms: int = 0
    cancelled: tuple[str, ...] = ()

    def message_id(self, owner: str) -> str:
        """Return the message id for the publish at `next_ms`. It is computed from the timer and that time, so it is the
        same whichever process publishes the message, and however often.

        :param owner: name of the set of timers.
        """
        return str(uuid5(NAMESPACE, "\n".join((owner, self.name, self.type, self.body, str(self.next_ms)))))

    def has_same_definition(self, other: Timer) -> bool:
        """Return whether both timers publish the same message on the same schedule."""
        return (self.spec, self.type, self.body, self.missed) == (
            other.spec,
            other.type,
            other.body,
            other.missed,
        )

    def definition_digest(self) -> str:
        """Return a short digest of the schedule and the message, equal if `has_same_definition` is true."""
        definition = json.dumps([self.spec, self.type, self.body, self.missed], sort_keys=True)
        return hashlib.sha256(definition.encode()).hexdigest()[:16]


def put(record: bytes | None, timer: Timer, *, now_ms: int) -> RuleResult[bool]:
    """Compute the record of a new timer, in place of one with the same name. The result's `answer` is True if the
    timer is stored.

    The answer is False if a timer with the same definition is waiting, which then continues, or has been
    fired recently; also if the timer is a standing one and this definition of it was cancelled.

    :param record: present record under the timer's name; None if there is none.
    :param now_ms: present time; decides only how long the store keeps the record.
    """
    held = _read_any(record)
    if held is None:
        return RuleResult(write(timer), True, _keep_ms(timer, now_ms))
    if held.token == timer.token:
        return RuleResult(record, True)
    if timer.standing and timer.definition_digest() in held.cancelled:
        return RuleResult(record, False)
    if held.has_same_definition(timer) and held.over != CANCELLED:
        if held.standing or not timer.standing:
            return RuleResult(record, False)
        standing = replace(held, standing=True)
        return RuleResult(write(standing), False, _keep_ms(standing, now_ms))
    cancelled = tuple(digest for digest in held.cancelled if digest != timer.definition_digest())
    stored = replace(timer, standing=timer.standing or held.standing, cancelled=cancelled)
    return RuleResult(write(stored), True, _keep_ms(stored, now_ms))


def cancel(record: bytes | None, *, token: str) -> RuleResult[bool]:
    """Compute the timer's record after its cancellation. The result's `answer` is True if the timer is cancelled.

    The answer is False if there is no timer, or if its only time has come and the message is being published.

    :param record: present record of the timer; None if there is none.
    :param token: random token of this call, by which a repeated call recognises its own change.
    """
    held = _read_any(record)
    if held is not None and held.token == token:
        return RuleResult(record, True)
    if held is None or held.over or (held.firing and "at_ms" in held.spec):
        return RuleResult(record, False)
    over = replace(held, over=CANCELLED, token=token)
    if not over.standing:
        return RuleResult(write(over), True, KEEP_OVER_MS)
    over = replace(over, cancelled=(*over.cancelled, over.definition_digest())[-MAX_CANCELLED:])
    return RuleResult(write(over), True, KEEP_STANDING_MS)


def begin_firing(
    record: bytes | None, timer: Timer, *, late_ms: int, now_ms: int
) -> RuleResult[Timer | None]:
    """Compute the record of a timer whose message a process is about to publish (the timer is *firing*).

    :param record: present record of the timer; None if there is none.
    :param timer: the timer as the caller has read it, which is now due.
    :param late_ms: lateness in milliseconds above which a time counts as missed.
    :return: the result's `answer` is the timer whose message the caller must publish; None if there is nothing to
        publish, because the stored timer was changed or cancelled, or the time was missed and is skipped.
    """
    held = read(record)
    if (
        held is None
        or not held.has_same_definition(timer)
        or held.next_ms != timer.next_ms
        or held.next_ms > now_ms
    ):
        return RuleResult(record, None)
    if held.firing:
        # A process began to fire it and died, or lost the election: it is published again, with the same message id.
        return RuleResult(record, held)
    last_missed_ms = now_ms - late_ms - 1
    is_missed = held.next_ms <= last_missed_ms
    if is_missed and held.missed == "skip":
        step = _advance(held, held.fired, last_missed_ms, now_ms)
        return RuleResult(step.record, None, step.keep_ms)
    through_ms = now_ms if held.missed == "coalesce" else last_missed_ms if is_missed else 0
    firing = replace(held, firing=True, through_ms=through_ms)
    return RuleResult(write(firing), firing, _keep_ms(firing, now_ms))


def finish_firing(record: bytes | None, timer: Timer, *, now_ms: int) -> RuleResult[Timer | None]:
    """Compute the timer's record after its message was published: waiting for its next time, or fired if there is none.

    :param record: present record of the timer; None if there is none.
    :param timer: the timer whose message was published, as `begin_firing` returned it.
    :param now_ms: present time; decides only how long the store keeps the record.
    :return: the result's `answer` is the stored timer, waiting for its next time, or None if it was cancelled or has no
        further time. If the record was changed meanwhile, for example by a new timer with the same name, it is left as
        it is, and its timer is the answer.
    """
    held = read(record)
    if held is None or not held.has_same_definition(timer) or held.next_ms != timer.next_ms:
        return RuleResult(record, held)
    return _advance(held, held.fired + 1, held.through_ms, now_ms)


def _advance(held: Timer, count: int, through_ms: int, now_ms: int) -> RuleResult[Timer | None]:
    """Compute the timer's record with its first time after the present one and after `through_ms`, or as fired if it
    has no further time.

    :param held: the stored timer.
    :param count: number of publishes of the timer so far, to be stored.
    :param through_ms: latest time that is left out.
    :return: the result's `answer` is the timer with its next time, or None if it has none.
    """
    next_ms = next_time_ms(held.spec, held.anchor_ms, max(through_ms, held.next_ms))
    if next_ms is None or "at_ms" in held.spec:
        over = replace(held, firing=False, fired=count, over=FIRED, through_ms=0)
        return RuleResult(write(over), None, KEEP_STANDING_MS if held.standing else KEEP_OVER_MS)
    timer = replace(held, firing=False, fired=count, next_ms=next_ms, through_ms=0)
    return RuleResult(write(timer), timer, _keep_ms(timer, now_ms))


def read(record: bytes | None) -> Timer | None:
    """Decode the timer from its record; None if there is no record, or the timer was cancelled or has no further
    time."""
    held = _read_any(record)
    return None if held is None or held.over else held


def write(timer: Timer) -> bytes:
    """Encode a timer as its record for the store. Fields that older versions do not have are left out while they have
    their defaults, so that processes of both versions can share the timers."""
    record = {name: getattr(timer, name) for name in Timer.__slots__}
    for name in NEW_FIELDS:
        if not record[name]:
            del record[name]
    return json.dumps(record, separators=(",", ":")).encode()


def _read_any(record: bytes | None) -> Timer | None:
    if record is None:
        return None
    found = json.loads(record)
    return Timer(**{**found, "cancelled": tuple(found.get("cancelled", ()))})


def _keep_ms(timer: Timer, now_ms: int) -> int:
    return max(0, timer.next_ms - now_ms) + KEEP_MS


__all__ = ["KEEP_MS", "Timer", "begin_firing", "cancel", "finish_firing", "put", "read", "write"]
