"""What streams' segments hold when a broker starts: of each stream only the last one is read through."""

from __future__ import annotations

from dataclasses import dataclass, field

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError, disk_error
from warren.broker.store.files import Files
from warren.broker.store.stream.chunk_format import (
    MESSAGES,
    OFFSETS,
    SEGMENT_HEADER,
    TRAILER,
    VERSION,
    read_offsets,
    read_segment_name,
    read_trailer,
    segment_version,
)
from warren.broker.store.stream.chunk_reader import Walk
from warren.broker.store.stream.stream_segment import StreamSegment


@dataclass
class RecoveredStream:
    """One stream as it was found."""

    segments: list[StreamSegment] = field(default_factory=list)
    next_offset: int = 0
    timestamp: int = -1
    offsets: dict[bytes, int] = field(default_factory=dict)


@dataclass
class StreamRecovery:
    """All streams by incarnation, what is damaged, a line each, and the files that belong to no stream."""

    streams: dict[int, RecoveredStream] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def recover_streams(data: DataFolder, known: set[int], clean: bool) -> StreamRecovery:
    """Read the streams of a data folder; a torn end is cut off.

    :param known: the incarnations that the definitions name.
    :param clean: the last stop was clean, so that a torn end is damage.
    :raises StoreError: a segment cannot be read or written, or is of an unknown format version.
    """
    found = StreamRecovery()
    identity, folder, files = data.identity, data.streams, data.files
    try:
        firsts: dict[int, list[int]] = {}
        for name in files.names(folder):
            named = read_segment_name(name)
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
            found.streams[incarnation] = _Stream(incarnation, files, clean, found.damage).read(segments)
    except OSError as error:
        raise disk_error(f"recover the streams in {folder}", error) from None
    return found


class _Stream:
    """Reads one stream."""

    def __init__(self, incarnation: int, files: Files, clean: bool, damage: list[str]) -> None:
        self._incarnation = incarnation
        self._files = files
        self._clean = clean
        self._damage = damage
        self._to = RecoveredStream()

    def read(self, segments: list[StreamSegment]) -> RecoveredStream:
        to = self._to
        for segment in segments:
            self._check_version(segment)
        while segments:
            last = segments[-1]
            self._scan(last, True)
            if last.timestamp >= 0 or last.position > SEGMENT_HEADER or len(segments) == 1:
                break
            # Begun at the moment of a crash: nobody was told of anything in it.
            self._remove(last)
            segments.pop()
        for segment in segments[:-1]:
            self._closed(segment)
        to.segments = segments
        if segments and segments[-1].position < SEGMENT_HEADER:
            # The stream's very first one, whose beginning was not written: its name says what comes next.
            to.next_offset = max(to.next_offset, int(segments[-1].first))
            self._remove(segments.pop())
        return to

    def _check_version(self, segment: StreamSegment) -> None:
        segment.size = self._files.size(segment.path)
        version = segment_version(self._files.read(segment.path, 0, SEGMENT_HEADER), segment.seed)
        if version > VERSION:
            raise StoreError(
                f"{segment.path} has format version {version}, this broker knows {VERSION}: "
                "start it with the version of Warren that wrote it"
            )

    def _closed(self, segment: StreamSegment) -> None:
        """A segment that has a successor: its trailer says what there is to know."""
        data = self._files.read(segment.path, max(segment.size - TRAILER, 0), TRAILER)
        trailer = read_trailer(data, segment.seed)
        if trailer is None:
            self._report(segment, int(segment.size), "its end is damaged")
            self._scan(segment, False)
        else:
            segment.end = trailer.position
            segment.timestamp = trailer.timestamp
            segment.last_chunk = trailer.last_chunk
            segment.places = None
            self._to.timestamp = max(self._to.timestamp, int(trailer.timestamp))
        segment.position = segment.size
        segment.closed = True

    def _scan(self, segment: StreamSegment, last: bool) -> None:
        """Read a segment through; the last one's torn end is cut off, and what is left of it is on the disk then."""
        to = self._to
        walk = Walk(segment, SEGMENT_HEADER, segment.size)
        following = int(segment.first)
        while walk.position < segment.size:
            chunks = walk.block(self._files)
            for start, chunk in zip(walk.starts, chunks, strict=True):
                segment.position = start
                to.timestamp = max(to.timestamp, int(chunk.timestamp))
                if chunk.kind == MESSAGES:
                    segment.place(chunk.first, chunk.timestamp)
                    following = int(chunk.first + chunk.count)
                elif chunk.kind == OFFSETS and last:
                    to.offsets.update(read_offsets(chunk.payload))
        # An index in the last segment: the crash came before its successor.
        cut = int(walk.torn if walk.torn >= 0 else walk.index)
        for position, text in walk.damage:
            if not last or self._clean or walk.torn < 0 or position < walk.torn:
                self._report(segment, position, text)
        if last:
            self._cut(segment, cut if cut >= 0 else int(segment.size))
            to.next_offset = max(to.next_offset, following, int(walk.following))
        segment.end = segment.position = segment.size

    def _cut(self, segment: StreamSegment, size: int) -> None:
        """Synced even if nothing is cut off: what was read may have been in the cache only."""
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
