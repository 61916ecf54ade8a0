"""Replacement of a file as a whole: after a crash it has its old content or its new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Callable

from warren.broker.store.file_system.files_protocol import Files


def replace_file(files: Files, path: str, data: bytes, close_old: Callable[[], None] = lambda: None) -> None:
    """Write a file under a temporary name, sync it, rename it to `path`, and sync the folder.

    :param close_old: function that closes the file that is replaced, called when the new one is written: Windows replaces
        no file that is open.
    :raises OSError: the disk failed. The file at `path` has its old content or its new one.
    """
    partial = write_partial(files, path, data)
    close_old()
    files.rename(partial, path)
    files.sync_folder(os.path.dirname(path))


def write_partial(files: Files, path: str, data: bytes) -> str:
    """Write a file under a temporary name (`path` and `.new`), sync it, and return that name.

    :raises OSError: the disk failed. The file at `path` is as it was.
    """
    partial = f"{path}.new"
    files.unlink(partial)
    handle = files.open(partial)
    try:
        files.write(handle, data, 0)
        files.sync(handle)
    finally:
        files.close(handle)
    return partial


__all__ = ["replace_file", "write_partial"]
