"""A durable queue's handle in the log: what was appended and acknowledged since the last batch, as runs."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from .segments import Live

NONE: Final = -2
"""No sequence: the one that follows it is none either."""


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
        self.gone_first: i64 = 0
        self.gone_last: i64 = NONE
        self.gone: list[int] = []
        self.marks: dict[int, int] = {}
        """Delivery counts that are yet to be written."""
        self.counts: dict[int, int] = {}
        """Delivery counts of live messages, where they are not 0."""

    def take_added(self) -> list[int]:
        """The runs that were appended since the last call, as first, last, first, last, ..."""
        runs = self.added
        if self.added_last != NONE:
            runs.append(self.added_first)
            runs.append(self.added_last)
        self.added = []
        self.added_last = NONE
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


def merge(runs: list[int]) -> list[int]:
    """Runs (first, last, first, last, ...) in order, adjacent and overlapping ones as one."""
    starts = runs[::2]
    order = sorted(range(len(starts)), key=starts.__getitem__)
    merged: list[int] = []
    end: i64 = NONE
    for at in order:
        first: i64 = runs[2 * at]
        last: i64 = runs[2 * at + 1]
        if end != NONE and first <= end + 1:
            if last > end:
                end = last
                merged[-1] = last
        else:
            merged.append(first)
            merged.append(last)
            end = last
    return merged


__all__ = ["NONE", "QueueLog", "merge"]
