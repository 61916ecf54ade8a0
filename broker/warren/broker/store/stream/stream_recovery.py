"""Crash recovery of streams: segments, next offset and stored offsets.

Only the last segment of a stream is read whole, and others if they are damaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError, disk_error
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.stream.chunk_format import (
    MESSAGES,
    OFFSETS,
    SEGMENT_HEADER,
    TRAILER,
    VERSION,
    decode_offsets,
    decode_trailer,
    parse_segment_name,
    segment_version,
)
from warren.broker.store.stream.chunk_reader import ChunkScanner
from warren.broker.store.stream.stream_segment import StreamSegment


@dataclass
class RecoveredStream:
    """State of one stream as found on disk: segments, next offset, stored offsets and time of the last chunk."""

    segments: list[StreamSegment] = field(default_factory=list)
    """The segments, oldest first."""
    next_offset: int = 0
    """Offset that the next message appended to the stream gets."""
    timestamp: int = -1
    """Time of the last chunk in milliseconds since 1970; -1 if there is none."""
    offsets: dict[bytes, int] = field(default_factory=dict)
    """Consumers' stored offsets by name."""


@dataclass
class StreamRecovery:
    """Result of `recover_streams`: the streams, the damage found, and the files that belong to no known stream."""

    streams: dict[int, RecoveredStream] = field(default_factory=dict)
    """The streams by incarnation (the unique number of a stream in the data folder)."""
    damage: list[str] = field(default_factory=list)
    """Descriptions of the damaged places, one line each."""
    unknown: list[str] = field(default_factory=list)
    """Paths of segments that belong to no known stream."""


def recover_streams(data: DataFolder, known: set[int], clean: bool) -> StreamRecovery:
    """Read the streams of a data folder and cut off their torn (incompletely written) ends.

    :param known: the existing streams, each by its incarnation (its unique number in the data folder).
    :param clean: True if the last stop was clean: a torn end is then reported as damage.
    :raises StoreError: a segment cannot be read or written, or is of an unknown format version.
    """
    found = StreamRecovery()
    identity, folder, files = data.identity, data.streams, data.files
    try:
        firsts: dict[int, list[int]] = {}
        for name in files.names(folder):
            named = parse_segment_name(name)
            if named is None:
                continue
            if named[0] in known:
                firsts.setdefault(named[0], []).append(named[1])
            else:
                found.unknown.append(f"{folder}/{name}")
        for incarnation in sorted(firsts):
            segments = [
                StreamSegment(identity, incarnation, first, folder) for first in sorted(firsts[incarnation])
            ]
            found.streams[incarnation] = _StreamScan(incarnation, files, clean, found.damage).read(segments)
    except OSError as error:
        raise disk_error(f"recover the streams in {folder}", error) from None
    return found


class _StreamScan:
    """Recovery of one stream from its segments: reads them, reports damage, and cuts off a torn end."""

    def __init__(self, incarnation: int, files: Files, clean: bool, damage: list[str]) -> None:
        self._incarnation = incarnation
        self._files = files
        self._clean = clean
        self._damage = damage
        self._result = RecoveredStream()

    def read(self, segments: list[StreamSegment]) -> RecoveredStream:
        result = self._result
        for segment in segments:
            self._check_version(segment)
        while segments:
            last = segments[-1]
            self._scan(last, True)
            if last.timestamp >= 0 or last.position > SEGMENT_HEADER or len(segments) == 1:
                break
            # Begun at the moment of a crash: nothing in it was confirmed.
            self._remove(last)
            segments.pop()
        for segment in segments[:-1]:
            self._read_closed(segment)
        result.segments = segments
        if segments and segments[-1].position < SEGMENT_HEADER:
            # The stream's very first segment, whose beginning was not written: its name holds the next offset.
            result.next_offset = max(result.next_offset, int(segments[-1].first))
            self._remove(segments.pop())
        return result

    def _check_version(self, segment: StreamSegment) -> None:
        segment.size = self._files.size(segment.path)
        version = segment_version(self._files.read(segment.path, 0, SEGMENT_HEADER), segment.seed)
        if version > VERSION:
            raise StoreError(
                f"{segment.path} has format version {version}, but this broker reads versions up to {VERSION}; "
                "start it with the version of Warren that wrote it"
            )

    def _read_closed(self, segment: StreamSegment) -> None:
        """Read the trailer of a segment that is not the last; if it is damaged, read the segment whole."""
        data = self._files.read(segment.path, max(segment.size - TRAILER, 0), TRAILER)
        trailer = decode_trailer(data, segment.seed)
        if trailer is None:
            self._report(segment, int(segment.size), "its end is damaged")
            self._scan(segment, False)
        else:
            segment.end = trailer.position
            segment.timestamp = trailer.timestamp
            segment.last_chunk = trailer.last_chunk
            segment.sparse_index = None
            self._result.timestamp = max(self._result.timestamp, int(trailer.timestamp))
        segment.position = segment.size
        segment.closed = True

    def _scan(self, segment: StreamSegment, last: bool) -> None:
        """Read a segment whole. If it is the last one, cut off its incompletely written end and sync the rest."""
        result = self._result
        scanner = ChunkScanner(segment, SEGMENT_HEADER, segment.size)
        following = int(segment.first)
        while scanner.position < segment.size:
            chunks = scanner.next_chunks(self._files)
            for start, chunk in zip(scanner.starts, chunks, strict=True):
                segment.position = start
                result.timestamp = max(result.timestamp, int(chunk.timestamp))
                if chunk.kind == MESSAGES:
                    segment.add_chunk(chunk.first, chunk.timestamp)
                    following = int(chunk.first + chunk.count)
                elif chunk.kind == OFFSETS and last:
                    result.offsets.update(decode_offsets(chunk.payload))
        # An index in the last segment: the crash came before its successor.
        cut = int(scanner.torn if scanner.torn >= 0 else scanner.index)
        for position, text in scanner.damage:
            if not last or self._clean or scanner.torn < 0 or position < scanner.torn:
                self._report(segment, position, text)
        if last:
            self._cut(segment, cut if cut >= 0 else int(segment.size))
            result.next_offset = max(result.next_offset, following, int(scanner.following))
        segment.end = segment.position = segment.size

    def _cut(self, segment: StreamSegment, size: int) -> None:
        """Cut a segment to `size` and sync it.

        Sync even if nothing is cut: what was read may have been in the page cache only.
        """
        files = self._files
        handle = files.open(segment.path)
        try:
            if segment.size > size:
                files.truncate(handle, size)
                segment.size = size
            files.sync(handle)
        finally:
            files.close(handle)

    def _remove(self, segment: StreamSegment) -> None:
        self._files.unlink(segment.path)

    def _report(self, segment: StreamSegment, position: int, text: str) -> None:
        self._damage.append(f"stream {self._incarnation}, segment {segment.first}, offset {position}: {text}")


__all__ = ["RecoveredStream", "StreamRecovery", "recover_streams"]
