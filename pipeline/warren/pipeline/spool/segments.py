"""Segment files of a spool, which keep messages of a queue until Spark has processed them. Messages are addressed by
position.

A position is the number of a message since the spool was created. A segment is a file with consecutive messages, named
by the position of the first one. When it is large enough, the next one begins and the deduplication keys of the full
one are written to a file beside it; when Spark has committed all of its messages the segment is removed. The keys stay,
because the broker may have lost an acknowledgement, and deliver a message again long after it left the spool.
"""

from __future__ import annotations

import os
import threading
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from warren.pipeline.errors import PipelineError
from warren.pipeline.spool.file_format import (
    KEY_BYTES,
    NO_KEY,
    SpooledMessage,
    TornChunk,
    encode_chunk,
    read_chunks,
)
from warren.pipeline.spool.folder import SpoolFolder, sync_folder, unusable_error
from warren.pipeline.spool.key_set import KeySet

SEGMENT_BYTES = 64 * 1024 * 1024
"""Size in bytes from which on a segment file is full, and the next one begins."""
MARK_INTERVAL = 256 * 1024
"""Minimum distance in bytes between the chunks of a segment file whose byte offsets are kept in memory. Reading from a
message on begins at the nearest of these chunks before it."""


class FileRange(NamedTuple):
    """Part of a segment file, from the byte offset `begin` to `end`, that contains the messages with positions (numbers
    since the spool was created) from `start` to before `stop`.
    """

    path: str
    begin: int
    end: int
    start: int
    stop: int


@dataclass
class Segment:
    """Segment file, which holds consecutive messages of a spool, and the deduplication keys of these messages.

    :param first: position (number since the spool was created) of the file's first message
    """

    first: int
    path: Path
    keys: bytearray = field(default_factory=bytearray)
    """Concatenated deduplication keys of the segment to which messages are appended; empty for a full one."""
    sealed: KeySet | None = None
    """Deduplication keys of a full segment; None for the one to which messages are appended."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of the position of a chunk's first message and the chunk's byte offset, for the first chunk and some later
    ones."""
    size: int = 0
    """Size of the segment file in bytes; 0 when it has been removed."""

    @property
    def keys_path(self) -> Path:
        return self.path.with_suffix(".keys")

    def add(self, first: int, keys: bytes, end: int) -> None:
        """Record a chunk that was appended to the file.

        :param first: position of the chunk's first message
        :param keys: concatenated keys of its messages
        :param end: byte offset at which the chunk ends
        """
        if not self.marks or self.size - self.marks[-1][1] >= MARK_INTERVAL:
            self.marks.append((first, self.size))
        self.keys += (
            keys if NO_KEY not in keys else b"".join(key for key in split_keys(keys) if key != NO_KEY)
        )
        self.size = end


