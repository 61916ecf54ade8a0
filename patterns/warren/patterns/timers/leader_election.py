"""Leader election among processes, by a lease in a store, without synchronised clocks. The election's record also lists
the items (such as timers) that other processes have changed, for the leader to read again.

The lease is not stored as a time of day, which two machines could read differently. The leader changes the record again
and again (the heartbeat); followers read it repeatedly, and take over when it has not changed for a whole lease by
their own clock (as in Kubernetes: "leaderelection", client-go). A leader that could not change the record for two
thirds of a lease stops leading, by its own clock. That is a monotonic clock, which is not affected when the machine's
time is set.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from warren.patterns.monotonic_time import monotonic_time
from warren.patterns.stores import RuleResult, Store, apply_rule
from warren.sdk import Clock

MAX_CHANGES: Final = 200
"""Number of announced changes (names of changed items, such as timers) that the election's record keeps. A leader that
has missed more must read all items again."""
MIN_LOOKS: Final = 2
"""Number of heartbeats at which a follower has found the leader's record unchanged before the one that takes over. A
follower that stood still itself, for longer than the lease, thus gives the leader time for a heartbeat."""
KEEP_MS: Final = 400 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Stored record of an election: the leader, its heartbeats, and the changes that other processes announce to it.

    :ivar owner: id of the leading process; empty if there is none.
    :ivar token: number of leaders so far, for use as a fencing token.
    :ivar heartbeats: number of heartbeats of this leader.
    :ivar revision: number of changes announced so far.
    :ivar changes: latest changes, each as its number (1 for the first) and the name of the changed item, such as a
        timer.
    """

    owner: str = ""
    token: int = 0
    heartbeats: int = 0
    revision: int = 0
    changes: tuple[tuple[int, str], ...] = ()


class HeartbeatResult(NamedTuple):
    """Result of a heartbeat.

    :ivar is_leader: True if this process is the leader.
    :ivar head: record of the election after the heartbeat.
    :ivar changed_names: names of the items, such as timers, that processes have announced as changed since the revision
        that the caller passed; None if the record no longer has all of them, so that the leader must read all items.
    """

    is_leader: bool
    head: LeaderRecord
    changed_names: Sequence[str] | None


class LeaderElection:
    """Participation of one process in the election of a leader.

    :param store: store with the election's record.
    :param key: key of the record.
    :param owner: id of this process.
    :param lease: seconds without a heartbeat after which another process takes over.
    """

    def __init__(self, store: Store, key: str, owner: str, *, lease: float, clock: Clock) -> None:
        self.owner: str = owner
        self._store = store
        self._key = key
        self._lease = lease
        self._clock = clock
        self._seen: tuple[str, int, int] | None = None
        self._seen_since = 0.0
        self._unchanged_looks = 0
        self._renewed_at = float("-inf")

    @property
    def is_leader(self) -> bool:
        """True if this process is certainly the leader: its last successful heartbeat is less than two thirds of a
        lease ago."""
        return monotonic_time(self._clock) - self._renewed_at < self._lease * 2 / 3

    @property
    def is_leader_silent(self) -> bool:
        """True if another process leads, and its record had not changed when this process last read it."""
        return self._unchanged_looks > 0

    async def heartbeat(self, revision: int) -> HeartbeatResult:
        """Renew the lease as the leader, or become the leader if there is none or its record has not changed for a
        lease. Otherwise note the leader's record, for comparison by the next call.

        :param revision: number of announced changes that the caller has already read, as of its last heartbeat; -1 if
            none.
        :raises StoreUnavailable: the outcome is unknown; a leader continues until two thirds of a lease after its last
            successful heartbeat.
        """
        began = monotonic_time(self._clock)
        # A candidate judges by the record that it read when it began to watch, never by a time in the record.
        is_overdue = began - self._seen_since >= self._lease and self._unchanged_looks >= MIN_LOOKS
        overdue = self._seen if is_overdue else None
        head = await apply_rule(
            self._store, self._key, partial(_heartbeat, owner=self.owner, overdue=overdue)
        )
        seen = (head.owner, head.token, head.heartbeats)
        if head.owner == self.owner:
            self._renewed_at = began
        else:
            self._renewed_at = float("-inf")
        if seen != self._seen:
            self._seen, self._seen_since, self._unchanged_looks = seen, began, 0
        else:
            self._unchanged_looks += 1
        return HeartbeatResult(head.owner == self.owner, head, _changes_since(head, revision))

    async def announce_change(self, name: str) -> None:
        """Add the name of a changed item, such as a timer, to the election's record. The leader gets it as the result
        of its next heartbeat."""
        await apply_rule(self._store, self._key, partial(_announce_change, name=name))

    async def resign(self) -> None:
        """Give up the lease if this process has it, so that another process takes over at once."""
        self._renewed_at = float("-inf")
        await apply_rule(self._store, self._key, partial(_resign, owner=self.owner))


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


__all__ = ["HeartbeatResult", "LeaderElection", "LeaderRecord"]
