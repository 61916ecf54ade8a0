"""Per-key ordering: handle one message of each key at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Lane(Generic[Job]):
    """The jobs of one key: one that runs, and those that wait for it.

    :ivar is_busy: one of the jobs runs.
    """

    __slots__ = ("is_busy", "key", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key: Hashable = key
        self.waiting: deque[Job] = deque()
        self.is_busy: bool = False


class KeyedOrdering(Generic[Job]):
    """Ordering of jobs (deliveries to handle) by key: of the jobs with one key, one runs at a time, and the others wait
    in their order.

    A key is an object of the user's, or a header that any client can write. One that cannot be used, because it has no
    hash or its comparison raises, counts as None: the jobs with such keys run one at a time.

    :param key: returns the key of a job.
    :param unusable: called with a job and the error if its key cannot be used.
    """

    def __init__(
        self, key: Callable[[Job], Hashable], unusable: Callable[[Job, BaseException], None]
    ) -> None:
        self._key = key
        self._unusable = unusable
        self._lanes: dict[Hashable, Lane[Job]] = {}
        """Lanes by key, while one of their jobs runs."""
        self._unkeyed: Lane[Job] = Lane(None)
        self._running: dict[int, Lane[Job]] = {}
        """Lane of each running job, by the job's identity."""

    def admit(self, job: Job) -> bool:
        """Return True if no other job with the same key runs, so that this one may start. Otherwise add it to the
        waiting jobs of its key, which `release` returns one by one, and return False.
        """
        lane = self._lane_of(job)
        if lane.is_busy:
            lane.waiting.append(job)
            return False
        lane.is_busy = True
        self._start(job, lane)
        return True

    def _lane_of(self, job: Job) -> Lane[Job]:
        key = self._key(job)
        if key is None:
            return self._unkeyed
        try:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(key)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._unusable(job, error)
            return self._unkeyed
        return lane

    def release(self, job: Job) -> Job | None:
        """Mark a running job as ended; return the next waiting job of its key, which may start now, or None if none
        waits.
        """
        lane = self._running.pop(id(job))
        if lane.waiting:
            following = lane.waiting.popleft()
            self._start(following, lane)
            return following
        lane.is_busy = False
        if lane is not self._unkeyed:
            self._remove(lane)
        return None

    def _remove(self, lane: Lane[Job]) -> None:
        try:
            # A key whose value has changed may be that of another lane now.
            if self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            # The key cannot be compared any more; its lane stays, without jobs.
            pass

    def drain(self) -> Iterator[Job]:
        """Remove and yield all jobs that wait."""
        for lane in (self._unkeyed, *self._lanes.values()):
            while lane.waiting:
                yield lane.waiting.popleft()

    def __len__(self) -> int:
        """Return the number of jobs that wait."""
        return len(self._unkeyed.waiting) + sum(len(lane.waiting) for lane in self._lanes.values())

    def _start(self, job: Job, lane: Lane[Job]) -> None:
        # Jobs need not be hashable. Their identity is unique: a job starts once, and lives until it is released.
        self._running[id(job)] = lane
