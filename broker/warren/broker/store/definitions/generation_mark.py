"""Mark in the log's folder of the generation that the definitions have reached: older definitions do not fit the log."""

from __future__ import annotations

import logging
import re
import zlib
from typing import Final

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.file_system.file_replacement import replace_file

logger: logging.Logger = logging.getLogger(__name__)

_CONTENT: Final = re.compile(rb"(generation (\d+)\n)checksum ([0-9a-f]{8})\n")

_FIRST_VERSION: Final = 3
"""Format version of the data folder from which on it has a mark."""


def read_generation_mark(folder: DataFolder) -> int:
    """Return the generation that the definitions of a folder have at least.

    It is 0 if the mark is missing or damaged, which is logged. The start writes it again.

    :raises OSError: the disk cannot be read.
    """
    try:
        data = folder.files.read(_path(folder), 0, 128)
    except FileNotFoundError:
        if folder.stored_version >= _FIRST_VERSION:
            logger.warning("event=definitions.mark_lost file=%s reason=%r", _path(folder), "it is missing")
        return 0
    match = _CONTENT.fullmatch(data)
    if match is None or zlib.crc32(match[1], folder.identity & 0xFFFFFFFF) != int(match[3], 16):
        logger.warning("event=definitions.mark_lost file=%s reason=%r", _path(folder), "it is damaged")
        return 0
    return int(match[2])


def write_generation_mark(folder: DataFolder, generation: int) -> None:
    """Replace the mark, and sync it. The definitions of this generation must be on disk.

    :raises OSError: the disk failed or is full.
    """
    line = b"generation %d\n" % generation
    checksum = zlib.crc32(line, folder.identity & 0xFFFFFFFF)
    replace_file(folder.files, _path(folder), line + b"checksum %08x\n" % checksum)


def _path(folder: DataFolder) -> str:
    return f"{folder.log}/generation"


__all__ = ["read_generation_mark", "write_generation_mark"]
