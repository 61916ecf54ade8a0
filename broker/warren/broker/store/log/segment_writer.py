"""Writing and syncing of the segment files. Room is preallocated, so that most syncs need not write a new file size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warren.broker.store.file_system.files_protocol import DISK_FULL_ERRORS, SHORTAGE_ERRORS, Files
from warren.broker.store.log.segment_reader import segment_path
from warren.broker.store.log.write_statistics import WriteStatistics

PREALLOCATION: Final = 256 * 1024
"""Default of the bytes that are preallocated at a time."""
SMALL_BATCH: Final = 32 * 1024
"""Largest batch in bytes that is written with preallocated room behind it.

For a larger batch, writing the zeros first and the records later costs more than a sync of the file's new size.
"""


class SegmentWriter:
    """Writer of the segments of a log, one file after the other.

    When a file has grown, a sync writes its size and its block map as well as the data, and takes one and a half times
    to twice as long as when both are unchanged. So a small durable batch that reaches beyond the end of the file
    appends zeros, and the next batches overwrite them. `finish` cuts the rest of the zeros off. Only the last segment
    of a process that was killed ends in zeros, and recovery looks for a torn tail there anyway.

    :param preallocate: bytes of zeros that are appended at a time; 0 turns it off.
    :param sync: False never to sync a file; no zeros are appended then.
    :param statistics: to which writes and syncs are added.
    """

    def __init__(
        self, folder: str, files: Files, preallocate: int, sync: bool, statistics: WriteStatistics
    ) -> None:
        self.number = 0
        """Number of the segment that is open, 0 if none is."""
        self._folder = folder
        self._files = files
        self._preallocate = preallocate
        self._sync = sync
        self._statistics = statistics
        self._handle = -1
        self._end = 0
        """Offset in the file at which the written records end."""
        self._length = 0
        """Length of the file in bytes, zeros included."""
        self._has_unsynced = False

    def write(self, number: int, start: int, parts: Iterable[bytes], durable: bool) -> bool:
        """Write data at offset `start` of segment `number`, and sync the file if the data has to be durable.

        A new segment is begun only after the one before is finished, so that only the last one can be torn.

        :param parts: the data, one part after the other.
        :return: False if the disk has no room, or no descriptor is left to open the file; the file is then as it was.
        :raises OSError: the disk failed in another way; the file's content on disk is unknown.
        """
        created = number != self.number
        if created:
            self.finish()
            if not self._open(number):
                return False
        end = start
        for data in parts:
            if not self._write(end, data, durable):
                if end > start:
                    self._cut(start)
                if created:
                    self.close()
                return False
            end += len(data)
        self._end = end
        self._has_unsynced = True
        if durable:
            self._flush()
        if created and self._sync:
            self._files.sync_folder(self._folder)
        return True

    def finish(self) -> None:
        """Cut the preallocated zeros off the file of the current segment, sync and close it.

        :raises OSError: the disk failed.
        """
        if self._length > self._end:
            self._files.truncate(self._handle, self._end)
            self._length = self._end
            self._has_unsynced = True
        if self._has_unsynced:
            self._flush()
        self.close()

    def close(self) -> None:
        """Close the file of the current segment, with its preallocated zeros."""
        if self._handle >= 0:
            handle, self._handle, self.number = self._handle, -1, 0
            self._end = self._length = 0
            self._has_unsynced = False
            self._files.close(handle)

    def _open(self, number: int) -> bool:
        try:
            self._handle = self._files.open(segment_path(self._folder, number))
        except OSError as error:
            if error.errno in SHORTAGE_ERRORS:
                return False
            raise
        self.number = number
        return True

    def _write(self, start: int, data: bytes, durable: bool) -> bool:
        end = start + len(data)
        if end > self._length:
            room = self._preallocate if self._sync and durable and len(data) <= SMALL_BATCH else 0
            if room and self._attempt(start, data + bytes(room)):
                return True
        return self._attempt(start, data)

    def _attempt(self, start: int, data: bytes) -> bool:
        try:
            self._files.write(self._handle, data, start)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            self._cut(start)
            return False
        self._statistics.written_bytes += len(data)
        self._length = max(self._length, start + len(data))
        return True

    def _cut(self, end: int) -> None:
        """Cut the file off at an offset, after a write that found no room."""
        self._files.truncate(self._handle, end)
        self._length = end

    def _flush(self) -> None:
        if self._sync:
            self._statistics.timed(self._files.sync, self._handle)
        self._has_unsynced = False


__all__ = ["PREALLOCATION", "SegmentWriter"]
