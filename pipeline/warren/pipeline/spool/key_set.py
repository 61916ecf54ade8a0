"""Immutable set of keys in 16 bytes each, queried with many keys at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from warren.pipeline.spool.file_format import KEY_BYTES

_Halves = npt.NDArray[np.uint64]


class KeySet:
    """Keys of a sealed segment, which no longer change.

    :param joined: concatenated keys
    """

    def __init__(self, joined: bytes | bytearray) -> None:
        halves = as_halves(joined)
        order = np.argsort(halves[:, 0], kind="stable")
        self._first: _Halves = halves[order, 0]
        self._second: _Halves = halves[order, 1]

    def __len__(self) -> int:
        return len(self._first)

    def found(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of the given keys that are in the set."""
        if not len(self) or not keys:
            return set()
        asked = as_halves(b"".join(keys))
        places = np.searchsorted(self._first, asked[:, 0])
        same = np.append(self._first, ~self._first[-1])[places] == asked[:, 0]
        return {
            keys[number]
            for number in np.flatnonzero(same).tolist()
            if self._at(places[number], asked[number])
        }

    def _at(self, place: int, asked: _Halves) -> bool:
        """Return whether the key is among those with the same first half, which begin at an index."""
        while place < len(self._first) and self._first[place] == asked[0]:
            if self._second[place] == asked[1]:
                return True
            place += 1
        return False


def as_halves(joined: bytes | bytearray) -> _Halves:
    """Return each key as two 64-bit numbers."""
    return np.frombuffer(bytes(joined), np.uint64).reshape(-1, KEY_BYTES // 8)
