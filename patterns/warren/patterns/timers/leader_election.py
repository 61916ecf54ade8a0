"""One of many leads: a lease in a store that no clock's error can break, and the news that all leave for who leads.

The lease is not a time of day that two machines might read differently. Who leads changes the record, again and again; who
follows watches it, and takes over when it has not changed for a whole lease by his own clock (as Kubernetes' leader election
does: "leaderelection", client-go). Who could not change it for two thirds of a lease leads no longer, by his own clock. That
is a clock that nobody sets: it goes on evenly when the machine's time jumps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from warren.patterns.stores import RuleResult, Store, apply_rule
from warren.sdk import Clock, SystemClock
from warren.sdk.extend import AppClock

NEWS: Final = 200
"""Changes that are remembered; who has missed more reads everything."""
KEEP_MS: Final = 400 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads, how often he has said so, and what was changed lately.

    :ivar token: grows with every change of the lead (fencing token).
    :ivar revision: counts the changes.
    :ivar news: revision and name of the latest.
    """

    owner: str = ""
    token: int = 0
    heartbeat: int = 0
    revision: int = 0
    news: tuple[tuple[int, str], ...] = ()


class HeartbeatResult(NamedTuple):
    """Whether we lead, and what was changed since the revision that we had seen; None if that is too much."""

    leading: bool
    head: LeaderRecord
    changed: Sequence[str] | None


class LeaderElection:
    """One process's part in it.

    :param lease: seconds.
    """

    def __init__(self, store: Store, key: str, owner: str, *, lease: float, clock: Clock) -> None:
        self.owner: str = owner
        self._store = store
        self._key = key
        self._lease = lease
        self._clock = clock
        self._seen: tuple[str, int, int] | None = None
        self._since = 0.0
        self._renewed = float("-inf")

    @property
    def leading(self) -> bool:
        """By our own clock, with a third of the lease to spare."""
        return monotonic_time(self._clock) - self._renewed < self._lease * 2 / 3

    async def heartbeat(self, revision: int) -> HeartbeatResult:
        """Say that we lead, or take over from who has not said so for a lease, or watch.

        :param revision: the last that we have seen.
        :raises StoreUnavailable: nothing is known; we lead for as long as our last success allows.
        """
        began = monotonic_time(self._clock)
        # Who asks for the lead judges by what he saw when he began to look, never by a time in the record.
        overdue = self._seen if self._seen is not None and began - self._since >= self._lease else None
        head = await apply_rule(self._store, self._key, partial(_beat, owner=self.owner, overdue=overdue))
        seen = (head.owner, head.token, head.heartbeat)
        if head.owner == self.owner:
            self._renewed = began
        else:
            self._renewed = float("-inf")
        if seen != self._seen:
            self._seen, self._since = seen, began
        return HeartbeatResult(head.owner == self.owner, head, _changed(head, revision))

    async def tell(self, name: str) -> None:
        """Leave the news that `name` was changed."""
        await apply_rule(self._store, self._key, partial(_tell, name=name))

    async def leave(self) -> None:
        """Let another lead at once."""
        self._renewed = float("-inf")
        await apply_rule(self._store, self._key, partial(_leave, owner=self.owner))


def monotonic_time(clock: Clock) -> float:
    """Seconds that pass by this clock, from no particular time on: real ones evenly, a test's as the test has them."""
    followed = clock.followed if isinstance(clock, AppClock) else clock
    return time.monotonic() if isinstance(followed, SystemClock) else followed.now()


def _beat(
    record: bytes | None, *, owner: str, overdue: tuple[str, int, int] | None
) -> RuleResult[LeaderRecord]:
    head = _read(record)
    if head.owner == owner:
        head = replace(head, heartbeat=head.heartbeat + 1)
    elif not head.owner or (head.owner, head.token, head.heartbeat) == overdue:
        head = replace(head, owner=owner, token=head.token + 1, heartbeat=0)
    else:
        return RuleResult(record, head)
    return _write(head)


def _tell(record: bytes | None, *, name: str) -> RuleResult[LeaderRecord]:
    head = _read(record)
    news = (*head.news, (head.revision + 1, name))[-NEWS:]
    return _write(replace(head, revision=head.revision + 1, news=news))


def _leave(record: bytes | None, *, owner: str) -> RuleResult[LeaderRecord]:
    head = _read(record)
    return _write(replace(head, owner="")) if head.owner == owner else RuleResult(record, head)


def _changed(head: LeaderRecord, revision: int) -> Sequence[str] | None:
    missed = head.revision - revision
    if missed <= 0:
        return () if missed == 0 else None
    return [name for number, name in head.news if number > revision] if missed <= len(head.news) else None


def _read(record: bytes | None) -> LeaderRecord:
    if record is None:
        return LeaderRecord()
    owner, token, heartbeat, revision, news = json.loads(record)
    return LeaderRecord(owner, token, heartbeat, revision, tuple((number, name) for number, name in news))


def _write(head: LeaderRecord) -> RuleResult[LeaderRecord]:
    fields = [head.owner, head.token, head.heartbeat, head.revision, head.news]
    return RuleResult(json.dumps(fields, separators=(",", ":")).encode(), head, KEEP_MS)


__all__ = ["HeartbeatResult", "LeaderElection", "LeaderRecord", "monotonic_time"]
