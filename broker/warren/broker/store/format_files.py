"""The file `format` of a data folder and its copy `format.copy`: format version and identity, with a checksum."""

from __future__ import annotations

import logging
import re
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from warren.broker.store.errors import StoreError
from warren.broker.store.file_system.file_replacement import replace_file
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.file_system.small_file import read_file

VERSION: Final = 3
"""Format version that this broker writes. It reads versions 1 and 2, too.

Version 1 has no log records of the type BUNDLE. Versions 1 and 2 have no checksum in `format`, no `format.copy` and no
journal of the definitions.
"""
FORMAT: Final = "format"
COPY: Final = "format.copy"
_TITLE: Final = "warren data folder"
_INCOMPLETE: Final = 0
"""Version of a folder that is being created: it has an identity, and perhaps not all of its files."""
_WITHOUT_CHECKSUM: Final = re.compile(rf"{_TITLE}\nversion ([12])\nidentity ([0-9a-f]{{16}})\n")
_WITH_CHECKSUM: Final = re.compile(
    rf"({_TITLE}\nversion (\d+)\nidentity ([0-9a-f]{{16}})\n)checksum ([0-9a-f]{{8}})\n"
)

logger: logging.Logger = logging.getLogger(__name__)


class StoredFormat(NamedTuple):
    """Content of a format file."""

    version: int
    identity: int


def load_format(folder: Path, files: Files) -> StoredFormat | None:
    """Return version and identity of a data folder; None if it has neither `format` nor `format.copy`.

    One of the two files is enough. If it has the current version, the other one is written again if it is damaged or
    missing, and that is logged.

    :raises StoreError: both are damaged, they contradict each other, or the version is unknown.
    :raises OSError: the disk failed.
    """
    found: dict[str, StoredFormat | str | None] = {
        name: _read(folder / name, files) for name in (FORMAT, COPY)
    }
    valid = {name: content for name, content in found.items() if isinstance(content, StoredFormat)}
    if not valid:
        _refuse(folder, found)
        return None
    stored = next(iter(valid.values()))
    if not _INCOMPLETE <= stored.version <= VERSION:
        raise StoreError(
            f"data folder {folder} has format version {stored.version}, but this broker reads versions up to {VERSION}; "
            "start it with the version of Warren that wrote it"
        )
    if any(other.identity != stored.identity for other in valid.values()):
        raise StoreError(
            f"{folder / FORMAT} and {folder / COPY} are of different data folders; remove the one that does not belong there"
        )
    if stored.version == VERSION:
        for name, content in found.items():
            if content != stored:
                write_format(folder, name, stored, files)
                logger.error("event=data_folder.format_repaired file=%s reason=%r", name, _explain(content))
    return stored


def create_format(folder: Path, identity: int, files: Files) -> StoredFormat:
    """Write the `format` file of a new folder, and return its content.

    Its version stays 0 until `finish_format`: a start that was cut short is continued with the same identity.
    """
    stored = StoredFormat(_INCOMPLETE, identity)
    write_format(folder, FORMAT, stored, files)
    return stored


def finish_format(folder: Path, identity: int, files: Files) -> None:
    """Write both files with the current version, `format` last: the version that it has is complete."""
    for name in (COPY, FORMAT):
        write_format(folder, name, StoredFormat(VERSION, identity), files)


def write_format(folder: Path, name: str, stored: StoredFormat, files: Files) -> None:
    """Replace one of the two files and sync it.

    :param name: `FORMAT` or `COPY`.
    """
    lines = f"{_TITLE}\nversion {stored.version}\nidentity {stored.identity:016x}\n".encode("ascii")
    replace_file(files, str(folder / name), lines + b"checksum %08x\n" % zlib.crc32(lines))


def _read(path: Path, files: Files) -> StoredFormat | str | None:
    """Return the content of a format file; a text that says why it cannot be used; None if it is missing."""
    # More bytes than any valid file has, but not all: it may be anything.
    data = read_file(files, str(path), 1024)
    if not isinstance(data, bytes):
        return data
    text = data.decode("ascii", "replace")
    if match := _WITHOUT_CHECKSUM.fullmatch(text):
        return StoredFormat(int(match[1]), int(match[2], 16))
    match = _WITH_CHECKSUM.fullmatch(text)
    if match is None:
        return "it was not written by Warren, or is cut short"
    if zlib.crc32(match[1].encode("ascii")) != int(match[4], 16):
        return "its checksum does not match"
    return StoredFormat(int(match[2]), int(match[3], 16))


def _refuse(folder: Path, found: dict[str, StoredFormat | str | None]) -> None:
    """Raise the error for a folder without a valid format file, unless it is new: then neither file exists."""
    if any(isinstance(content, str) for content in found.values()):
        details = ", ".join(f"{name}: {_explain(content)}" for name, content in found.items())
        raise StoreError(
            f"{folder / FORMAT} is damaged, and so is its copy ({details}); restore one of them "
            "or choose another folder with --data-dir"
        )
    if (
        (folder / "definitions.db").exists()
        or any(folder.glob("log/*.log"))
        or any(folder.glob("streams/*.stream"))
    ):
        raise StoreError(
            f"{folder} has definitions or messages, but neither `{FORMAT}` nor `{COPY}`; restore one of them "
            "or choose another folder with --data-dir"
        )


def _explain(content: StoredFormat | str | None) -> str:
    """Return why a format file cannot be used as it is."""
    if content is None:
        return "it is missing"
    return content if isinstance(content, str) else f"it has version {content.version}"


__all__ = [
    "COPY",
    "FORMAT",
    "VERSION",
    "StoredFormat",
    "create_format",
    "finish_format",
    "load_format",
    "write_format",
]
