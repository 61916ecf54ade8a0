"""`FolderBlobStore`: large bodies in a folder, local or mounted by several machines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from warren.core.errors import UsageError
from warren.core.operating_system.files import sync_folder
from warren.patterns.claim_check.blob_store import BlobStoreUnavailable

Result = TypeVar("Result")

UNFINISHED: Final = ".part"
DELETING: Final = ".old"
PREFIX: Final = 2


class FolderBlobStore:
    """Blob store with one file per body, in subfolders named by the first two digits of the body's name.

    A file is written under a temporary name, synced and renamed, and its folder is synced. A file under its final name
    is therefore complete, also after a power failure.

    :param path: the folder; it is created if it is missing, its parent is not.
    :raises UsageError: `path` is no folder, or cannot be created.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        try:
            self._path.mkdir(exist_ok=True)
        except OSError as error:
            raise UsageError(f"the folder {path} for large bodies cannot be created: {error}") from None

    async def put(self, name: str, body: bytes) -> None:
        await self._run_in_thread(self._put, name, body)

    async def get(self, name: str) -> bytes | None:
        return await self._run_in_thread(self._get, name)

    async def clean(self, before: datetime) -> int:
        return await self._run_in_thread(self._clean, before.timestamp())

    async def close(self) -> None:
        """Do nothing: every file is closed at the end of the call that opened it."""

    def _put(self, name: str, body: bytes) -> None:
        folder = self._path / name[:PREFIX]
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(self._path)
        unfinished = folder / f"{name}.{secrets.token_hex(4)}{UNFINISHED}"
        try:
            with unfinished.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(folder / name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        sync_folder(folder)

    def _get(self, name: str) -> bytes | None:
        folder = self._path / name[:PREFIX]
        with contextlib.suppress(FileNotFoundError):
            return (folder / name).read_bytes()
        # It may just be deleted by `clean`, and may have been put again since.
        for path in (*folder.glob(f"{name}.*{DELETING}"), folder / name):
            with contextlib.suppress(FileNotFoundError):
                return path.read_bytes()
        return None

    def _clean(self, before: float) -> int:
        cleaned = 0
        for path in self._files():
            # Another process may clean at the same time.
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before and self._delete_if_old(path, before):
                    cleaned += 1
        return cleaned

    def _delete_if_old(self, path: Path, before: float) -> bool:
        """Delete a file that was last put before the time `before`, and return whether it was deleted.

        The file is first renamed, so that a concurrent put of the same body is not deleted.
        """
        deleting = path.rename(path.with_name(f"{path.name}.{secrets.token_hex(4)}{DELETING}"))
        if deleting.stat().st_mtime >= before:
            deleting.rename(path)
            return False
        deleting.unlink()
        return True

    def _files(self) -> Iterator[Path]:
        for folder in self._path.iterdir():
            if folder.is_dir() and len(folder.name) == PREFIX:
                yield from folder.iterdir()

    async def _run_in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        try:
            return await asyncio.to_thread(work, *arguments)
        except OSError as error:
            raise BlobStoreUnavailable(f"the blob store {self._path} failed: {error}") from error

    def __repr__(self) -> str:
        return f"FolderBlobStore({str(self._path)!r})"


__all__ = ["FolderBlobStore"]
