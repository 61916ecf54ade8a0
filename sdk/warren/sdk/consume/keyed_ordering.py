"""Per-key ordering: handle one message of each key at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Job = TypeVar("Job")


class KeyedOrdering(Generic[Job]):
    """Ordering of jobs (deliveries to handle) by key: of the jobs with one key, one runs at a time, and the others wait
    in their order.

    :param key: returns the key of a job.
    """

    def __init__(self, key: Callable[[Job], Hashable]) -> None:
        self._key = key
        self._waiting: dict[Hashable, deque[Job]] = {}
        """Waiting jobs by key; a key is present while one of its jobs runs."""
        self._keys: dict[int, Hashable] = {}
        """Key of each running job, by the job's identity."""

    def admit(self, job: Job) -> bool:
        """Return True if no other job with the same key runs, so that this one may start. Otherwise add it to the
        waiting jobs of its key, which `release` returns one by one, and return False.
        """
        key = self._key(job)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(job)
            return False
        self._start(job, key)
        self._waiting[key] = deque()
        return True

    def release(self, job: Job) -> Job | None:
        """Mark a running job as ended; return the next waiting job of its key, which may start now, or None if none
        waits.
        """
        key = self._keys.pop(id(job))
        waiting = self._waiting[key]
        if not waiting:
            del self._waiting[key]
            return None
        following = waiting.popleft()
        self._start(following, key)
        return following

    def drain(self) -> Iterator[Job]:
        """Remove and yield all jobs that wait."""
        for waiting in self._waiting.values():
            while waiting:
                yield waiting.popleft()

    def __len__(self) -> int:
        """Return the number of jobs that wait."""
        return sum(map(len, self._waiting.values()))

    def _start(self, job: Job, key: Hashable) -> None:
        # Jobs need not be hashable. Their identity is unique: a job starts once, and lives until it is released.
        self._keys[id(job)] = key
