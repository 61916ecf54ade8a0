"""The log's writer thread: writes and syncs batches, deletes segments, reads segments for compaction and indexes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from warren.broker.store.errors import reason
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.index.index_format import index_path
from warren.broker.store.index.index_job import IndexJob
from warren.broker.store.log.clean_stop import write_clean_stop
from warren.broker.store.log.segment_reader import segment_path
from warren.broker.store.log.segment_writer import SegmentWriter
from warren.broker.store.log.writer_jobs import (
    Batch,
    CleanEnd,
    CompactionRead,
    DeleteSegments,
    DeleteStreamSegments,
    Job,
    JobQueue,
    SegmentWrite,
    StopWriter,
)
from warren.broker.store.stream.stream_log import StreamWrite
from warren.broker.store.stream.stream_segment_writer import StreamSegmentWriter

_Argument = TypeVar("_Argument")


class WriterListener(Protocol):
    """Receiver of the writer thread's reports. The calls are made on the event loop."""

    def on_batch_written(self, batch: Batch) -> None:
        """Handle a batch that was written, and synced if it is durable."""

    def on_compaction_read(self, part: CompactionRead) -> None:
        """Handle a finished compaction job: `part.records` were read, or `part.error` says why they could not be."""

    def on_index_progress(self, job: IndexJob) -> None:
        """Handle one step of an index job: a part of the segment was read, the index was written, or the job failed."""

    def on_disk_space(self, enough: bool) -> None:
        """Handle a full disk, or a disk that has room again.

        :param enough: False after each attempt to write that finds no room; True after the first that succeeds again.
        """

    def on_write_failure(self, text: str) -> None:
        """Handle a disk failure, after which the thread writes nothing more.

        :param text: description of the failure.
        """

    def on_writer_stopped(self) -> None:
        """Handle the end of the writer thread."""


class CallSoon(Protocol):
    """Type of `loop.call_soon_threadsafe`."""

    def __call__(self, callback: Callable[..., object], *arguments: object) -> object: ...


class WriterThread:
    """Thread that does the jobs of a log, such as writing a batch, in order.

    After a failed write or sync nothing more is written: the content of that file on disk is unknown, and the kernel
    may have dropped the pages, so that a second sync could succeed without them. Only on a full disk does the thread
    wait: it cuts the file back to the start of the batch and tries the batch again.

    :param folder: the folder of the log's segments.
    :param call_soon: schedules the reports on the event loop.
    :param retry: seconds between attempts to write to a full disk.
    :param sync: False never to sync a file, for `Sync.OFF`.
    :param preallocate: bytes by which a segment's file is made longer at a time; 0 turns it off.
    """

    def __init__(
        self,
        folder: str,
        files: Files,
        call_soon: CallSoon,
        listener: WriterListener,
        *,
        retry: float,
        sync: bool,
        preallocate: int,
    ) -> None:
        self.jobs: JobQueue = queue.SimpleQueue()
        self._folder = folder
        self._files = files
        self._call_soon = call_soon
        self._listener = listener
        self._retry = retry
        self._failed = False
        self._segment = SegmentWriter(folder, files, preallocate, sync)
        self._streams = StreamSegmentWriter(files, sync)
        self._thread = threading.Thread(target=self._run, name="warren-log", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Block until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        stop = None
        try:
            while stop is None:
                stop = self._do(self.jobs.get())
        finally:
            self._segment.close()
            self._streams.close()
            self._call_soon(self._listener.on_writer_stopped)

    def _do(self, job: Job) -> StopWriter | None:
        if isinstance(job, Batch):
            return None if self._failed else self._write_batch(job)
        if isinstance(job, StopWriter):
            if job.end is not None and not self._failed:
                self._guard("mark the log as closed", self._mark_clean, job.end)
            return job
        if self._failed:
            return None
        if isinstance(job, DeleteSegments):
            self._guard("remove old segments of the log", self._delete_segments, job.segments)
        elif isinstance(job, DeleteStreamSegments):
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
        self._call_soon(self._listener.on_write_failure, text)

    def _write_batch(self, batch: Batch) -> StopWriter | None:
        # Streams first: a message that was dead-lettered to a stream must be there before it is gone from the log.
        writes: list[SegmentWrite | StreamWrite] = [write for part in batch.streams for write in part.writes]
        writes += batch.writes
        for write in writes:
            data = b"".join(write.pieces)
            waited = False
            while True:
                try:
                    fitted = self._write(write, data, batch.durable)
                except OSError as error:
                    self._fail(f"cannot write the log in {self._folder}: {reason(error)}")
                    return None
                if fitted:
                    break
                waited = True
                self._call_soon(self._listener.on_disk_space, False)
                if (stop := self._wait_for_space()) is not None:
                    return stop
                if self._failed:
                    return None
            if waited:
                self._call_soon(self._listener.on_disk_space, True)
        self._call_soon(self._listener.on_batch_written, batch)
        return None

    def _wait_for_space(self) -> StopWriter | None:
        """Wait for room on a full disk: do another job if there is one, else wait `retry` seconds.

        Other jobs are done because the deletion of segments frees space.

        :return: the job that ends the thread, if it was next; else None.
        """
        try:
            return self._do(self.jobs.get(timeout=self._retry))
        except queue.Empty:
            return None

    def _write(self, write: SegmentWrite | StreamWrite, data: bytes, durable: bool) -> bool:
        """Write bytes to a segment of the log or of a stream, and sync the file if they have to be durable.

        :param write: the segment, and the file position at which the bytes begin.
        :param data: the bytes.
        :return: False if the disk is full; the file is then as it was before.
        """
        if isinstance(write, StreamWrite):
            return self._streams.write(write, data)
        return self._segment.write(write.segment, write.start, data, durable)

    def _delete_segments(self, segments: list[int]) -> None:
        for segment in segments:
            if segment == self._segment.number:
                self._segment.close()
            self._files.unlink(segment_path(self._folder, segment))
            self._files.unlink(index_path(self._folder, segment))
            # One at a time: if a younger segment could vanish before an older one, messages of the older one would come
            # back without their acknowledgements.
            self._files.sync_folder(self._folder)

    def _read(self, part: CompactionRead) -> None:
        size = 0
        try:
            self._finish_segment(part.reader.number)
            while size < part.size:
                record = part.reader.next()
                if record is None:
                    part.finished = True
                    break
                part.records.append(record)
                size += len(record.payload) + 64
        except OSError as error:
            part.error = f"cannot read the log in {self._folder}: {reason(error)}"
        self._call_soon(self._listener.on_compaction_read, part)

    def _index(self, job: IndexJob) -> None:
        try:
            self._finish_segment(job.number)
            job.run_slice()
        except OSError as error:
            job.finished = True
            job.error = f"cannot index segment {job.number} in {self._folder}: {reason(error)}"
        self._call_soon(self._listener.on_index_progress, job)

    def _mark_clean(self, end: CleanEnd) -> None:
        self._segment.finish()
        write_clean_stop(self._files, self._folder, end)

    def _finish_segment(self, segment: int) -> None:
        """Cut off the preallocated room of a segment that is closed and about to be read."""
        if segment == self._segment.number:
            self._segment.finish()


__all__ = ["CallSoon", "WriterListener", "WriterThread"]
