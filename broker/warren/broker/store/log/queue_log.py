"""A durable queue's handle in the log: what was appended and acknowledged since the last batch, as runs."""

from __future__ import annotations

from mypy_extensions import i64

from warren.broker.store.log.live_segments import Live
from warren.broker.store.sequence_ranges import NONE, merge


class QueueLog:
    """A durable queue's handle in the log. Only `incarnation` is for others to read."""

    def __init__(self, incarnation: i64) -> None:
        self.incarnation = incarnation
        self.live = Live()
        self.dropped = False
        self.touched = False
        self.added_first: i64 = 0
        self.added_last: i64 = NONE
        self.added_bytes: i64 = 0
        self.added: list[int] = []
        self.written: i64 = 0
        """How many messages were written since the queue's start."""
        self.gone_first: i64 = 0
        self.gone_last: i64 = NONE
        self.gone: list[int] = []
        self.marks: dict[int, int] = {}
        """Delivery counts that are yet to be written."""
        self.counts: dict[int, int] = {}
        """Delivery counts of live messages, where they are not 0."""
        self.moved: dict[int, int] = {}
        """Where copies of messages stand whose segment has no index yet."""
        self.moved_transient: set[int] = set()
        """Those of them that do not outlive the process."""

    def take_added(self) -> list[int]:
        """The runs that were appended since the last call, as first, last, first, last, ..."""
        runs = self.added
        if self.added_last != NONE:
            runs.append(self.added_first)
            runs.append(self.added_last)
        self.added = []
        self.added_last = NONE
        at: i64 = 0
        while at < len(runs):
            self.written += runs[at + 1] - runs[at] + 1
            at += 2
        return runs

    def end(self, runs: list[int], batch: i64) -> None:
        """The messages of `runs` are dead; their segments stay until `batch` is on the disk (0: nothing to
        wait for)."""
        self.live.clear(runs, batch)
        if self.counts:
            at: i64 = 0
            while at < len(runs):
                first: i64 = runs[at]
                last: i64 = runs[at + 1]
                if last - first < len(self.counts):
                    for sequence in range(first, last + 1):
                        self.counts.pop(sequence, 0)
                else:
                    self.counts = {s: n for s, n in self.counts.items() if s < first or s > last}
                at += 2

    def gone_runs(self) -> list[int]:
        """The acknowledged runs in order, adjacent ones as one."""
        if not self.gone:
            return [self.gone_first, self.gone_last] if self.gone_last != NONE else []
        if self.gone_last != NONE:
            self.gone.append(self.gone_first)
            self.gone.append(self.gone_last)
            self.gone_last = NONE
        merged = merge(self.gone)
        self.gone = merged
        return merged[:]


__all__ = ["QueueLog"]
