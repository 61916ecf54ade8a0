"""Order by key: of the jobs that share a key one is worked on at a time, in the order in which they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Job = TypeVar("Job")


class KeyedOrdering(Generic[Job]):
    """A lane a key, for as long as a job of that key is here.

    :param key: of a job; the same from `admit` to `release`.
    """

    def __init__(self, key: Callable[[Job], Hashable]) -> None:
        self._key = key
        self._waiting: dict[Hashable, deque[Job]] = {}
        self._keys: dict[int, Hashable] = {}

    def admit(self, job: Job) -> bool:
        """Whether its turn is now; if not, `release` will return it."""
        key = self._key(job)
        lane = self._waiting.get(key)
        if lane is not None:
            lane.append(job)
            return False
        self._start(job, key)
        self._waiting[key] = deque()
        return True

    def release(self, job: Job) -> Job | None:
        """The job has ended; returns the one whose turn is now."""
        key = self._keys.pop(id(job))
        lane = self._waiting[key]
        if not lane:
            del self._waiting[key]
            return None
        following = lane.popleft()
        self._start(following, key)
        return following

    def drain(self) -> Iterator[Job]:
        """Take out all whose turn has not come."""
        for lane in self._waiting.values():
            while lane:
                yield lane.popleft()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _start(self, job: Job, key: Hashable) -> None:
        # By identity: a job is started once, and lives until it is released.
        self._keys[id(job)] = key
