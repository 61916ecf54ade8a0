"""Mark of a clean stop: a file in the log's folder that the next start reads and removes.

The file is text. Its first line holds the number and the size of the last segment. Each further line holds the number
that names a queue in the log (its incarnation), and the highest sequence number of a message of that queue that may
have been delivered before an earlier crash: the next start marks the messages up to it as redelivered. The last line is
a checksum of the others, seeded with the folder's identity. Folders of a version before 3 have no checksum.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.log.writer_jobs import CleanEnd

CLEAN: Final = "clean"
"""Name of the file that marks a clean stop."""
_CHECKED: Final = re.compile(rb"((?:\d+ \d+\n)+)checksum ([0-9a-f]{8})\n")
_UNCHECKED: Final = re.compile(rb"(?:\d+ \d+\n)+")


def write_clean_stop(files: Files, folder: str, end: CleanEnd, identity: int) -> int:
    """Write the mark of a clean stop into the log's folder, and sync it.

    :param end: the state of the log at the stop, which the mark holds.
    :param identity: the data folder's random number.
    :return: the checksum of the mark, which the manifest repeats.
    :raises OSError: the disk failed.
    """
    lines = [b"%d %d\n" % (end.segment, end.size)]
    lines += [b"%d %d\n" % (incarnation, until) for incarnation, until in end.delivered.items()]
    data = b"".join(lines)
    check = _checksum(data, identity)
    handle = files.open(f"{folder}/{CLEAN}")
    try:
        files.write(handle, b"%schecksum %08x\n" % (data, check), 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.sync_folder(folder)
    return check


def read_clean_stop(
    files: Files, folder: str, identity: int, *, has_checksum: bool
) -> tuple[CleanEnd, int] | None:
    """Read the mark of a clean stop in the log's folder.

    :param identity: the data folder's random number.
    :param has_checksum: False in a folder of a version whose marks had no checksum.
    :return: the state of the log at the stop and the checksum of the mark; None if the mark is damaged.
    :raises OSError: the disk cannot be read.
    """
    path = f"{folder}/{CLEAN}"
    data = files.read(path, 0, files.size(path))
    check = -1
    found = _CHECKED.fullmatch(data)
    if found is not None:
        data, check = found[1], int(found[2], 16)
        if check != _checksum(data, identity):
            return None
    elif has_checksum or _UNCHECKED.fullmatch(data) is None:
        return None
    numbers = [int(word) for word in data.split()]
    return CleanEnd(numbers[0], numbers[1], dict(zip(numbers[2::2], numbers[3::2], strict=True))), check


def remove_clean_stop(files: Files, folder: str) -> None:
    """Remove the mark of a clean stop, and sync the folder so that it does not come back after a power cut.

    :raises OSError: the disk failed.
    """
    files.unlink(f"{folder}/{CLEAN}")
    files.sync_folder(folder)


def _checksum(data: bytes, identity: int) -> int:
    return zlib.crc32(data, zlib.crc32(b"%016x" % identity))


__all__ = ["CLEAN", "read_clean_stop", "remove_clean_stop", "write_clean_stop"]
