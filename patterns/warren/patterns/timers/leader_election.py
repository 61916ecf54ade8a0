"""Leader election among processes: a lease in a store that does not depend on synchronised clocks, and a log of changes
for the leader.

The lease is no time of day that two machines could read differently. The leader changes the record again and again
(the heartbeat); followers watch it, and take over when it has not changed for a whole lease by their own clock (as in
Kubernetes: "leaderelection", client-go). A leader that could not change the record for two thirds of a lease stops
leading, by its own clock. That is a monotonic clock: it continues evenly when the machine's time is set.
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

MAX_CHANGES: Final = 200
"""Changes that are remembered; a leader that has missed more reads everything."""
KEEP_MS: Final = 400 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Record of the election.

    :ivar owner: id of the leader; empty if there is none.
    :ivar token: grows with every change of the leader (fencing token).
    :ivar heartbeats: heartbeats of this leader.
    :ivar revision: number of announced changes.
    :ivar changes: revisions and names of the latest changes.
    """

    owner: str = ""
    token: int = 0
    heartbeats: int = 0
    revision: int = 0
    changes: tuple[tuple[int, str], ...] = ()


class HeartbeatResult(NamedTuple):
    """Result of a heartbeat.

    :ivar is_leader: this process leads.
    :ivar head: the record.
    :ivar changed_names: names that changed since the caller's revision; None if there are too many.
    """

    is_leader: bool
    head: LeaderRecord
    changed_names: Sequence[str] | None


class LeaderElection:
    """Participation of one process in the election.

    :param lease: seconds.
    """

    def __init__(self, store: Store, key: str, owner: str, *, lease: float, clock: Clock) -> None:
        self.owner: str = owner
        self._store = store
        self._key = key
        self._lease = lease
        self._clock = clock
        self._seen: tuple[str, int, int] | None = None
        self._seen_since = 0.0
        self._renewed_at = float("-inf")

    @property
    def is_leader(self) -> bool:
        """This process leads, by its own clock, with a third of the lease to spare."""
        return monotonic_time(self._clock) - self._renewed_at < self._lease * 2 / 3

    async def heartbeat(self, revision: int) -> HeartbeatResult:
        """Renew the lead, take over from a leader without heartbeats for a lease, or watch.

        :param revision: last revision that the caller has read.
        :raises StoreUnavailable: the outcome is unknown; the lead lasts as long as the last success allows.
        """
        began = monotonic_time(self._clock)
        # A candidate judges by the record that it read when it began to watch, never by a time in the record.
        overdue = self._seen if self._seen is not None and began - self._seen_since >= self._lease else None
        head = await apply_rule(
            self._store, self._key, partial(_heartbeat, owner=self.owner, overdue=overdue)
        )
        seen = (head.owner, head.token, head.heartbeats)
        if head.owner == self.owner:
            self._renewed_at = began
        else:
            self._renewed_at = float("-inf")
        if seen != self._seen:
            self._seen, self._seen_since = seen, began
        return HeartbeatResult(head.owner == self.owner, head, _changes_since(head, revision))

    async def announce_change(self, name: str) -> None:
        """Add the change of `name` to the log of changes."""
        await apply_rule(self._store, self._key, partial(_announce_change, name=name))

    async def resign(self) -> None:
        """Give up the lead, so that another process takes over at once."""
        self._renewed_at = float("-inf")
        await apply_rule(self._store, self._key, partial(_resign, owner=self.owner))


def monotonic_time(clock: Clock) -> float:
    """Return seconds from an arbitrary start: of the machine's monotonic clock, or of a test's clock."""
    followed = clock.followed if isinstance(clock, AppClock) else clock
    return time.monotonic() if isinstance(followed, SystemClock) else followed.now()


def _heartbeat(
    record: bytes | None, *, owner: str, overdue: tuple[str, int, int] | None
) -> RuleResult[LeaderRecord]:
    head = _read(record)
    if head.owner == owner:
        head = replace(head, heartbeats=head.heartbeats + 1)
    elif not head.owner or (head.owner, head.token, head.heartbeats) == overdue:
        head = replace(head, owner=owner, token=head.token + 1, heartbeats=0)
    else:
        return RuleResult(record, head)
    return _write(head)


def _announce_change(record: bytes | None, *, name: str) -> RuleResult[LeaderRecord]:
    head = _read(record)
    changes = (*head.changes, (head.revision + 1, name))[-MAX_CHANGES:]
    return _write(replace(head, revision=head.revision + 1, changes=changes))


def _resign(record: bytes | None, *, owner: str) -> RuleResult[LeaderRecord]:
    head = _read(record)
    return _write(replace(head, owner="")) if head.owner == owner else RuleResult(record, head)


def _changes_since(head: LeaderRecord, revision: int) -> Sequence[str] | None:
    missed = head.revision - revision
    if missed <= 0:
        return () if missed == 0 else None
    return (
        [name for number, name in head.changes if number > revision] if missed <= len(head.changes) else None
    )


def _read(record: bytes | None) -> LeaderRecord:
    if record is None:
        return LeaderRecord()
    owner, token, heartbeats, revision, changes = json.loads(record)
    return LeaderRecord(owner, token, heartbeats, revision, tuple((number, name) for number, name in changes))


def _write(head: LeaderRecord) -> RuleResult[LeaderRecord]:
    fields = [head.owner, head.token, head.heartbeats, head.revision, head.changes]
    return RuleResult(json.dumps(fields, separators=(",", ":")).encode(), head, KEEP_MS)


__all__ = ["HeartbeatResult", "LeaderElection", "LeaderRecord", "monotonic_time"]
