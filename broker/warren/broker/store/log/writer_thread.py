"""The log's worker thread: writes and syncs batches, unlinks segments, reads for compaction."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from warren.broker.store.errors import reason
from warren.broker.store.files import Files
from warren.broker.store.index.index_builder import IndexJob
from warren.broker.store.index.index_format import index_path
from warren.broker.store.log.record_format import Record
from warren.broker.store.log.segment_file import SegmentFile
from warren.broker.store.log.segment_reader import SegmentReader, segment_path
from warren.broker.store.stream.stream_files import StreamFiles
from warren.broker.store.stream.stream_log import StreamPart, StreamWrite

_Argument = TypeVar("_Argument")
CLEAN = "clean"
"""The file in the log's folder that says that the last stop was clean. It holds the last segment's number and
size; then, for each queue with messages that a crash before may have delivered, its incarnation and the last of them."""


class Chunk:
    """What a batch writes to one segment: `pieces`, back to back, from `start` on."""

    def __init__(self, segment: int, start: int, pieces: list[bytes]) -> None:
        self.segment = segment
        self.start = start
        self.pieces = pieces


class Batch:
    """What is made durable by one sync; it counts once change `change` of the definitions is committed
    too. One that holds nothing durable is written and not synced. `end` is the place behind its last byte."""

    def __init__(
        self,
        number: int,
        chunks: list[Chunk],
        size: int,
        change: int,
        end: int,
        durable: bool,
        streams: list[StreamPart],
    ) -> None:
        self.number = number
        self.chunks = chunks
        self.size = size
        self.change = change
        self.streams = streams
        self.end = end
        self.durable = durable


class Unlink:
    """Segments to remove, oldest first."""

    def __init__(self, segments: list[int]) -> None:
        self.segments = segments


class Removal:
    """Segments of streams to remove, oldest first."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths


class Slice:
    """Some records of a segment that is being compacted; `finished` says that there are no more."""

    def __init__(self, reader: SegmentReader, size: int) -> None:
        self.reader = reader
        self.size = size
        self.records: list[Record] = []
        self.finished = False
        self.error = ""


class Stop:
    """Ends the worker; with `end`, the last segment's number and size, and up to which sequence the messages of a queue
    may have been delivered, the stop is marked as clean."""

    def __init__(self, end: tuple[int, int, dict[int, int]] | None) -> None:
        self.end = end


class Listener(Protocol):
    """What the worker reports to. The calls are made on the loop."""

    def wrote(self, batch: Batch) -> None: ...

    def read(self, part: Slice) -> None: ...

    def indexed(self, job: IndexJob) -> None: ...

    def room(self, enough: bool) -> None: ...

    def failure(self, text: str) -> None: ...

    def stopped(self) -> None: ...


class Post(Protocol):
    """`loop.call_soon_threadsafe`."""

    def __call__(self, callback: Callable[..., object], *arguments: object) -> object: ...


