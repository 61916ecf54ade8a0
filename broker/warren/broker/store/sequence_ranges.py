"""Runs of sequences, as flat lists: first, last, first, last, ..."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

NONE: Final = -2
"""No sequence: the one that follows it is none either."""


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


def without(runs: list[int], holes: list[int]) -> list[int]:
    """Those of `runs` that are not in `holes`; both in order and apart."""
    left: list[int] = []
    at: i64 = 0
    hole: i64 = 0
    while at < len(runs):
        first: i64 = runs[at]
        last: i64 = runs[at + 1]
        at += 2
        while hole < len(holes) and holes[hole + 1] < first:
            hole += 2
        # A hole that reaches over the end of this run is looked at again for the next one.
        here: i64 = hole
        while here < len(holes) and holes[here] <= last:
            if holes[here] > first:
                left.append(first)
                left.append(holes[here] - 1)
            first = holes[here + 1] + 1
            here += 2
        if first <= last:
            left.append(first)
            left.append(last)
    return left


__all__ = ["NONE", "merge", "without"]
