"""The one exception of the store: a line that an operator reads, and the status that a command ends with."""

from __future__ import annotations

import errno
from typing import Final

from warren.core.errors import ExitStatus

_FOLDER: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
    }
)
"""Errors of whoever named the folder; all others are the disk's."""


class StoreError(Exception):
    """The data folder cannot be used.

    Its text is one line: what is wrong and what to do. `status` is `ExitStatus.USAGE` when the folder that was
    named is at fault (in use, of an unknown version, not readable), `ExitStatus.IO` when the disk is.
    """

    def __init__(self, text: str, status: ExitStatus = ExitStatus.USAGE) -> None:
        super().__init__(text)
        self.status = status


def disk_error(doing: str, error: OSError) -> StoreError:
    """The error of a file call that failed, named by what was being done."""
    status = ExitStatus.USAGE if error.errno in _FOLDER else ExitStatus.IO
    return StoreError(f"cannot {doing}: {reason(error)}", status)


def reason(error: OSError) -> str:
    """What an operating system error says, without its number and file names."""
    return error.strerror or str(error) or type(error).__name__


__all__ = ["StoreError", "disk_error", "reason"]
