"""Journal of the definitions: a second copy, from which they are restored when the database is damaged.

It begins with a snapshot of all rows. A record follows for each transaction. When the file has grown to several times
the snapshot, a new snapshot replaces it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.definitions.journal_format import (
    JournalContent,
    decode_journal,
    encode_header,
    encode_transaction,
)
from warren.broker.store.definitions.row_statements import Statement
from warren.broker.store.definitions.schema_migrations import VERSION
from warren.broker.store.file_system.file_replacement import write_partial
from warren.broker.store.file_system.files_protocol import SHORTAGE_ERRORS
from warren.broker.store.file_system.small_file import read_file

GROWTH: Final = 4
"""Multiple of its snapshot's size from which on a new snapshot replaces the journal."""
MIN_COMPACTED_SIZE: Final = 1 << 20
"""Bytes up to which the journal is never replaced."""


class DefinitionsJournal:
    """The journal of one data folder. One thread at a time uses it.

    Records are appended without a sync: SQLite protects each transaction against a power cut, the journal protects it
    against damage of SQLite's files. `sync` is called when the broker is idle and when it stops.
    """

    def __init__(self, folder: DataFolder) -> None:
        self.path = str(folder.path / "definitions.journal")
        self.size = 0
        """Bytes up to the end of the last record that counts."""
        self._identity = folder.identity
        self._files = folder.files
        self._handle = -1
        self._appended = 0
        """Size of the record that `keep` or `discard` is about to decide on."""
        self._is_ragged = False
        """True if bytes of a discarded record may lie behind the last record."""
        self._compact_at = MIN_COMPACTED_SIZE
        self._is_synced = True

    def read(self) -> JournalContent | str | None:
        """Return the content of the journal, the reason why it cannot be read, or None if it does not exist.

        :raises OSError: the operating system refuses to read it, other than because of a bad sector.
        """
        data = read_file(self._files, self.path)
        return decode_journal(data, self._identity) if isinstance(data, bytes) else data

    def resume(self, content: JournalContent) -> None:
        """Append behind the intact records of `content`, and cut off what follows them.

        :raises OSError: the disk failed.
        """
        self._handle = self._files.open(self.path)
        self.size = content.end
        self._set_threshold(content.snapshot_size)
        if content.damage:
            self._files.truncate(self._handle, content.end)
        # What was read may have been in the page cache only.
        self._files.sync(self._handle)

    def replace(self, generation: int, statements: Iterable[Statement]) -> None:
        """Replace the journal by a new one that holds only a snapshot, and sync it.

        :param generation: generation of the definitions in the snapshot.
        :param statements: statements that insert all rows into an empty database.
        :raises OSError: the disk failed; the journal is as it was.
        """
        data = encode_header(self._identity, VERSION) + encode_transaction(
            self._identity, generation, statements
        )
        partial = write_partial(self._files, self.path, data)
        # Windows replaces no file that is open.
        was_open = self._handle >= 0
        self.close()
        try:
            self._files.rename(partial, self.path)
        except OSError:
            if was_open:
                self._handle = self._files.open(self.path)
            raise
        self._handle = self._files.open(self.path)
        self.size = len(data)
        self._is_ragged = False
        self._is_synced = True
        self._set_threshold(len(data))
        self._files.sync_folder(os.path.dirname(self.path))

    def append(self, generation: int, statements: Iterable[Statement]) -> None:
        """Append the record of a transaction. Call `keep` when it is committed, or else `discard`.

        :raises OSError: the disk failed or is full. Call `discard` then, too.
        """
        record = encode_transaction(self._identity, generation, statements)
        if self._is_ragged:
            self._files.truncate(self._handle, self.size)
            self._is_ragged = False
        self._appended = len(record)
        self._is_synced = False
        self._files.write(self._handle, record, self.size)

    def keep(self) -> None:
        """Count the appended record: its transaction is committed."""
        self.size += self._appended

    def discard(self) -> None:
        """Remove the appended record: its transaction was rolled back."""
        self._is_ragged = True
        # Otherwise the next record is written over it.
        with contextlib.suppress(OSError):
            self._files.truncate(self._handle, self.size)
            self._is_ragged = False

    @property
    def is_large(self) -> bool:
        """True if a new snapshot should replace the journal."""
        return self.size > self._compact_at

    def postpone_compaction(self) -> None:
        """Let the journal grow further, because there is no room for a new snapshot."""
        self._compact_at = 2 * self.size

    def sync(self) -> None:
        """Sync the records that were appended.

        :raises OSError: the disk failed.
        """
        if not self._is_synced:
            self._files.sync(self._handle)
            self._is_synced = True

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            self._files.close(self._handle)
            self._handle = -1

    def _set_threshold(self, snapshot_size: int) -> None:
        self._compact_at = max(GROWTH * snapshot_size, MIN_COMPACTED_SIZE)


def is_shortage(error: BaseException) -> bool:
    """Return whether an operating system error means that there is no room or no descriptor at present."""
    return isinstance(error, OSError) and error.errno in SHORTAGE_ERRORS


__all__ = ["DefinitionsJournal", "is_shortage"]
