"""One run of a stream on a simulated disk, written through the log and read from any offset or time."""

from __future__ import annotations

from collections.abc import Iterable

from tests.unit.store.log_run import LogRun
from tests.unit.store.simulated_disk import Disk
from warren.broker.store.stream.chunk_format import SEGMENT_HEADER, Chunk
from warren.broker.store.stream.chunk_reader import BY_OFFSET, BY_POSITION, BY_TIME, StreamRead
from warren.broker.store.stream.stream_log import StreamLog
from warren.broker.store.stream.stream_store import StreamStore

INCARNATION = 1
STREAMS = "/disk/streams"


class StreamRun(LogRun):
    """One run of a log with one stream, whose clock the test sets."""

    def __init__(
        self,
        disk: Disk,
        known: Iterable[int] = (INCARNATION,),
        *,
        now: int = 1000,
        segment_size: int = 4096,
    ) -> None:
        super().__init__(disk, set(known), segment_size=segment_size)
        self.now = now
        self.streams = StreamStore(self.loop, disk.folder(), self.log, self.gate, self.found)
        self.log.streams = self.streams
        self.stream: StreamLog = self.streams.log(INCARNATION, lambda: self.now)
        self.damage: list[str] = []

    def append(self, *bodies: bytes) -> None:
        for body in bodies:
            self.stream.append(b"", body)

    def read(self, how: int = BY_OFFSET, target: int = 0) -> dict[int, bytes]:
        """Return the messages on disk from an offset or a time on, by offset."""
        found: dict[int, bytes] = {}
        segments = list(self.stream.segments)
        if not segments:
            return found
        if how == BY_TIME:
            start = next((s for s in segments if s.timestamp >= target), segments[-1])
        else:
            start = next((s for s in reversed(segments) if s.first <= target), segments[0])
        read = StreamRead(start, how, target, 0)
        for segment in segments[segments.index(start) :]:
            if segment is not start:
                read = StreamRead(segment, BY_POSITION, 0, SEGMENT_HEADER)
            while True:
                read.run(self.disk)
                assert not read.error, read.error
                self.damage += [text for _, text in read.damage]
                for chunk in read.chunks:
                    found.update(entries(chunk))
                if read.ended or read.segment_removed:
                    break
                read = StreamRead(segment, BY_POSITION, 0, read.position)
        return {offset: body for offset, body in found.items() if how == BY_TIME or offset >= target}

    def paths(self) -> list[str]:
        """Return the stream's segments on the disk, oldest first."""
        return self.disk.paths(STREAMS)


def entries(chunk: Chunk) -> dict[int, bytes]:
    """Return the messages of a chunk, by offset."""
    found = {}
    at = 0
    for offset in range(chunk.first, chunk.first + chunk.count):
        size = int.from_bytes(chunk.payload[at : at + 4], "little")
        found[offset] = chunk.payload[at + 4 : at + 4 + size]
        at += 4 + size
    assert at == len(chunk.payload)
    return found
