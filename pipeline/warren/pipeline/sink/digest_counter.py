"""Counting of repeated digests (64-bit hashes), with eight bytes of memory for each digest that occurred once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]


class DigestCounter:
    """Counter that tells how often each digest (64-bit hash) has occurred before. Equal rows of a write thus get
    different message ids.

    The digests seen so far are kept in sorted arrays, and small arrays are merged as new ones are added.
    """

    def __init__(self) -> None:
        self._runs: list[Digests] = []
        self._repeats: dict[int, int] = {}
        """Number of further occurrences of each digest that occurred more than once."""

    def count(self, digests: Digests) -> dict[int, int]:
        """Add digests, and return how often those that are not new occurred before.

        :return: for each index in `digests` whose digest occurred before, in this call or an earlier one: the number of
            earlier occurrences
        """
        if not len(digests):
            return {}
        order = np.argsort(digests, kind="stable")
        ordered = digests[order]
        seen = np.zeros(len(ordered), np.bool_)
        seen[1:] = ordered[1:] == ordered[:-1]
        for run in self._runs:
            places = np.searchsorted(run, ordered)
            places[places == len(run)] = 0
            seen |= run[places] == ordered
        self._add(ordered[~seen])
        repeated: dict[int, int] = {}
        # Equal digests are adjacent, in their original order.
        for place in order[seen].tolist():
            digest = int(digests[place])
            before = self._repeats.get(digest, 0) + 1
            repeated[place] = self._repeats[digest] = before
        return repeated

    def _add(self, run: Digests) -> None:
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = np.sort(np.concatenate((self._runs.pop(), run)), kind="stable")
        if len(run):
            self._runs.append(run)
