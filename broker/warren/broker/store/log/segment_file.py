"""The file of the segment that the log writes to, with room made ahead: a sync after overwriting has only data to write."""

from __future__ import annotations

from typing import Final

from warren.broker.store.files import NO_ROOM, Files
from warren.broker.store.log.segment_reader import segment_path

AHEAD: Final = 256 * 1024
"""Default of how many bytes are made ahead at a time."""
SMALL: Final = 32 * 1024
"""Larger batches are appended: to write their room twice would cost more than the file's size does."""


class SegmentFile:
    """Writes what belongs to one segment after the other.

    A sync after a file has grown writes the file's size, and where its blocks are, as well as the data: one and a half times
    to twice the time of one that finds both as they were. So a small batch that has to be durable and reaches beyond
    the end of the file takes zeros along, and the next ones overwrite those. `finish` cuts the rest off again: only the last
    segment of a process that was killed ends in zeros, where recovery looks for a torn tail.

    :param ahead: how many zeros, in bytes; 0: every write makes the file longer.
    :param sync: whether anything is synced at all.
    """

    def __init__(self, folder: str, files: Files, ahead: int, sync: bool) -> None:
        self.number = 0
        """The segment that is open, 0 if none is."""
        self._folder = folder
        self._files = files
        self._ahead = ahead
        self._sync = sync
        self._handle = -1
        self._end = 0
        """Behind what was written."""
        self._length = 0
        """Of the file, zeros included."""
        self._unsynced = False

    def write(self, number: int, start: int, data: bytes, durable: bool) -> bool:
        """Write at `start` of a segment, and sync if it has to be durable; whether there was room.

        A segment that has a successor is whole: the one before is finished first. Without room it is as if nothing had been
        written.

        :raises OSError: the disk failed in another way; what it holds of the file is unknown.
        """
        created = number != self.number
        if created:
            self.finish()
            if not self._open(number):
                return False
        if not self._put(start, data, durable):
            if created:
                self.close()
            return False
        self._end = start + len(data)
        self._unsynced = True
        if durable:
            self._flush()
        if created and self._sync:
            self._files.sync_folder(self._folder)
        return True

    def finish(self) -> None:
        """Cut off the room that was made ahead, have the rest on the disk, and close the file.

        :raises OSError: the disk failed.
        """
        if self._length > self._end:
            self._files.truncate(self._handle, self._end)
            self._length = self._end
            self._unsynced = True
        if self._unsynced:
            self._flush()
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        if self._handle >= 0:
            handle, self._handle, self.number = self._handle, -1, 0
            self._end = self._length = 0
            self._unsynced = False
            self._files.close(handle)

    def _open(self, number: int) -> bool:
        try:
            self._handle = self._files.open(segment_path(self._folder, number))
        except OSError as error:
            if error.errno in NO_ROOM:
                return False
            raise
        self.number = number
        return True

    def _put(self, start: int, data: bytes, durable: bool) -> bool:
        end = start + len(data)
        if end > self._length:
            ahead = self._ahead if self._sync and durable and len(data) <= SMALL else 0
            if ahead and self._attempt(start, data + bytes(ahead)):
                return True
        return self._attempt(start, data)

    def _attempt(self, start: int, data: bytes) -> bool:
        try:
            self._files.write(self._handle, data, start)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._files.truncate(self._handle, start)
            self._length = start
            return False
        self._length = max(self._length, start + len(data))
        return True

    def _flush(self) -> None:
        if self._sync:
            self._files.sync(self._handle)
        self._unsynced = False


__all__ = ["AHEAD", "SegmentFile"]
