"""Message ids for rows that bring none: whoever publishes a row again, for whatever reason, gives it the id that it had.

A task that is tried again gets its rows in another order where there was a shuffle, so that a row's number says nothing. An
id is made of what the message is, of which write, batch and partition it belongs to, and of how many equal rows of that
partition came before: equal rows stay as many messages as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from warren.pipeline.sink.digest_counter import DigestCounter

_DIGEST = 16


class MessageIdGenerator:
    """The ids of one partition of one write."""

    def __init__(self, *scope: str) -> None:
        """:param scope: what tells this partition of this write from all others, now and when it is tried again"""
        self._scope_hash = blake2b("\0".join(scope).encode(), digest_size=_DIGEST)
        self._counter = DigestCounter()

    def ids_for(self, contents: Sequence[bytes]) -> list[bytes]:
        """An id for each message, told by what it is: 32 hexadecimal digits, and a number for one like an earlier one."""
        scope_hash = self._scope_hash
        digests = []
        for content in contents:
            hashed = scope_hash.copy()
            hashed.update(content)
            digests.append(hashed.digest())
        ids = [digest.hex().encode() for digest in digests]
        shorter = np.frombuffer(b"".join(digests), np.uint64)[:: _DIGEST // 8]
        for place, before in self._counter.count(shorter).items():
            ids[place] += b"-%d" % before
        return ids