class Writer:
    """One thread that works its jobs off in order.

    After a write or sync that failed nothing more is written: what the disk holds of that file is unknown,
    and the kernel may have dropped the pages, so that a second sync could succeed without them. Only a full
    disk is waited for: the file is cut back to where the batch began, and the batch tried again.
    """

    def __init__(
        self,
        folder: str,
        files: Files,
        post: Post,
        listener: Listener,
        *,
        retry: float,
        sync: bool,
        ahead: int,
    ) -> None:
        self.jobs: queue.SimpleQueue[Batch | Unlink | Removal | Slice | IndexJob | Stop] = queue.SimpleQueue()
        self._folder = folder
        self._files = files
        self._post = post
        self._listener = listener
        self._retry = retry
        self._failed = False
        self._segment = SegmentFile(folder, files, ahead, sync)
        self._streams = StreamFiles(files, sync)
        self._thread = threading.Thread(target=self._run, name="warren-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        stop = None
        try:
            while stop is None:
                stop = self._work(self.jobs.get())
        finally:
            self._segment.close()
            self._streams.close()
            self._post(self._listener.stopped)

    def _work(self, job: Batch | Unlink | Removal | Slice | IndexJob | Stop) -> Stop | None:
        if isinstance(job, Batch):
            return None if self._failed else self._batch(job)
        if isinstance(job, Stop):
            if job.end is not None and not self._failed:
                self._guard("mark the log as closed", lambda end: self._mark(*end), job.end)
            return job
        if self._failed:
            return None
        if isinstance(job, Unlink):
            self._guard("remove old segments of the log", self._unlink, job.segments)
        elif isinstance(job, Removal):
            self._guard("remove old segments of a stream", self._streams.remove, job.paths)
        elif isinstance(job, IndexJob):
            self._index(job)
        else:
            self._read(job)
        return None

    def _guard(self, doing: str, work: Callable[[_Argument], object], argument: _Argument) -> None:
        try:
            work(argument)
        except OSError as error:
            self._fail(f"cannot {doing} in {self._folder}: {reason(error)}")

    def _fail(self, text: str) -> None:
        self._failed = True
        self._post(self._listener.failure, text)

    def _batch(self, batch: Batch) -> Stop | None:
        # Streams first: a message that moved to one by dead-lettering must not be gone from the log before it is there.
        chunks: list[Chunk | StreamWrite] = [write for part in batch.streams for write in part.writes]
        chunks += batch.chunks
        for chunk in chunks:
            data = b"".join(chunk.pieces)
            waited = False
            while True:
                try:
                    fitted = self._write(chunk, data, batch.durable)
                except OSError as error:
                    self._fail(f"cannot write the log in {self._folder}: {reason(error)}")
                    return None
                if fitted:
                    break
                waited = True
                self._post(self._listener.room, False)
                if (stop := self._wait()) is not None:
                    return stop
                if self._failed:
                    return None
            if waited:
                self._post(self._listener.room, True)
        self._post(self._listener.wrote, batch)
        return None

    def _wait(self) -> Stop | None:
        """Other jobs for a while: old segments that are removed make the room that is waited for."""
        try:
            return self._work(self.jobs.get(timeout=self._retry))
        except queue.Empty:
            return None

    def _write(self, chunk: Chunk | StreamWrite, data: bytes, durable: bool) -> bool:
        """Write, and sync if it has to be durable; whether there was room."""
        if isinstance(chunk, StreamWrite):
            return self._streams.write(chunk, data)
        return self._segment.write(chunk.segment, chunk.start, data, durable)

    def _unlink(self, segments: list[int]) -> None:
        for segment in segments:
            if segment == self._segment.number:
                self._segment.close()
            self._files.unlink(segment_path(self._folder, segment))
            self._files.unlink(index_path(self._folder, segment))
            # One at a time: if a younger segment could vanish before an older one, the older one's dead would
            # rise.
            self._files.sync_folder(self._folder)

    def _read(self, part: Slice) -> None:
        size = 0
        try:
            self._whole(part.reader.number)
            while size < part.size:
                record = part.reader.next()
                if record is None:
                    part.finished = True
                    break
                part.records.append(record)
                size += len(record.payload) + 64
        except OSError as error:
            part.error = f"cannot read the log in {self._folder}: {reason(error)}"
        self._post(self._listener.read, part)

    def _index(self, job: IndexJob) -> None:
        try:
            self._whole(job.number)
            job.work()
        except OSError as error:
            job.finished = True
            job.error = f"cannot index segment {job.number} in {self._folder}: {reason(error)}"
        self._post(self._listener.indexed, job)

    def _mark(self, segment: int, size: int, delivered: dict[int, int]) -> None:
        files = self._files
        lines = [b"%d %d\n" % (segment, size)]
        lines += [b"%d %d\n" % (incarnation, until) for incarnation, until in delivered.items()]
        self._segment.finish()
        handle = files.open(f"{self._folder}/{CLEAN}")
        try:
            files.write(handle, b"".join(lines), 0)
            files.sync(handle)
        finally:
            files.close(handle)
        files.sync_folder(self._folder)

    def _whole(self, segment: int) -> None:
        """Have a segment that nothing more is written to, and that is to be read, end where its records end."""
        if segment == self._segment.number:
            self._segment.finish()


__all__ = ["CLEAN", "Batch", "Chunk", "Listener", "Post", "Removal", "Slice", "Stop", "Unlink", "Writer"]