class Segments:
    """Segment files of an open spool, which keep messages until Spark has processed them. One thread appends messages;
    another thread asks in which byte ranges of the files messages are, and removes segments.

    :param window: minimum number of deduplication keys to remember; the keys of all messages in the spool are always
        remembered
    :param segment: bytes after which the next segment begins
    :raises PipelineError: if a file is damaged, or cannot be used
    """

    def __init__(self, folder: SpoolFolder, window: int, segment: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._window = window
        self._segment = segment
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._recent: set[bytes] = set()
        """Deduplication keys of the segment to which messages are appended."""
        self.end = 0
        """Position (number since the spool was created) that the next message gets."""
        self._failed: PipelineError | None = None
        try:
            self._recover()
        except OSError as error:
            raise unusable_error(folder.path, error) from None

    @property
    def first(self) -> int:
        """Position (number since the spool was created) of the first message that is still on disk; the position that
        the next message gets if there is none.
        """
        with self._lock:
            return next((each.first for each in self._segments if each.size), self.end)

    def bytes_from(self, position: int) -> int:
        """Return the approximate size in bytes of all messages from a position (a message's number since the spool was
        created) to the end of the spool; exactly 0 if there are none.
        """
        with self._lock:
            if position >= self.end:
                return 0
            return sum(
                each.size - (nearest_mark(each, position)[1] if each.first < position else 0)
                for each, following in zip(self._segments, [*self._segments[1:], None], strict=True)
                if following is None or following.first > position
            )

    def known_keys(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of the given deduplication keys whose messages were written to the spool before, as far as
        remembered.

        Remembered are the keys of all messages in the spool, and the most recent keys of removed messages.
        """
        found = self._recent.intersection(keys)
        for segment in self._segments:
            if segment.sealed is not None:
                found |= segment.sealed.found(keys)
        return found

    def append(self, entries: Sequence[SpooledMessage]) -> None:
        """Append messages, which are on disk when this returns.

        After a failed write nothing more is appended, because the end of the file is uncertain until the spool is
        opened again.

        :raises PipelineError: if this or an earlier write failed
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._append(entries)
        except OSError as error:
            self._failed = unusable_error(self._folder.path, error)
            raise self._failed from None

    def _append(self, entries: Sequence[SpooledMessage]) -> None:
        segment = self._segments[-1]
        chunk = encode_chunk(self.end, entries)
        try:
            write_all(self._file, chunk)
            os.fdatasync(self._file)
        except OSError:
            # Data that a failed sync left in the page cache would be read back as if it were on disk.
            with suppress(OSError):
                os.ftruncate(self._file, segment.size)
            raise
        keys = b"".join(entry.key for entry in entries)
        with self._lock:
            segment.add(self.end, keys, segment.size + len(chunk))
            self.end += len(entries)
        self._recent.update(entry.key for entry in entries if entry.key != NO_KEY)
        if segment.size >= self._segment:
            self._roll()

    def file_ranges(self, start: int, stop: int) -> list[FileRange]:
        """Return the byte ranges of the segment files that hold the messages from one position to before another.

        :param start: position of the first message: its number since the spool was created
        :param stop: position after the last message
        :raises PipelineError: if not all of them are in the spool
        """
        with self._lock:
            self._check_available(start, stop)
            found = []
            for segment, following in zip(self._segments, [*self._segments[1:], None], strict=True):
                last = self.end if following is None else following.first
                begin, end = max(start, segment.first), min(stop, last)
                if begin < end:
                    found.append(
                        FileRange(
                            str(segment.path), nearest_mark(segment, begin)[1], segment.size, begin, end
                        )
                    )
            return found

    def remove_before(self, position: int) -> None:
        """Remove the segment files in which all messages are before a position (a message's number since the spool was
        created). The newest file stays in any case.
        """
        with self._lock:
            for segment, following in zip(self._segments, self._segments[1:], strict=False):
                if following.first <= position and segment.size:
                    segment.path.unlink(missing_ok=True)
                    segment.size = 0
                    segment.marks.clear()

    def close(self) -> None:
        os.close(self._file)

    def _check_available(self, start: int, stop: int) -> None:
        first = next((each.first for each in self._segments if each.size), self.end)
        if stop > self.end:
            raise PipelineError(
                f"the checkpoint is at position {stop} and the spool {self._folder.path} ends at {self.end}: "
                "it is another spool, or part of it is missing; begin with a new checkpoint, or restore the spool"
            )
        if start < stop and start < first:
            raise PipelineError(
                f"the checkpoint is at position {start} and the spool {self._folder.path} begins at {first}: "
                "another query has read it in between; begin with a new checkpoint"
            )

    def _recover(self) -> None:
        """Open the segment files that exist on disk. An incomplete chunk at the end of the newest one is cut off: a
        crash interrupted its write, and its messages were not acknowledged.
        """
        paths = {int(path.stem): path for path in self._folder.path.glob("*.spool")}
        firsts = sorted({*paths, *(int(path.stem) for path in self._folder.path.glob("*.keys"))})
        newest = max(paths, default=None)
        for first in firsts:
            segment = Segment(first, self._folder.path / f"{first:020}.spool")
            if first in paths:
                self._scan(segment, first == newest)
            else:
                segment.sealed = KeySet(read_keys(segment.keys_path))
            self._segments.append(segment)
        if newest is None:
            self._open_segment()
        elif newest != firsts[-1]:
            raise PipelineError(f"the spool {self._folder.path} is damaged: its newest file is missing")
        else:
            self._file = os.open(self._segments[-1].path, os.O_WRONLY | os.O_APPEND)
            # Sync a chunk that was written but not synced when the process died; from now on it counts.
            os.fsync(self._file)
            sync_folder(self._folder.path)

    def _scan(self, segment: Segment, newest: bool) -> None:
        """Read the chunks of a segment file, to record their positions and the deduplication keys of their messages.

        :param newest: whether it is the segment to which messages are appended
        """
        position = segment.first
        with segment.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                for chunk in read_chunks(file, 0, size):
                    if chunk.first != position:
                        raise PipelineError(f"{segment.path} is damaged: position {position} is missing")
                    segment.add(chunk.first, chunk.keys, chunk.end)
                    position += chunk.length
            except TornChunk:
                if not newest:
                    raise PipelineError(f"{segment.path} is damaged: its end is missing") from None
                os.truncate(segment.path, segment.size)
        self.end = position
        if newest:
            self._recent = set(split_keys(segment.keys))
        else:
            self._seal(segment, again=False)

    def _open_segment(self) -> None:
        """Create a new segment file for the next messages."""
        segment = Segment(self.end, self._folder.path / f"{self.end:020}.spool")
        self._file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        sync_folder(self._folder.path)
        with self._lock:
            self._segments.append(segment)

    def _roll(self) -> None:
        """Close the newest segment, which is full, and begin the next one.

        The deduplication keys of its messages are written to a file beside it, which outlives the segment.
        """
        # Overwrite a key file from before a crash: the segment has grown since.
        self._seal(self._segments[-1], again=True)
        self._recent = set()
        full = self._file
        self._open_segment()
        os.close(full)
        self._drop_old_keys()

    def _drop_old_keys(self) -> None:
        """Forget the deduplication keys of removed segments, the oldest first, as long as at least `window` newer keys
        remain.
        """
        with self._lock:
            newer = sum(len(each.sealed) for each in self._segments if each.sealed is not None)
            while (oldest := self._segments[0]).sealed is not None and not oldest.size:
                newer -= len(oldest.sealed)
                if newer < self._window:
                    break
                oldest.keys_path.unlink(missing_ok=True)
                del self._segments[0]

    def _seal(self, segment: Segment, again: bool) -> None:
        """Write the deduplication keys of a full segment to a file beside it, because they are needed after the segment
        is removed.

        :param again: write the file even if it exists
        """
        joined = bytes(segment.keys)
        if again or not segment.keys_path.exists():
            self._folder.write(segment.keys_path.name, joined + zlib.crc32(joined).to_bytes(4))
        segment.sealed, segment.keys = KeySet(joined), bytearray()


def nearest_mark(segment: Segment, position: int) -> tuple[int, int]:
    """Find the chunk of a segment file at which to begin reading to reach a message. Of the chunks whose byte offsets
    are kept in memory, it is the last one that begins at or before the message.

    :param position: position of the message: its number since the spool was created
    :return: position of the chunk's first message, and byte offset of the chunk
    """
    if not segment.marks:
        return segment.first, 0
    return segment.marks[max(bisect_right(segment.marks, (position, 1 << 62)) - 1, 0)]


def split_keys(keys: bytes | bytearray) -> list[bytes]:
    """Split concatenated deduplication keys into a list."""
    return [bytes(keys[at : at + KEY_BYTES]) for at in range(0, len(keys), KEY_BYTES)]


def read_keys(path: Path) -> bytes:
    """Read the file with the deduplication keys of a segment, and return the concatenated keys.

    :raises PipelineError: if it is damaged
    """
    data = path.read_bytes()
    joined, crc = data[:-4], data[-4:]
    if len(joined) % KEY_BYTES or zlib.crc32(joined).to_bytes(4) != crc:
        raise PipelineError(
            f"{path} is damaged: remove it; old messages may then be read twice if they are redelivered"
        )
    return joined


def write_all(file: int, data: bytes) -> None:
    """Write all of `data` to a file descriptor, with several calls of write(2) if necessary."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
