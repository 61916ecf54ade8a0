"""Immutable set of deduplication keys that needs 16 bytes for each, and is queried with many keys at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from warren.pipeline.spool.file_format import KEY_BYTES

_Halves = npt.NDArray[np.uint64]


class KeySet:
    """Immutable set of the deduplication keys of a spool's segment file to which no more messages are appended.

    :param joined: concatenated keys of 16 bytes
    """

    def __init__(self, joined: bytes | bytearray) -> None:
        halves = as_halves(joined)
        order = np.argsort(halves[:, 0], kind="stable")
        self._first: _Halves = halves[order, 0]
        self._second: _Halves = halves[order, 1]

    def __len__(self) -> int:
        return len(self._first)

    def found(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of the given keys that the set contains."""
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
        """Return whether the set contains a key of 16 bytes.

        :param place: index, in the sorted keys, of the first one that begins with the same eight bytes
        :param asked: the key, as two 64-bit numbers
        """
        while place < len(self._first) and self._first[place] == asked[0]:
            if self._second[place] == asked[1]:
                return True
            place += 1
        return False


def as_halves(joined: bytes | bytearray) -> _Halves:
    """Convert concatenated keys of 16 bytes to an array with two 64-bit numbers for each key."""
    return np.frombuffer(bytes(joined), np.uint64).reshape(-1, KEY_BYTES // 8)
