"""Reading of a small file as a whole, if it exists and the disk can read it."""

from __future__ import annotations

import errno

from warren.broker.store.errors import reason
from warren.broker.store.file_system.files_protocol import Files


def read_file(files: Files, path: str, most: int | None = None) -> bytes | str | None:
    """Return the content of a file; a text with the reason if it has a bad sector; None if it does not exist.

    :param most: bytes from the beginning that are read at most; None reads all.
    :raises OSError: the operating system refuses to read it for another reason.
    """
    try:
        return files.read(path, 0, files.size(path) if most is None else most)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return reason(error)


__all__ = ["read_file"]
