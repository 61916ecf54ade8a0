"""Writing and syncing of stream segments, with a bounded number of open files."""

from __future__ import annotations

import os
from typing import Final

from warren.broker.store.file_system.files_protocol import DISK_FULL_ERRORS, SHORTAGE_ERRORS, Files
from warren.broker.store.log.write_statistics import WriteStatistics
from warren.broker.store.stream.stream_log import StreamWrite

_OPEN: Final = 32
"""Largest number of files that are kept open. If more streams are written to in turn, each write opens its file
again."""


class StreamSegmentWriter:
    """Writer of the segments of all streams.

    :param sync: False never to sync a file.
    :param statistics: to which writes and syncs are added; None for streams in memory, whose files are no store.
    """

    def __init__(self, files: Files, sync: bool = True, statistics: WriteStatistics | None = None) -> None:
        self._files = files
        self._sync = sync
        self._statistics = statistics if statistics is not None else WriteStatistics()
        self._created_in = ""
        """Folder of segments whose names are not synced yet."""
        self._handles: dict[str, int] = {}
        """Open files by path, the one used last at the end."""

    def write(self, write: StreamWrite, data: bytes) -> bool:
        """Write a batch's bytes to a segment of a stream, and sync the file. The name of a new file is not synced yet.

        :param data: the pieces of `write`, joined.
        :return: False if the disk has no room, or no descriptor is left to open the file; the segment is then as it was.
        :raises OSError: the disk failed in another way.
        """
        files = self._files
        handle = self._handles.pop(write.path, -1)
        if handle < 0:
            try:
                handle = files.open(write.path)
            except OSError as error:
                if error.errno in SHORTAGE_ERRORS:
                    return False
                raise
        self._keep_open(write.path, handle)
        try:
            files.write(handle, data, write.start)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            files.truncate(handle, write.start)
            return False
        self._statistics.written_bytes += len(data)
        if self._sync:
            self._statistics.timed(files.sync, handle)
        if write.start == 0:
            self._created_in = os.path.dirname(write.path)
        return True

    def sync_names(self) -> None:
        """Sync the names of the segments that were created since the last call, all at once."""
        if self._created_in and self._sync:
            self._files.sync_folder(self._created_in)
        self._created_in = ""

    def remove(self, paths: list[str]) -> None:
        """Remove segments of one folder, given by path, oldest first.

        :raises OSError: a file cannot be removed.
        """
        for path in paths:
            handle = self._handles.pop(path, -1)
            if handle >= 0:
                self._files.close(handle)
            self._files.unlink(path)
        if paths:
            self._files.sync_folder(os.path.dirname(paths[0]))

    def close(self) -> None:
        """Close all open segment files."""
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            self._files.close(handle)

    def _keep_open(self, path: str, handle: int) -> None:
        self._handles[path] = handle
        if len(self._handles) > _OPEN:
            oldest = next(iter(self._handles))
            self._files.close(self._handles.pop(oldest))


__all__ = ["StreamSegmentWriter"]
