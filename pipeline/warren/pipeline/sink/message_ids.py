"""Message ids for rows without one; a row that is published again gets the same id.

A retried task receives its rows in another order if there was a shuffle, so a row's number cannot identify it. An id is
derived from the message's content, from the write, batch and partition that it belongs to, and from the number of equal
rows before it in the partition: equal rows remain separate messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from warren.pipeline.sink.digest_counter import DigestCounter

_DIGEST = 16


class MessageIdGenerator:
    """Generator of the message ids of one partition in one write."""

    def __init__(self, *scope: str) -> None:
        """Create the generator for one partition.

        :param scope: texts that identify the partition and the write, the same when the task is retried
        """
        self._scope_hash = blake2b("\0".join(scope).encode(), digest_size=_DIGEST)
        self._counter = DigestCounter()

    def ids_for(self, contents: Sequence[bytes]) -> list[bytes]:
        """Return an id for each message: 32 hexadecimal digits, and a number after them if the content occurred before.

        :param contents: bytes of each message that its id is derived from
        """
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
