"""Rules of a timer's record: due time, firing and cancellation.

    (none)    --put-->           waiting    until `next_ms`
    waiting   --begin_firing-->  firing     its message is being published; this time cannot be cancelled any more
    firing    --finish_firing--> waiting    for its next time; or fired, if there is none
    waiting   --begin_firing-->  waiting    a missed time is skipped; or fired, if there is no other
    waiting   --cancel-->        cancelled
    firing    --cancel-->        cancelled  if it recurs; the present time is published
    fired, cancelled --put--> waiting, except for the same timer that was fired

`put` and `cancel` store a token. A caller whose answer was lost, and who calls again, thereby recognises its own
change. For that, and so that a fired timer is not put again by the next start, the record of a timer that is over is
kept for a while; other callers do not see it.

The rules read neither a clock nor a store. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID, uuid5

from warren.patterns.stores import RuleResult
from warren.patterns.timers.schedules import next_time_ms

NAMESPACE: Final = UUID("2b0b5f0e-77c1-5b1b-8d7a-4c3c53f9f2ad")
KEEP_MS: Final = 400 * 24 * 3600 * 1000
"""Retention of a timer after its due time, for a process to publish it."""
FIRED: Final = "fired"
CANCELLED: Final = "cancelled"
KEEP_OVER_MS: Final = 3600 * 1000
"""Retention of a timer that is over: longer than a caller retries after a lost answer."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Stored timer; the field names are those of the record.

    :ivar spec: its schedule, as `spec_of` returns it.
    :ivar type: wire type of its message.
    :ivar body: its message as JSON.
    :ivar anchor_ms: when it was put.
    :ivar next_ms: when it is due.
    :ivar fired: how often it was published.
    :ivar token: token of the last `put` or `cancel`.
    :ivar standing: it is put at each start, so its firing is remembered for long.
    :ivar over: `fired` or `cancelled` if it has no further time, else empty.
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

    def message_id(self, owner: str) -> str:
        """Return the message id of the present time, the same whichever process publishes it and however often."""
        return str(uuid5(NAMESPACE, "\n".join((owner, self.name, self.type, self.body, str(self.next_ms)))))

    def has_same_definition(self, other: Timer) -> bool:
        """Return whether both publish the same message at the same times."""
        return (self.spec, self.type, self.body, self.missed) == (
            other.spec,
            other.type,
            other.body,
            other.missed,
        )


def put(record: bytes | None, timer: Timer, *, now_ms: int) -> RuleResult[bool]:
    """Put a timer in place of one with its name; answer False if the same one is there, which continues, or was fired."""
    held = _read_any(record)
    if held is not None and held.token == timer.token:
        return RuleResult(record, True)
    if held is not None and held.has_same_definition(timer) and held.over != CANCELLED:
        return RuleResult(record, False)
    return RuleResult(write(timer), True, _keep_ms(timer, now_ms))


def cancel(record: bytes | None, *, token: str) -> RuleResult[bool]:
    """Cancel the timer; answer False if there is none, or if its only time has come and is being published."""
    held = _read_any(record)
    if held is not None and held.token == token:
        return RuleResult(record, True)
    if held is None or held.over or (held.firing and "at_ms" in held.spec):
        return RuleResult(record, False)
    return RuleResult(write(replace(held, over=CANCELLED, token=token)), True, KEEP_OVER_MS)


def begin_firing(
    record: bytes | None, timer: Timer, *, late_ms: int, now_ms: int
) -> RuleResult[Timer | None]:
    """Begin to fire `timer`; the answer is the timer to publish, or None if it was changed or this time is skipped.

    :param late_ms: lateness from which a time counts as missed.
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
    if held.missed == "skip" and now_ms - held.next_ms > late_ms:
        step = _advance(held, held.fired, now_ms)
        return RuleResult(step.record, None, step.keep_ms)
    firing = replace(held, firing=True)
    return RuleResult(write(firing), firing, _keep_ms(firing, now_ms))


def finish_firing(record: bytes | None, timer: Timer, *, now_ms: int) -> RuleResult[Timer | None]:
    """Finish the firing after its message was published; the answer is the timer with its next time, or None."""
    held = read(record)
    if held is None or not held.has_same_definition(timer) or held.next_ms != timer.next_ms:
        return RuleResult(record, held)
    return _advance(held, held.fired + 1, now_ms)


def _advance(held: Timer, count: int, now_ms: int) -> RuleResult[Timer | None]:
    """Advance to the first time that is not past: however many were missed, one was published."""
    next_ms = next_time_ms(held.spec, held.anchor_ms, max(now_ms, held.next_ms))
    if next_ms is None or "at_ms" in held.spec:
        over = replace(held, firing=False, fired=count, over=FIRED)
        return RuleResult(write(over), None, KEEP_MS if held.standing else KEEP_OVER_MS)
    timer = replace(held, firing=False, fired=count, next_ms=next_ms)
    return RuleResult(write(timer), timer, _keep_ms(timer, now_ms))


def read(record: bytes | None) -> Timer | None:
    """Return the timer of a record if it has a further time."""
    held = _read_any(record)
    return None if held is None or held.over else held


def write(timer: Timer) -> bytes:
    """Return the record of a timer."""
    fields = {name: getattr(timer, name) for name in Timer.__slots__}
    return json.dumps(fields, separators=(",", ":")).encode()


def _read_any(record: bytes | None) -> Timer | None:
    return None if record is None else Timer(**json.loads(record))


def _keep_ms(timer: Timer, now_ms: int) -> int:
    return max(0, timer.next_ms - now_ms) + KEEP_MS


__all__ = ["KEEP_MS", "Timer", "begin_firing", "cancel", "finish_firing", "put", "read", "write"]
