"""Mark in the log's folder of the generation that the definitions have reached: older definitions do not fit the log."""

from __future__ import annotations

import re
import zlib
from typing import Final

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.file_system.file_replacement import replace_file

_CONTENT: Final = re.compile(rb"(generation (\d+)\n)checksum ([0-9a-f]{8})\n")


def read_generation_mark(folder: DataFolder) -> int:
    """Return the generation that the definitions of a folder have at least; 0 if the mark is missing or damaged.

    :raises OSError: the disk cannot be read.
    """
    try:
        data = folder.files.read(_path(folder), 0, 128)
    except FileNotFoundError:
        return 0
    match = _CONTENT.fullmatch(data)
    if match is None or zlib.crc32(match[1], folder.identity & 0xFFFFFFFF) != int(match[3], 16):
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
