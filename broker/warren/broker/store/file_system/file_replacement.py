"""Replacement of a file as a whole: after a crash it has its old content or its new one, never a part."""

from __future__ import annotations

import os

from warren.broker.store.file_system.files_protocol import Files


def replace_file(files: Files, path: str, data: bytes) -> None:
    """Write a file under a temporary name (`path` and `.new`), sync it, rename it to `path`, and sync the folder.

    :raises OSError: the disk failed. The file at `path` has its old content or its new one.
    """
    partial = f"{path}.new"
    files.unlink(partial)
    handle = files.open(partial)
    try:
        files.write(handle, data, 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(partial, path)
    files.sync_folder(os.path.dirname(path))


__all__ = ["replace_file"]
