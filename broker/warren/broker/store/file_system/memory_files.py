"""`Files` in memory, for the streams of a broker without a data folder."""

from __future__ import annotations

import errno
import os


class MemoryFiles:
    """`Files` kept in memory, for the streams of a broker without a data folder; `sync` does nothing."""

    def __init__(self) -> None:
        self._contents: dict[str, bytearray] = {}
        self._handles: dict[int, bytearray] = {}
        self._next = 0

    def names(self, folder: str) -> list[str]:
        return [os.path.basename(path) for path in self._contents if os.path.dirname(path) == folder]

    def size(self, path: str) -> int:
        return len(self._content(path))

    def read(self, path: str, offset: int, size: int) -> bytes:
        return bytes(self._content(path)[offset : offset + size])

    def open(self, path: str) -> int:
        self._next += 1
        self._handles[self._next] = self._contents.setdefault(path, bytearray())
        return self._next

    def write(self, handle: int, data: bytes, offset: int) -> None:
        content = self._handles[handle]
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def truncate(self, handle: int, size: int) -> None:
        del self._handles[handle][size:]

    def sync(self, handle: int) -> None:
        return

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def unlink(self, path: str) -> None:
        self._contents.pop(path, None)

    def rename(self, path: str, target: str) -> None:
        self._contents[target] = self._content(path)
        del self._contents[path]

    def sync_folder(self, folder: str) -> None:
        return

    def _content(self, path: str) -> bytearray:
        content = self._contents.get(path)
        if content is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return content


__all__ = ["MemoryFiles"]
