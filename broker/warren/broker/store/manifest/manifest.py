"""The manifest of a data folder: it names the segments of the log and of streams that must exist.

Recovery compares it with the files, so that a missing segment is reported. A segment is added after its file was
created and its name synced, and before anything in it is confirmed. Its removal is recorded before the file is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.file_system.file_replacement import replace_file
from warren.broker.store.file_system.files_protocol import DISK_FULL_ERRORS, SHORTAGE_ERRORS, Files
from warren.broker.store.manifest.manifest_format import (
    CLEAN_STOP,
    LOG_REMOVED,
    LOG_SEGMENT,
    RECORD,
    STREAM_NEXT,
    STREAM_REMOVED,
    STREAM_SEGMENT,
    Values,
    decode_manifest,
    encode_manifest_header,
    encode_manifest_record,
)
from warren.broker.store.manifest.synced_marks import StreamMark, SyncedMarks

NAME: Final = "manifest"
"""Name of the file in the data folder."""
ROOM: Final = 64 * 1024
"""Bytes of zeros that are written behind the records: the removal of a segment must find room on a full disk."""
MIN_REWRITTEN: Final = 2048
"""Number of appended records below which the file is not rewritten."""
FIRST_MANIFEST_VERSION: Final = 3
"""The first format version of the data folder that has a manifest and marks."""


class Manifest:
    """The manifest of one data folder, and the marks of how far each file was synced.

    `load` reads it. Recovery compares its attributes with the files, and corrects them. `begin` writes it anew. From
    then on the log's writer thread calls the other methods.

    :param folder: the data folder.
    :param identity: the data folder's random number.
    """

    def __init__(self, folder: str, files: Files, identity: int) -> None:
        self.log: dict[int, int] = {}
        """The segments of the log that must exist: size by number; 0 for a segment that was not closed."""
        self.damaged_log: set[int] = set()
        """Those segments of the log that have places which cannot be read."""
        self.streams: dict[tuple[int, int], tuple[int, int]] = {}
        """The segments of streams that must exist, by incarnation (the stream's number) and first offset.

        The values are the size that a segment has at least, and the stream's next offset at that size.
        """
        self.next_offsets: dict[int, int] = {}
        """Offset below which a stream has given out all offsets, by incarnation (the stream's number)."""
        self.removed_log: list[int] = []
        """Segments of the log whose removal was recorded, and may have been cut short."""
        self.removed_streams: list[tuple[int, int]] = []
        """Segments of streams whose removal was recorded, and may have been cut short."""
        self.leftovers: list[str] = []
        """Paths of files to be removed whose removal was cut short, oldest first."""
        self.clean_check = -1
        """CRC of the file `log/clean` if the manifest ends with the record of a clean stop; else -1."""
        self.is_usable = True
        """False if segments may exist that the manifest does not name, because it is missing or damaged."""
        self.damage: list[str] = []
        """Descriptions of damage to the manifest, one line each."""
        self.notes: list[str] = []
        """Descriptions of damage to files that only check others, after which nothing is lost, one line each."""
        self.marks = SyncedMarks(folder, files, identity)
        self.has_begun = False
        """True after `begin`."""
        self.sync = True
        """False if the writer thread never syncs the file, for `Sync.OFF`."""
        self._folder = folder
        self._path = f"{folder}/{NAME}"
        self._files = files
        self._identity = identity
        self._generation = 0
        self._used = 0
        """Number of records in the file, the header included."""
        self._rewritten = 0
        """Number of records when the file was rewritten."""
        self._size = 0
        """Size of the file in bytes, zeros included."""
        self._handle = -1
        self._has_unsynced = False
        """True if records were appended and not synced."""
        self._pending: list[tuple[int, Values]] = []
        """Records to be appended."""
        self._log_end = (0, 0)
        """Number and size of the segment of the log that was written last."""

    @classmethod
    def load(cls, folder: DataFolder) -> Manifest:
        """Read manifest and marks of a data folder.

        In a folder of an older version both are missing, or stem from an upgrade that was cut short: they are ignored.

        :raises OSError: the disk cannot be read.
        """
        manifest = cls(str(folder.path), folder.files, folder.identity)
        if folder.stored_version < FIRST_MANIFEST_VERSION:
            manifest.is_usable = False
            return manifest
        manifest.marks.load()
        manifest._load()
        return manifest

    def _load(self) -> None:
        if NAME not in self._files.names(self._folder):
            self.is_usable = False
            if self.marks.exists or self._has_segments():
                self.damage.append(
                    "the manifest is missing: it is written again from the segments that exist"
                )
            return
        data = self._files.read(self._path, 0, self._files.size(self._path))
        content = decode_manifest(data, self._identity)
        self._generation = content.generation
        self._used = max(content.records, default=0) + 1
        self._size = len(data)
        for kind, values in content.records.values():
            self._apply(kind, values)
            if kind == LOG_REMOVED:
                self.removed_log.append(values[0])
            elif kind == STREAM_REMOVED:
                self.removed_streams.append(values[:2])
        # Records that are known to have been synced. Behind them a crash may have cut short the last write.
        synced = content.snapshot + 1
        if self.marks.manifest[0] == content.generation:
            synced = max(synced, self.marks.manifest[1])
        lost = sum(number not in content.records for number in range(1, synced))
        if not content.generation:
            self.damage.append("the manifest is damaged: it is written again from the segments that exist")
            self.is_usable = False
        elif lost:
            self.damage.append(
                f"{lost} of {synced - 1} records of the manifest are damaged or missing: "
                "it is written again from the segments that exist"
            )
            self.is_usable = False
        if not self.marks.exists:
            self.notes.append(
                "the file `synced` is missing: records that were lost at the end of a file after a crash pass "
                "for a write that was cut short"
            )
        elif self.marks.damaged:
            self.notes.append(
                f"{self.marks.damaged} marks in the file `synced` are damaged: records that were lost at the end of a "
                "file after a crash may pass for a write that was cut short"
            )

    def _has_segments(self) -> bool:
        for folder in ("log", "streams"):
            with contextlib.suppress(FileNotFoundError):
                names = self._files.names(f"{self._folder}/{folder}")
                if any(name.endswith((".log", ".stream")) for name in names):
                    return True
        return False

    def _apply(self, kind: int, values: Values) -> None:
        """Apply a record to the attributes that name the segments."""
        self.clean_check = -1
        number, first, size, next_offset = values
        if kind == LOG_SEGMENT:
            self.log[number] = max(first, self.log.get(number, 0))
            if size:
                self.damaged_log.add(number)
        elif kind == LOG_REMOVED:
            self.log.pop(number, None)
            self.damaged_log.discard(number)
        elif kind == STREAM_SEGMENT:
            self.streams[(number, first)] = max(
                (size, next_offset), self.streams.get((number, first), (0, 0))
            )
            self.next_offsets[number] = max(first, next_offset, self.next_offsets.get(number, 0))
        elif kind == STREAM_REMOVED:
            self.streams.pop((number, first), None)
        elif kind == STREAM_NEXT:
            self.next_offsets[number] = max(first, self.next_offsets.get(number, 0))
        elif kind == CLEAN_STOP:
            self.clean_check = number

    # Called after recovery

    def begin(self) -> None:
        """Write the manifest anew, and begin new marks. The attributes are what recovery has found.

        Without room on the disk the present files stay, and the manifest is rewritten with the next write.

        :raises OSError: the disk failed.
        """
        self.clean_check = -1
        if not self._rewrite() and self.is_usable and self._generation:
            self._handle = self._files.open(self._path)
        self.marks.begin()
        self.has_begun = True

    # Called by the writer thread

    def note_log_write(self, segment: int, end: int, durable: bool) -> None:
        """Record that a segment of the log was written up to the offset `end`; add it if it is new.

        :param durable: True if it was synced.
        """
        if segment not in self.log:
            before, size = self._log_end
            if before in self.log:
                self._add(LOG_SEGMENT, before, size)
            self._add(LOG_SEGMENT, segment)
        self._log_end = (segment, end)
        if durable:
            self.marks.note_log(segment, end)

    def note_stream_write(self, incarnation: int, first: int, size: int, next_offset: int) -> None:
        """Record that a stream's segment is `size` bytes long now; add it if it is new.

        :param incarnation: the stream's number in the data folder.
        :param first: first offset of the segment.
        :param next_offset: offset behind the last message that was written.
        """
        if (incarnation, first) not in self.streams:
            before = self.marks.streams.get(incarnation)
            if before is not None and (incarnation, before.first) in self.streams:
                self._add(STREAM_SEGMENT, incarnation, *before)
            self._add(STREAM_SEGMENT, incarnation, first)
        self.marks.note_stream(incarnation, StreamMark(first, size, next_offset))

    def note_log_removals(self, segments: Iterable[int]) -> None:
        """Record that segments of the log are about to be removed."""
        for segment in segments:
            if segment in self.log:
                self._add(LOG_REMOVED, segment)

    def note_stream_removals(self, segments: Iterable[tuple[int, int]]) -> None:
        """Record that segments of streams, given by incarnation and first offset, are about to be removed."""
        for incarnation, first in segments:
            if (incarnation, first) in self.streams:
                self._add(STREAM_REMOVED, incarnation, first)

    def forget_stream(self, incarnation: int) -> None:
        """Forget the offsets of a stream that is deleted.

        :param incarnation: the stream's number in the data folder.
        """
        self.next_offsets.pop(incarnation, None)
        self.marks.forget_stream(incarnation)

    def flush(self, durable: bool = True) -> bool:
        """Write and sync the records that were noted since the last call, and write the marks.

        :param durable: False if the records need not be synced yet, because nothing that they name is.
        :return: False if the disk has no room for them; they are kept for the next call.
        :raises OSError: the disk failed.
        """
        if self._pending:
            # A new file holds what the pending records say.
            if (self._handle < 0 or self._is_large()) and not self._rewrite() and self._handle < 0:
                return False
            if self._pending and not self._append():
                return False
        if durable and self._has_unsynced:
            if self.sync:
                self._files.sync(self._handle)
            self._has_unsynced = False
            self.marks.note_manifest(self._generation, self._used)
        self.marks.write()
        return True

    def note_clean_stop(self, check: int) -> None:
        """Record how far all files are written at a clean stop.

        :param check: CRC of the file `log/clean`.
        """
        segment, size = self._log_end
        if segment in self.log:
            self._add(LOG_SEGMENT, segment, size)
        for incarnation, mark in self.marks.streams.items():
            if (incarnation, mark.first) in self.streams:
                self._add(STREAM_SEGMENT, incarnation, *mark)
        self._add(CLEAN_STOP, check)

    def close(self) -> None:
        """Close the files."""
        self._close_file()
        self.marks.close()

    def _close_file(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._files.close(handle)

    def _add(self, kind: int, first: int, second: int = 0, third: int = 0, fourth: int = 0) -> None:
        values = (first, second, third, fourth)
        self._apply(kind, values)
        self._pending.append((kind, values))

    def _is_large(self) -> bool:
        live = len(self.log) + len(self.streams) + len(self.next_offsets)
        appended = self._used - self._rewritten + len(self._pending)
        return appended > max(MIN_REWRITTEN, 2 * live)

    def _append(self) -> bool:
        encoded = [
            encode_manifest_record(self._identity, self._generation, self._used + at, kind, values)
            for at, (kind, values) in enumerate(self._pending)
        ]
        data = b"".join(encoded)
        start = self._used * RECORD
        try:
            if start + len(data) > self._size:
                self._files.write(self._handle, data + bytes(ROOM), start)
                self._size = start + len(data) + ROOM
            else:
                self._files.write(self._handle, data, start)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            return False
        self._has_unsynced = True
        self._used += len(encoded)
        self._pending = []
        return True

    def _rewrite(self) -> bool:
        """Write a new file with the present segments only, and put it in the place of the old one.

        :return: False if the disk has no room; the old file is as it was.
        :raises OSError: the disk failed. The file is the old one or the new one.
        """
        generation = self._generation + 1
        records = self._snapshot()
        data = [encode_manifest_header(self._identity, generation, len(records))]
        for number, (kind, values) in enumerate(records, 1):
            data.append(encode_manifest_record(self._identity, generation, number, kind, values))
        content = b"".join(data) + bytes(ROOM)
        try:
            replace_file(self._files, self._path, content, self._close_file)
        except OSError as error:
            if error.errno not in SHORTAGE_ERRORS:
                raise
            self._files.unlink(f"{self._path}.new")
            if error.errno not in DISK_FULL_ERRORS:
                # The new file may be in its place already: nothing must be appended to the old one.
                self._close_file()
            return False
        self._close_file()
        # Without a descriptor, the next call of `flush` writes a new file.
        try:
            self._handle = self._files.open(self._path)
        except OSError as error:
            if error.errno not in SHORTAGE_ERRORS:
                raise
        self._generation = generation
        self._used = self._rewritten = len(records) + 1
        self._size = len(content)
        self._pending = []
        self._has_unsynced = False
        self.marks.note_manifest(generation, self._used)
        return True

    def _snapshot(self) -> list[tuple[int, Values]]:
        """Return the records that name the present segments, those that are about to be removed, and a clean stop."""
        found: list[tuple[int, Values]] = []
        for number, size in self.log.items():
            found.append((LOG_SEGMENT, (number, size, int(number in self.damaged_log), 0)))
        for (incarnation, first), (size, next_offset) in self.streams.items():
            found.append((STREAM_SEGMENT, (incarnation, first, size, next_offset)))
        for incarnation, next_offset in self.next_offsets.items():
            found.append((STREAM_NEXT, (incarnation, next_offset, 0, 0)))
        found += [item for item in self._pending if item[0] in (LOG_REMOVED, STREAM_REMOVED)]
        if self.clean_check >= 0:
            found.append((CLEAN_STOP, (self.clean_check, 0, 0, 0)))
        return found


__all__ = ["FIRST_MANIFEST_VERSION", "MIN_REWRITTEN", "NAME", "ROOM", "Manifest"]
