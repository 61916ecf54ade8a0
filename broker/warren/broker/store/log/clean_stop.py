"""Mark of a clean stop: a file in the log's folder that the next start reads and removes.

The file is text. Its first line holds the number and the size of the last segment. Each further line holds the number
that names a queue in the log (its incarnation), and the highest sequence number of a message of that queue that may
have been delivered before an earlier crash: the next start marks the messages up to it as redelivered.
"""

from __future__ import annotations

from typing import Final

from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.log.writer_jobs import CleanEnd

CLEAN: Final = "clean"
"""Name of the file that marks a clean stop."""


def write_clean_stop(files: Files, folder: str, end: CleanEnd) -> None:
    """Write the mark of a clean stop into the log's folder, and sync it.

    :param end: the state of the log at the stop, which the mark holds.
    :raises OSError: the disk failed.
    """
    lines = [b"%d %d\n" % (end.segment, end.size)]
    lines += [b"%d %d\n" % (incarnation, until) for incarnation, until in end.delivered.items()]
    handle = files.open(f"{folder}/{CLEAN}")
    try:
        files.write(handle, b"".join(lines), 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.sync_folder(folder)


def read_clean_stop(files: Files, folder: str) -> CleanEnd:
    """Read the mark of a clean stop in the log's folder, and return the state of the log at the stop.

    A damaged mark still stands for a clean stop. It is returned with segment 0, size 0 and no queues, so that the size
    of the last segment is not checked.

    :raises OSError: the disk cannot be read.
    """
    path = f"{folder}/{CLEAN}"
    words = files.read(path, 0, files.size(path)).split()
    try:
        numbers = [int(word) for word in words]
        return CleanEnd(numbers[0], numbers[1], dict(zip(numbers[2::2], numbers[3::2], strict=True)))
    except (IndexError, ValueError):
        return CleanEnd(0, 0, {})


def remove_clean_stop(files: Files, folder: str) -> None:
    """Remove the mark of a clean stop, and sync the folder so that it does not come back after a power cut.

    :raises OSError: the disk failed.
    """
    files.unlink(f"{folder}/{CLEAN}")
    files.sync_folder(folder)


__all__ = ["CLEAN", "read_clean_stop", "remove_clean_stop", "write_clean_stop"]
