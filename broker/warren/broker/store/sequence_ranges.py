"""Ranges of the sequence numbers of messages, as flat lists: first, last, first, last, ..."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

NONE: Final = -2
"""Value in place of a sequence number for "none". It is -2, so that the number after it is not a valid one either."""


def merge_ranges(ranges: list[int]) -> list[int]:
    """Return the ranges in order, with adjacent and overlapping ones joined."""
    starts = ranges[::2]
    order = sorted(range(len(starts)), key=starts.__getitem__)
    merged: list[int] = []
    end: i64 = NONE
    for at in order:
        first: i64 = ranges[2 * at]
        last: i64 = ranges[2 * at + 1]
        if end != NONE and first <= end + 1:
            if last > end:
                end = last
                merged[-1] = last
        else:
            merged.append(first)
            merged.append(last)
            end = last
    return merged


def subtract_ranges(ranges: list[int], holes: list[int]) -> list[int]:
    """Return the parts of `ranges` that are not in `holes`. Both must be in order and must not overlap."""
    left: list[int] = []
    at: i64 = 0
    hole: i64 = 0
    while at < len(ranges):
        first: i64 = ranges[at]
        last: i64 = ranges[at + 1]
        at += 2
        while hole < len(holes) and holes[hole + 1] < first:
            hole += 2
        # A hole that reaches over the end of this range cuts the next one too.
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


__all__ = ["NONE", "merge_ranges", "subtract_ranges"]
