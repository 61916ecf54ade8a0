"""The one exception of the store: a line that an operator reads, and the status that a command ends with."""

from __future__ import annotations

from warren.command import Exit


class StoreError(Exception):
    """The data folder cannot be used.

    Its text is one line: what is wrong and what to do. `status` is `Exit.USAGE` when the folder that was
    named is at fault (in use, of an unknown version, not readable), `Exit.IO` when the disk is.
    """

    def __init__(self, text: str, status: Exit = Exit.USAGE) -> None:
        super().__init__(text)
        self.status = status


def disk_error(doing: str, error: OSError) -> StoreError:
    """The error of a file call that failed, named by what was being done."""
    return StoreError(f"cannot {doing}: {reason(error)}", Exit.IO)


def reason(error: OSError) -> str:
    """What an operating system error says, without its number and file names."""
    return error.strerror or str(error) or type(error).__name__


__all__ = ["StoreError", "disk_error", "reason"]
