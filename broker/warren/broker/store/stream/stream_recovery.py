"""Crash recovery of streams: segments, next offset and stored offsets.

Only the last segment of a stream is read whole, and others if they are damaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.errors import StoreError, disk_error
from warren.broker.store.manifest.manifest import Manifest
from warren.broker.store.manifest.synced_marks import StreamMark
from warren.broker.store.stream.chunk_format import (
    MESSAGES,
    OFFSETS,
    PRODUCERS,
    SEGMENT_HEADER,
    TRAILER,
    VERSION,
    Trailer,
    decode_offsets,
    decode_trailer,
    parse_segment_name,
    segment_version,
)
from warren.broker.store.stream.chunk_reader import ChunkScanner
from warren.broker.store.stream.producer_ids import update_ids
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
    producers: dict[bytes, int] = field(default_factory=dict)
    """Last publishing ids of producers by name."""


@dataclass
class StreamRecovery:
    """Result of `recover_streams`: the streams, the damage found, and the files that belong to no known stream."""

    streams: dict[int, RecoveredStream] = field(default_factory=dict)
    """The streams by incarnation (the unique number of a stream in the data folder)."""
    damage: list[str] = field(default_factory=list)
    """Descriptions of the damaged places, one line each."""
    unknown: list[str] = field(default_factory=list)
    """Paths of segments that belong to no known stream."""


def recover_streams(data: DataFolder, known: set[int], clean: bool, manifest: Manifest) -> StreamRecovery:
    """Read the streams of a data folder, compare them with the manifest, and cut off their torn ends.

    A torn end is an incompletely written one.

    :param known: the existing streams, each by its incarnation (its unique number in the data folder).
    :param clean: True if the last stop was clean: a torn end is then reported as damage.
    :param manifest: the manifest of the folder. It gets the segments that were found.
    :raises StoreError: a segment cannot be read or written, or is of an unknown format version.
    """
    found = StreamRecovery()
    folder, files = data.streams, data.files
    try:
        firsts: dict[int, list[int]] = {incarnation: [] for incarnation in _known_streams(manifest, known)}
        for name in files.names(folder):
            named = parse_segment_name(name)
            if named is None:
                continue
            path = f"{folder}/{name}"
            if named in manifest.removed_streams and named not in manifest.streams:
                manifest.leftovers.append(path)
            elif named[0] in known:
                firsts.setdefault(named[0], []).append(named[1])
            else:
                found.unknown.append(path)
        for incarnation in sorted(firsts):
            scan = _StreamScan(incarnation, data, clean, manifest, found.damage)
            found.streams[incarnation] = scan.read(sorted(firsts[incarnation]))
        gone = {incarnation for incarnation, _ in manifest.streams} - known
        for incarnation in (*gone, *(manifest.next_offsets.keys() - known)):
            manifest.next_offsets.pop(incarnation, None)
        for segment in [segment for segment in manifest.streams if segment[0] in gone]:
            del manifest.streams[segment]
    except OSError as error:
        raise disk_error(f"recover the streams in {folder}", error) from None
    return found


def _known_streams(manifest: Manifest, known: set[int]) -> set[int]:
    """Return the existing streams that were ever written to, by incarnation, as far as the manifest names them."""
    named = {incarnation for incarnation, _ in manifest.streams}
    return known.intersection(named | manifest.next_offsets.keys() | manifest.marks.streams.keys())


class _StreamScan:
    """Recovery of one stream from its segments: reads them, reports damage, and cuts off a torn end.

    :param clean: True if the last stop was clean.
    """

    def __init__(
        self, incarnation: int, data: DataFolder, clean: bool, manifest: Manifest, damage: list[str]
    ) -> None:
        self._incarnation = incarnation
        self._data = data
        self._files = data.files
        self._clean = clean
        self._manifest = manifest
        self._damage = damage
        self._result = RecoveredStream()
        self._mark = manifest.marks.streams.get(incarnation, StreamMark(-1, 0, 0))
        self._floor = max(manifest.next_offsets.get(incarnation, 0), self._mark.next_offset)
        """Offset below which all offsets were given out."""
        self._removed_files = False

    def read(self, firsts: list[int]) -> RecoveredStream:
        """Read the segments.

        :param firsts: the first offsets of the existing segments, in order.
        """
        result, manifest, incarnation = self._result, self._manifest, self._incarnation
        missing = self._compare(firsts)
        folder, identity = self._data.streams, self._data.identity
        segments = [StreamSegment(identity, incarnation, first, folder) for first in firsts]
        damaged = {segment.path for segment in segments if not self._check_header(segment)}
        while segments:
            last = segments[-1]
            self._scan(
                last, True, min([first for first in missing if first > last.first], default=self._floor)
            )
            if last.timestamp >= 0 or last.position > SEGMENT_HEADER or len(segments) == 1:
                break
            # Begun at the moment of a crash: nothing in it was confirmed.
            self._remove(last)
            segments.pop()
        for at, segment in enumerate(segments[:-1]):
            self._read_closed(segment, int(segments[at + 1].first))
        for segment in segments:
            if segment.path in damaged and segment.size >= SEGMENT_HEADER:
                self._report(segment, 0, "its header is damaged")
        result.segments = segments
        if segments and segments[-1].position < SEGMENT_HEADER:
            # The stream's very first segment, whose beginning was not written: its name holds the next offset.
            result.next_offset = max(result.next_offset, int(segments[-1].first))
            self._remove(segments.pop())
        result.next_offset = max(result.next_offset, self._floor)
        for key in [key for key in manifest.streams if key[0] == incarnation]:
            del manifest.streams[key]
        following = [*(int(segment.first) for segment in segments[1:]), result.next_offset]
        for segment, next_offset in zip(segments, following, strict=False):
            manifest.streams[(incarnation, int(segment.first))] = (int(segment.size), next_offset)
        manifest.next_offsets[incarnation] = result.next_offset
        if self._removed_files:
            self._files.sync_folder(folder)
        return result

    def _compare(self, firsts: list[int]) -> set[int]:
        """Report segments that are missing, and segments that the manifest does not name.

        :param firsts: the first offsets of the existing segments, in order.
        :return: the first offsets of the missing segments.
        """
        manifest, incarnation = self._manifest, self._incarnation
        expected = {first for number, first in manifest.streams if number == incarnation}
        if not manifest.is_usable:
            if self._mark.first >= 0:
                expected.add(self._mark.first)
        else:
            removed = [first for number, first in manifest.removed_streams if number == incarnation]
            newest = max([*expected, *removed], default=-1)
            stopped = self._clean or manifest.clean_check >= 0
            for first in firsts:
                if first not in expected and (stopped or first < newest):
                    text = f"stream {incarnation}: segment {first} is not one that the stream had at the last stop"
                    self._damage.append(text)
        missing = expected.difference(firsts)
        for first in sorted(missing):
            later = [other for other in (*expected, *firsts) if other > first]
            end = min(later, default=self._floor)
            lost = f"{_describe_messages(first, end)} lost" if end > first else "it held no message"
            if not later:
                lost += "; the offsets that consumers stored last may be lost"
            self._damage.append(f"stream {incarnation}: segment {first} is missing: {lost}")
        return missing

    def _confirmed(self, segment: StreamSegment) -> int:
        """Return how many bytes of a segment are known to have been synced; 0 if that is not known."""
        recorded = self._manifest.streams.get((self._incarnation, int(segment.first)), (0, 0))[0]
        return max(recorded, self._mark.size if self._mark.first == segment.first else 0)

    def _check_header(self, segment: StreamSegment) -> bool:
        """Check the format version in a segment's header. Return False if the header is damaged."""
        segment.size = self._files.size(segment.path)
        version = segment_version(self._files.read(segment.path, 0, SEGMENT_HEADER), segment.seed)
        if version > VERSION:
            raise StoreError(
                f"{segment.path} has format version {version}, but this broker reads versions up to {VERSION}; "
                "start it with the version of Warren that wrote it"
            )
        return version > 0

    def _read_closed(self, segment: StreamSegment, following: int) -> None:
        """Read the trailer of a segment that is not the last; if it is damaged, read the segment whole.

        :param following: first offset of the next segment.
        """
        trailer = self._trailer(segment)
        if trailer is None:
            self._scan(segment, False, following)
        else:
            segment.end = trailer.position
            segment.timestamp = trailer.timestamp
            segment.last_chunk = trailer.last_chunk
            segment.sparse_index = None
            segment.index_is_stored = True
            self._result.timestamp = max(self._result.timestamp, int(trailer.timestamp))
            if not self._manifest.is_usable and trailer.next_offset < following:
                lost = _describe_messages(int(trailer.next_offset), following)
                self._damage.append(f"stream {self._incarnation}: {lost} missing")
        segment.position = segment.size
        segment.closed = True

    def _trailer(self, segment: StreamSegment) -> Trailer | None:
        data = self._files.read(segment.path, max(segment.size - TRAILER, 0), TRAILER)
        return decode_trailer(data, segment.seed)

    def _scan(self, segment: StreamSegment, last: bool, expected: int) -> None:
        """Read a segment whole. If it is the last one, cut off its incompletely written end and sync the rest.

        :param expected: the stream's next offset at the end of the segment, as far as it is known.
        """
        result = self._result
        found_size = int(segment.size)
        scanner = ChunkScanner(segment, SEGMENT_HEADER, segment.size)
        if last:
            result.producers = {}
        following = int(segment.first)
        while scanner.position < segment.size:
            chunks = scanner.next_chunks(self._files)
            for start, chunk in zip(scanner.starts, chunks, strict=True):
                segment.position = start
                result.timestamp = max(result.timestamp, int(chunk.timestamp))
                if chunk.kind == MESSAGES:
                    segment.add_chunk(chunk.first, chunk.timestamp)
                    following = max(following, int(chunk.first + chunk.count))
                    if last:
                        update_ids(result.producers, chunk)
                elif chunk.kind == PRODUCERS and last:
                    result.producers = decode_offsets(chunk.payload)
                elif chunk.kind == OFFSETS and last:
                    result.offsets.update(decode_offsets(chunk.payload))
        following = max(following, int(scanner.following))
        confirmed = self._confirmed(segment)
        places = []
        for position, text in scanner.damage:
            if not last or self._clean or scanner.torn < 0 or position < max(scanner.torn, confirmed):
                places.append((position, text))
        if not last:
            places.append((found_size, "its end is damaged"))
        elif found_size < confirmed and (not places or scanner.torn < 0):
            places.append((found_size, f"it was at least {confirmed} bytes long and is {found_size} now"))
        lost = ""
        if expected > following:
            lost = f"{_describe_messages(following, expected)} lost"
            if not places:
                places.append((found_size, "its end is missing"))
        for position, text in places[:-1]:
            self._report(segment, position, text)
        for position, text in places[-1:]:
            self._report(segment, position, f"{text}: {lost}" if lost else text)
        chunks_end = int(segment.size)
        if last:
            if scanner.torn < 0 and scanner.index >= 0 and self._trailer(segment) is not None:
                # The crash came before its successor.
                chunks_end = int(scanner.index)
                segment.closed = True
                self._cut(segment, found_size)
            elif scanner.torn >= 0:
                self._cut(segment, min(max(int(scanner.torn), confirmed), found_size))
            else:
                self._cut(segment, int(scanner.index) if scanner.index >= 0 else found_size)
            segment.is_damaged = expected > following
            result.next_offset = max(result.next_offset, following)
        segment.position = segment.size
        segment.end = chunks_end if segment.closed else segment.size

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
        self._removed_files = True

    def _report(self, segment: StreamSegment, position: int, text: str) -> None:
        self._damage.append(f"stream {self._incarnation}, segment {segment.first}, offset {position}: {text}")


def _describe_messages(first: int, end: int) -> str:
    """Return a text for the messages from one offset to another (exclusive), with the verb."""
    return f"message {first} is" if end == first + 1 else f"messages {first} to {end - 1} are"


__all__ = ["RecoveredStream", "StreamRecovery", "recover_streams"]
