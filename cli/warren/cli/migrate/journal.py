"""Journal of a migration: fingerprints of the messages that were read and confirmed, one pair of files for each queue.

Position n of `NUMBER.source` has the fingerprint of the message with sequence n + 1, written before the message is published
to the target. The same position of `NUMBER.target` has the fingerprint of what the target has confirmed, written before the
message is acknowledged at the source; it is zero if there is no confirm yet. Memory use does not depend on the number of
messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from warren.core.operating_system.files import BINARY, read_at, sync_file, write_at

FINGERPRINT_BYTES: Final = 16
UNCONFIRMED: Final = bytes(FINGERPRINT_BYTES)
"""Record of a message whose publish the target has not confirmed."""
TAIL_RECORDS: Final = 65_536
"""Newest records that are compared with messages which the source delivers again."""
UNKNOWN_LIMIT: Final = 10_000
"""New messages after which no message of the tail is expected any more, in a queue that does not keep the order."""
PIECE_RECORDS: Final = 65_536
"""Records that are read at once."""


class Digests(NamedTuple):
    """Counts and digests of one queue on both sides."""

    read: int
    """Messages that were read from the source."""
    confirmed: int
    """Messages that the target has confirmed."""
    source: str
    """Digest of the confirmed messages as the source delivered them, in order."""
    target: str
    """Digest of the confirmed messages as they were published to the target, in order."""


class QueueJournal:
    """Journal of one queue.

    :param folder: folder of the migration's state.
    :param number: number of the queue in it.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._source_path = folder / f"{number}.source"
        self._target_path = folder / f"{number}.target"
        self._source = os.open(self._source_path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        self._target = os.open(self._target_path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        # A kill may have left a part of a record, whose message was not published.
        self.length = os.fstat(self._source).st_size // FINGERPRINT_BYTES
        """Sequence of the last message that was read from the source."""

    def append(self, fingerprint: bytes) -> int:
        """Record a message that was read from the source, and return its sequence, which begins with 1."""
        write_at(self._source, fingerprint, self.length * FINGERPRINT_BYTES)
        self.length += 1
        return self.length

    def confirm(self, first: int, fingerprints: bytes) -> None:
        """Record that the target has confirmed consecutive messages.

        :param first: sequence of the first of them.
        :param fingerprints: their fingerprints, concatenated.
        """
        write_at(self._target, fingerprints, (first - 1) * FINGERPRINT_BYTES)

    def tail(self) -> tuple[int, bytes, bytes]:
        """Return the newest records: the sequence of the first of them, and what was read and what was confirmed."""
        start = max(0, self.length - TAIL_RECORDS)
        size, at = (self.length - start) * FINGERPRINT_BYTES, start * FINGERPRINT_BYTES
        confirmed = read_at(self._target, size, at)
        return start + 1, read_at(self._source, size, at), confirmed.ljust(size, b"\0")

    def digests(self) -> Digests:
        """Return the counts and digests of all messages, in the order of their sequences."""
        source, target, confirmed = blake2b(digest_size=32), blake2b(digest_size=32), 0
        for read, written in self._pieces():
            if UNCONFIRMED not in written:
                source.update(read)
                target.update(written)
                confirmed += len(written) // FINGERPRINT_BYTES
                continue
            for at in range(0, len(read), FINGERPRINT_BYTES):
                record = written[at : at + FINGERPRINT_BYTES]
                if record != UNCONFIRMED:
                    source.update(read[at : at + FINGERPRINT_BYTES])
                    target.update(record)
                    confirmed += 1
        return Digests(self.length, confirmed, source.hexdigest(), target.hexdigest())

    def _pieces(self) -> Iterator[tuple[bytes, bytes]]:
        for start in range(0, self.length, PIECE_RECORDS):
            size = min(PIECE_RECORDS, self.length - start) * FINGERPRINT_BYTES
            read = read_at(self._source, size, start * FINGERPRINT_BYTES)
            written = read_at(self._target, size, start * FINGERPRINT_BYTES)
            yield read, written.ljust(size, b"\0")

    def close(self) -> None:
        """Sync and close the files."""
        for descriptor in (self._source, self._target):
            sync_file(descriptor)
            os.close(descriptor)


class Recognition:
    """Recognition of messages that the source delivers again after a lost connection, by the tail of a journal.

    A source requeues what was not acknowledged, in its order, and delivers it with `redelivered`. Such messages are
    at the head of a queue without priorities: the first message that is unknown ends the recognition. In other queues
    new messages may be in front of them. A source that was killed sets `redelivered` for all its messages. Therefore,
    a message that equals several confirmed ones is new: a copy is better than a loss.

    :param keeps_order: True if requeued messages come first, and in their order.
    """

    def __init__(self, journal: QueueJournal, keeps_order: bool) -> None:
        self._first, self._read, self._confirmed = journal.tail()
        self._keeps_order = keeps_order
        self._seen: set[int] = set()
        self._expected = -1
        self._open_at = self._first_unconfirmed()
        self._missing = len(self._read) // FINGERPRINT_BYTES - self._open_at
        self._unknown = 0

    @property
    def is_needed(self) -> bool:
        """True while messages may come that were read before."""
        return bool(self._read)

    def sequence_of(self, fingerprint: bytes, redelivered: bool) -> int | None:
        """Return the sequence of a message that was read before; None if it is new.

        :param redelivered: False if the source has never delivered it: then it is new, whatever it equals.
        """
        if not self._read:
            return None
        index = self._index_of(fingerprint) if redelivered else -1
        if index >= 0 and self._is_ambiguous(index, fingerprint):
            return None
        if index < 0:
            self._unknown += 1
            if self._keeps_order or self._unknown >= UNKNOWN_LIMIT:
                self.end()
            return None
        self._seen.add(index)
        self._expected = index + 1
        sequence = self._first + index
        if index >= self._open_at:
            self._missing -= 1
        if self._expected * FINGERPRINT_BYTES >= len(self._read) and (self._keeps_order or not self._missing):
            self.end()
        return sequence

    def is_confirmed(self, sequence: int) -> bool:
        """Return True if the target has confirmed this message."""
        return self._is_confirmed(sequence - self._first)

    def end(self) -> None:
        """Treat all further messages as new."""
        self._read = b""

    def _index_of(self, fingerprint: bytes) -> int:
        at = self._expected * FINGERPRINT_BYTES
        if self._expected >= 0 and self._read[at : at + FINGERPRINT_BYTES] == fingerprint:
            return self._expected
        if self._keeps_order and self._expected >= 0:
            # Messages in between have expired, or were removed.
            return self._find(fingerprint, self._expected)
        # Of equal messages the newest that may be at the head: a copy is better than a loss.
        found = self._find_last(fingerprint, self._open_at)
        return found if found >= 0 else self._find(fingerprint, self._open_at + 1)

    def _is_ambiguous(self, index: int, fingerprint: bytes) -> bool:
        """Return True if a message may be another one than the confirmed one that it equals.

        It is not if the message before it was recognised: acknowledgements are in order.
        """
        if not self._is_confirmed(index) or (self._keeps_order and self._expected >= 0):
            return False
        first = self._find(fingerprint, 0)
        return first >= 0 and self._find(fingerprint, first + 1) >= 0

    def _find(self, fingerprint: bytes, start: int) -> int:
        at = start * FINGERPRINT_BYTES
        while (at := self._read.find(fingerprint, at)) >= 0:
            if at % FINGERPRINT_BYTES == 0 and at // FINGERPRINT_BYTES not in self._seen:
                return at // FINGERPRINT_BYTES
            at += 1
        return -1

    def _find_last(self, fingerprint: bytes, last: int) -> int:
        end = (last + 1) * FINGERPRINT_BYTES
        while (at := self._read.rfind(fingerprint, 0, end)) >= 0:
            if at % FINGERPRINT_BYTES == 0 and at // FINGERPRINT_BYTES not in self._seen:
                return at // FINGERPRINT_BYTES
            end = at + FINGERPRINT_BYTES - 1
        return -1

    def _is_confirmed(self, index: int) -> bool:
        at = index * FINGERPRINT_BYTES
        return self._confirmed[at : at + FINGERPRINT_BYTES] != UNCONFIRMED

    def _first_unconfirmed(self) -> int:
        """Return the index of the first of the unconfirmed records at the end, or the one after the last record."""
        count = len(self._read) // FINGERPRINT_BYTES
        index = count
        while index > 0 and not self._is_confirmed(index - 1):
            index -= 1
        return index
