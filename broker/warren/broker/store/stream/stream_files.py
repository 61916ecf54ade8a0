"""Writing to streams' segments, in the worker thread: which files are open, and what a full disk leaves."""

from __future__ import annotations

import os
from typing import Final

from warren.broker.store.files import NO_ROOM, Files
from warren.broker.store.stream.stream_log import StreamWrite

_OPEN: Final = 32
"""Files that are kept open; many streams that are written to in turn cost an open each time."""


class StreamFiles:
    """The segments that are being written to; with `sync` off they are written and never synced."""

    def __init__(self, files: Files, sync: bool = True) -> None:
        self._files = files
        self._sync = sync
        self._handles: dict[str, int] = {}
        """The one that was used last comes last."""

    def write(self, write: StreamWrite, data: bytes) -> bool:
        """Write and sync; False if there was no room, and the segment is as it was.

        :raises OSError: anything else went wrong.
        """
        files = self._files
        handle = self._handles.pop(write.path, -1)
        if handle < 0:
            try:
                handle = files.open(write.path)
            except OSError as error:
                if error.errno in NO_ROOM:
                    return False
                raise
        self._keep(write.path, handle)
        try:
            files.write(handle, data, write.start)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            files.truncate(handle, write.start)
            return False
        if self._sync:
            files.sync(handle)
        if self._sync and write.start == 0:
            files.sync_folder(os.path.dirname(write.path))
        return True

    def remove(self, paths: list[str]) -> None:
        """Remove segments, oldest first.

        :raises OSError: one cannot be removed.
        """
        for path in paths:
            handle = self._handles.pop(path, -1)
            if handle >= 0:
                self._files.close(handle)
            self._files.unlink(path)
        if paths:
            self._files.sync_folder(os.path.dirname(paths[0]))

    def close(self) -> None:
        handles, self._handles = self._handles, {}
        for handle in handles.values():
            self._files.close(handle)

    def _keep(self, path: str, handle: int) -> None:
        self._handles[path] = handle
        if len(self._handles) > _OPEN:
            oldest = next(iter(self._handles))
            self._files.close(self._handles.pop(oldest))


__all__ = ["StreamFiles"]
