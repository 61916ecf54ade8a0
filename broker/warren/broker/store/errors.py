"""`StoreError`, the one exception of the store, and the texts of disk errors."""

from __future__ import annotations

import errno
from typing import Final

from warren.core.errors import ExitStatus

_FOLDER_ERRORS: Final = frozenset(
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
"""Error numbers that mean a wrong or unusable data folder; all others are failures of the disk."""


class StoreError(Exception):
    """The data folder cannot be used.

    Its text is one line for the operator: what failed and what to do.

    :param status: exit status of the command: `ExitStatus.USAGE` if the choice of the folder is the cause (in use, of
        an unknown version, not readable), `ExitStatus.IO` if the disk failed.
    """

    def __init__(self, text: str, status: ExitStatus = ExitStatus.USAGE) -> None:
        super().__init__(text)
        self.status = status


def disk_error(doing: str, error: OSError) -> StoreError:
    """Return the error for a failed file call.

    :param doing: what failed, such as `read the log in /data/log`; the error text is "cannot", this and the reason."""
    status = ExitStatus.USAGE if error.errno in _FOLDER_ERRORS else ExitStatus.IO
    return StoreError(f"cannot {doing}: {reason(error)}", status)


def reason(error: OSError) -> str:
    """Return the text of an operating system error, without its number and file names."""
    return error.strerror or str(error) or type(error).__name__


__all__ = ["StoreError", "disk_error", "reason"]
