"""How often each of many digests has come, in eight bytes for each that came once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]


class DigestCounter:
    """Counts digests of 64 bits. Those seen are sorted runs, of which the shorter are merged as they come."""

    def __init__(self) -> None:
        self._runs: list[Digests] = []
        self._repeats: dict[int, int] = {}
        """Those that came more than once: how often so far."""

    def count(self, digests: Digests) -> dict[int, int]:
        """Take in some more.

        :return: for those that came before, by their place in `digests`: how often that was
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
        # Equal ones stand beside each other, in the order in which they came.
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
