"""Marks of the synced bytes of each file, which tell lost records from the torn tail of an unconfirmed batch.

The file `synced` consists of slots of `SLOT` bytes: number of the slot's kind, four numbers, CRC. The CRC has an initial
value (seed) made of the folder's identity and the slot's number. The log, the manifest and each stream that was written
have a slot, which is overwritten after each batch. The slots are not synced: a process that is killed leaves them, and
after a power failure one may be older than the file that it describes, but never newer.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from warren.broker.store.file_system.file_replacement import replace_file
from warren.broker.store.file_system.files_protocol import DISK_FULL_ERRORS, SHORTAGE_ERRORS, Files

NAME: Final = "synced"
"""Name of the file in the data folder."""
SLOT: Final = 64
"""Size of a slot in bytes. No slot crosses a sector, so that a power failure does not tear it."""
PAGE: Final = 4096
"""Bytes by which the file grows."""

_LOG: Final = 1
_MANIFEST: Final = 2
_STREAM: Final = 3
_FIRST_STREAM_SLOT: Final = 2
_SLOT = struct.Struct("<IQQQQ24x")
_CRC = struct.Struct("<I")
_SEED = struct.Struct("<QQ")
_EMPTY: Final = bytes(SLOT)


class StreamMark(NamedTuple):
    """Segment and offset up to which a stream was synced.

    :param first: first offset of the segment that was written last.
    :param size: bytes of that segment that are on disk.
    :param next_offset: offset behind the last message that is on disk.
    """

    first: int
    size: int
    next_offset: int


class SyncedMarks:
    """The marks of one data folder: those that were found at the start, and the writing of new ones.

    :param folder: the data folder.
    :param identity: the data folder's random number.
    """

    def __init__(self, folder: str, files: Files, identity: int) -> None:
        self.log: tuple[int, int] = (0, 0)
        """Number of the log's segment that was written last, and bytes of it that are on disk."""
        self.manifest: tuple[int, int] = (0, 0)
        """Generation of the manifest, and its records that are on disk."""
        self.streams: dict[int, StreamMark] = {}
        """The mark of each stream, by incarnation (the number of a stream in the data folder)."""
        self.exists = False
        """True if the file was found at the start."""
        self.damaged = 0
        """Number of slots that cannot be read."""
        self._folder = folder
        self._path = f"{folder}/{NAME}"
        self._files = files
        self._identity = identity
        self._handle = -1
        self._size = 0
        self._slots: dict[int, int] = {}
        """Slot of each stream that was written since the start, by incarnation."""
        self._free: list[int] = []
        self._changed: dict[int, bytes] = {}
        """Slots to be written, by number."""

    def load(self) -> None:
        """Read the file, if it exists.

        :raises OSError: the disk cannot be read.
        """
        if NAME not in self._files.names(self._folder):
            return
        data = self._files.read(self._path, 0, self._files.size(self._path))
        self.exists = True
        self.damaged = 1 if not data or len(data) % PAGE else 0
        for number in range(len(data) // SLOT):
            slot = data[number * SLOT : (number + 1) * SLOT]
            if slot == _EMPTY:
                continue
            if _CRC.unpack_from(slot, SLOT - 4)[0] != zlib.crc32(slot[: SLOT - 4], self._seed(number)):
                self.damaged += 1
                continue
            kind, first, second, third, fourth = _SLOT.unpack_from(slot)
            if kind == _LOG:
                self.log = (first, second)
            elif kind == _MANIFEST:
                self.manifest = (first, second)
            elif kind == _STREAM:
                self.streams[first] = StreamMark(second, third, fourth)

    def begin(self) -> None:
        """Begin new marks, of a log and streams that nothing was written to yet, and open the file for writing.

        :raises OSError: the disk failed.
        """
        self.log = (0, 0)
        self.streams = {}
        self._slots = {}
        self._free = []
        self._changed = {}
        manifest = self._encode(1, _MANIFEST, *self.manifest, 0, 0)
        try:
            replace_file(self._files, self._path, (_EMPTY + manifest).ljust(PAGE, b"\0"))
            self._handle = self._files.open(self._path)
        except OSError as error:
            if error.errno not in SHORTAGE_ERRORS:
                raise
            # The old marks claim nothing wrong. Without new ones a loss may pass for a torn tail.
            self._files.unlink(f"{self._path}.new")
            return
        self._size = PAGE

    def note_log(self, segment: int, size: int) -> None:
        """Note that `size` bytes of a segment of the log are on disk."""
        self.log = (segment, size)
        self._changed[0] = b""

    def note_manifest(self, generation: int, count: int) -> None:
        """Note that `count` records of the manifest are on disk."""
        self.manifest = (generation, count)
        self._changed[1] = b""

    def note_stream(self, incarnation: int, mark: StreamMark) -> None:
        """Note that a stream is on disk up to a mark."""
        self.streams[incarnation] = mark
        slot = self._slots.get(incarnation)
        if slot is None:
            slot = self._free.pop() if self._free else _FIRST_STREAM_SLOT + len(self._slots)
            self._slots[incarnation] = slot
        self._changed[slot] = self._encode(slot, _STREAM, incarnation, *mark)

    def forget_stream(self, incarnation: int) -> None:
        """Free the slot of a stream that is deleted."""
        self.streams.pop(incarnation, None)
        slot = self._slots.pop(incarnation, None)
        if slot is not None:
            self._free.append(slot)
            self._changed[slot] = _EMPTY

    def write(self) -> None:
        """Write the slots that have changed. Without room on the disk they stay as they are.

        :raises OSError: the disk failed.
        """
        if self._handle < 0:
            return
        changed, self._changed = self._changed, {}
        try:
            for number, slot in changed.items():
                data = slot
                if number == 0:
                    data = self._encode(0, _LOG, *self.log, 0, 0)
                elif number == 1:
                    data = self._encode(1, _MANIFEST, *self.manifest, 0, 0)
                at = number * SLOT
                while at >= self._size:
                    self._files.write(self._handle, bytes(PAGE), self._size)
                    self._size += PAGE
                self._files.write(self._handle, data, at)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            # What is not written is written with the next batch.
            self._changed = {**changed, **self._changed}

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._files.close(handle)

    def _encode(self, number: int, kind: int, first: int, second: int, third: int, fourth: int) -> bytes:
        data = _SLOT.pack(kind, first, second, third, fourth)
        return data + _CRC.pack(zlib.crc32(data, self._seed(number)))

    def _seed(self, number: int) -> int:
        return zlib.crc32(_SEED.pack(self._identity, number))


__all__ = ["NAME", "PAGE", "SLOT", "StreamMark", "SyncedMarks"]
