"""The rules of a timer's record: when it is due, who publishes it, whether it can still be cancelled.

    (none)    --put-->     waiting    until `next_ms`
    waiting   --begin-->   firing     its message is being published; it can not be cancelled any more
    firing    --fired-->   waiting    for its next time; or fired, if there is none
    waiting   --skip-->    waiting    a time that was missed is passed over; or fired, if there is no other
    waiting   --cancel-->  cancelled
    firing    --cancel-->  cancelled  if it is a recurring one; the time that has come is published
    fired, cancelled --put--> waiting, but for the very one that was fired

Who puts or cancels leaves a token: whose answer was lost, and who asks again, learns what he did himself. For that, and so
that a fired one is not put again by the next start, what is over stays for a while; to all others it is gone.

Nothing here reads a clock or a store. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID, uuid5

from warren.patterns.stores import RuleResult
from warren.patterns.timers.schedules import following

NAMESPACE: Final = UUID("2b0b5f0e-77c1-5b1b-8d7a-4c3c53f9f2ad")
KEEP_MS: Final = 400 * 24 * 3600 * 1000
"""How long after it is due a timer is kept for somebody to publish it."""
FIRED: Final = "fired"
CANCELLED: Final = "cancelled"
OVER_MS: Final = 3600 * 1000
"""How long what is over is remembered: longer than anybody asks again whose answer was lost."""


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer as it is stored.

    :ivar anchor_ms: when it was put.
    :ivar next_ms: when it is due.
    :ivar fired: how often it was published.
    :ivar token: of the last `put` or `cancel`.
    :ivar standing: it is put at each start, so that it is remembered for long that it was fired.
    :ivar over: `fired` or `cancelled`: it has no further time.
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
        """The same for one time of one timer, whoever publishes it and however often."""
        return str(uuid5(NAMESPACE, "\n".join((owner, self.name, self.type, self.body, str(self.next_ms)))))

    def same(self, other: Timer) -> bool:
        """Both say the same thing at the same times."""
        return (self.spec, self.type, self.body, self.missed) == (
            other.spec,
            other.type,
            other.body,
            other.missed,
        )


def put(record: bytes | None, timer: Timer, *, now_ms: int) -> RuleResult[bool]:
    """Put a timer in the place of that name; False if the same one is there, which goes on as it is, or was fired."""
    held = _held(record)
    if held is not None and held.token == timer.token:
        return RuleResult(record, True)
    if held is not None and held.same(timer) and held.over != CANCELLED:
        return RuleResult(record, False)
    return RuleResult(write(timer), True, _keep_ms(timer, now_ms))


def cancel(record: bytes | None, *, token: str) -> RuleResult[bool]:
    """Take it away; False if there is none, or if its only time has come and is being published."""
    held = _held(record)
    if held is not None and held.token == token:
        return RuleResult(record, True)
    if held is None or held.over or (held.firing and "at_ms" in held.spec):
        return RuleResult(record, False)
    return RuleResult(write(replace(held, over=CANCELLED, token=token)), True, OVER_MS)


def begin(record: bytes | None, timer: Timer, *, late_ms: int, now_ms: int) -> RuleResult[Timer | None]:
    """The time of `timer` has come: the timer to publish, or None if it was changed, or if this time is passed over.

    :param late_ms: from how late on a time counts as missed.
    """
    held = read(record)
    if held is None or not held.same(timer) or held.next_ms != timer.next_ms or held.next_ms > now_ms:
        return RuleResult(record, None)
    if held.firing:
        # Somebody began and died, or lost the lead: it is published again, with the same message id.
        return RuleResult(record, held)
    if held.missed == "skip" and now_ms - held.next_ms > late_ms:
        step = _go_on(held, held.fired, now_ms)
        return RuleResult(step.record, None, step.keep_ms)
    firing = replace(held, firing=True)
    return RuleResult(write(firing), firing, _keep_ms(firing, now_ms))


def fired(record: bytes | None, timer: Timer, *, now_ms: int) -> RuleResult[Timer | None]:
    """Its message is published: the timer as it goes on, or None if it has no further time."""
    held = read(record)
    if held is None or not held.same(timer) or held.next_ms != timer.next_ms:
        return RuleResult(record, held)
    return _go_on(held, held.fired + 1, now_ms)


def _go_on(held: Timer, count: int, now_ms: int) -> RuleResult[Timer | None]:
    """To the first time that is not past: however many were missed, one was published."""
    next_ms = following(held.spec, held.anchor_ms, max(now_ms, held.next_ms))
    if next_ms is None or "at_ms" in held.spec:
        over = replace(held, firing=False, fired=count, over=FIRED)
        return RuleResult(write(over), None, KEEP_MS if held.standing else OVER_MS)
    timer = replace(held, firing=False, fired=count, next_ms=next_ms)
    return RuleResult(write(timer), timer, _keep_ms(timer, now_ms))


def read(record: bytes | None) -> Timer | None:
    """The timer, if it has a time to come."""
    held = _held(record)
    return None if held is None or held.over else held


def write(timer: Timer) -> bytes:
    fields = {name: getattr(timer, name) for name in Timer.__slots__}
    return json.dumps(fields, separators=(",", ":")).encode()


def _held(record: bytes | None) -> Timer | None:
    return None if record is None else Timer(**json.loads(record))


def _keep_ms(timer: Timer, now_ms: int) -> int:
    return max(0, timer.next_ms - now_ms) + KEEP_MS


__all__ = ["KEEP_MS", "Timer", "begin", "cancel", "fired", "put", "read", "write"]
