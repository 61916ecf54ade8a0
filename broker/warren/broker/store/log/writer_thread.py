"""The log's writer thread: writes and syncs batches, deletes segments, reads segments for compaction and indexes."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from warren.broker.store.errors import reason
from warren.broker.store.file_system.files_protocol import SHORTAGE_ERRORS, Files
from warren.broker.store.index.index_format import index_path
from warren.broker.store.index.index_job import IndexJob
from warren.broker.store.log.clean_stop import write_clean_stop
from warren.broker.store.log.segment_reader import segment_path
from warren.broker.store.log.segment_writer import SegmentWriter
from warren.broker.store.log.write_statistics import WriteStatistics
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
from warren.broker.store.manifest.manifest import Manifest
from warren.broker.store.stream.chunk_format import parse_segment_name
from warren.broker.store.stream.stream_log import StreamWrite
from warren.broker.store.stream.stream_segment_writer import StreamSegmentWriter

logger = logging.getLogger(__name__)

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
    :param manifest: the manifest of the data folder. From now on only this thread uses it.
    :param call_soon: schedules the reports on the event loop.
    :param retry: seconds between attempts to write to a full disk.
    :param sync: False never to sync a file, for `Sync.OFF`.
    :param preallocate: bytes by which a segment's file is made longer at a time; 0 turns it off.
    :param identity: the data folder's random number.
    """

    def __init__(
        self,
        folder: str,
        files: Files,
        manifest: Manifest,
        call_soon: CallSoon,
        listener: WriterListener,
        *,
        retry: float,
        sync: bool,
        preallocate: int,
        identity: int,
    ) -> None:
        self.jobs: JobQueue = queue.SimpleQueue()
        self._folder = folder
        self._files = files
        self._call_soon = call_soon
        self._listener = listener
        self._retry = retry
        self._failed = False
        self.statistics = WriteStatistics()
        """Sizes and durations of what this thread writes; only this thread adds to it."""
        self._segment = SegmentWriter(folder, files, preallocate, sync, self.statistics)
        self._streams = StreamSegmentWriter(files, sync, self.statistics)
        self._manifest = manifest
        self._manifest.sync = sync
        self._identity = identity
        self._next_job: Job | None = None
        """A job that was taken from the queue to see whether it can be done together with the one before."""
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
                job, self._next_job = self._next_job, None
                stop = self._do(self.jobs.get() if job is None else job)
        finally:
            self._segment.close()
            self._streams.close()
            self._manifest.close()
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
            self._guard("remove old segments of the log", self._delete_segments, job)
        elif isinstance(job, DeleteStreamSegments):
            self._guard("remove old segments of a stream", self._delete_stream_segments, job)
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
        stream_writes = [write for part in batch.streams for write in part.writes]
        steps: list[Callable[[], bool]] = [partial(self._write_stream, write) for write in stream_writes]
        if stream_writes:
            steps.append(self._sync_stream_names)
        steps += [partial(self._write_log, write, batch.durable) for write in batch.writes]
        # Before anything in new segments is confirmed. One write for all of them.
        steps.append(partial(self._manifest.flush, batch.durable))
        for step in steps:
            waited = False
            while True:
                try:
                    fitted = step()
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
        self.statistics.batches.add(batch.size)
        self._call_soon(self._listener.on_batch_written, batch)
        return None

    def _wait_for_space(self) -> StopWriter | None:
        """Wait for room on a full disk: do another job if there is one, else wait `retry` seconds.

        Other jobs are done because the deletion of segments frees space.

        :return: the job that ends the thread, if it was next; else None.
        """
        job, self._next_job = self._next_job, None
        try:
            return self._do(self.jobs.get(timeout=self._retry) if job is None else job)
        except queue.Empty:
            return None

    def _write_log(self, write: SegmentWrite, durable: bool) -> bool:
        """Write bytes to a segment of the log, and sync the file if they have to be durable.

        :param write: the segment, the bytes, and the file position at which they begin.
        :return: False if the disk is full; the file is then as it was before.
        """
        if not self._segment.write(write.segment, write.start, write.parts(), durable):
            return False
        self._manifest.note_log_write(write.segment, write.end, durable)
        return True

    def _write_stream(self, write: StreamWrite) -> bool:
        """Write bytes to a segment of a stream, and sync the file.

        :param write: the segment, the bytes, and the file position at which they begin.
        :return: False if the disk is full; the file is then as it was before.
        """
        data = b"".join(write.pieces)
        if not self._streams.write(write, data):
            return False
        self._manifest.note_stream_write(
            write.incarnation, write.first, write.start + len(data), write.next_offset
        )
        return True

    def _sync_stream_names(self) -> bool:
        self._streams.sync_names()
        return True

    def _delete_segments(self, job: DeleteSegments) -> None:
        self._manifest.note_log_removals(job.segments)
        # Without room for this on a full disk the segments go all the same, because that makes room. Only a crash before
        # the next write would then report them as missing.
        self._manifest.flush()
        for segment in job.segments:
            if segment == self._segment.number:
                self._segment.close()
            path = segment_path(self._folder, segment)
            if segment in job.damaged:
                kept = f"{path}.damaged"
                self._files.rename(path, kept)
                logger.warning("event=log.damaged_segment_kept segment=%d path=%s", segment, kept)
            else:
                self._files.unlink(path)
            self._files.unlink(index_path(self._folder, segment))
            # One at a time: if a younger segment could vanish before an older one, messages of the older one would come
            # back without their acknowledgements.
            self._files.sync_folder(self._folder)

    def _delete_stream_segments(self, first: DeleteStreamSegments) -> None:
        """Delete segments of streams, together with those of the jobs of the same kind that follow in the queue."""
        jobs = [first]
        while self._next_job is None:
            try:
                job = self.jobs.get_nowait()
            except queue.Empty:
                break
            if isinstance(job, DeleteStreamSegments):
                jobs.append(job)
            else:
                self._next_job = job
        paths = [path for job in jobs for path in job.paths]
        named = [parse_segment_name(os.path.basename(path)) for path in paths]
        self._manifest.note_stream_removals([segment for segment in named if segment is not None])
        for job in jobs:
            if job.dropped >= 0:
                self._manifest.forget_stream(job.dropped)
        self._manifest.flush()
        self._streams.remove(paths)

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
            part.is_shortage = error.errno in SHORTAGE_ERRORS
        self._call_soon(self._listener.on_compaction_read, part)

    def _index(self, job: IndexJob) -> None:
        try:
            self._finish_segment(job.number)
            job.run_slice()
        except OSError as error:
            job.finished = True
            job.error = f"cannot index segment {job.number} in {self._folder}: {reason(error)}"
            job.is_shortage = error.errno in SHORTAGE_ERRORS
        self._call_soon(self._listener.on_index_progress, job)

    def _mark_clean(self, end: CleanEnd) -> None:
        self._segment.finish()
        check = write_clean_stop(self._files, self._folder, end, self._identity)
        self._manifest.note_clean_stop(check)
        self._manifest.flush()

    def _finish_segment(self, segment: int) -> None:
        """Cut off the preallocated room of a segment that is closed and about to be read."""
        if segment == self._segment.number:
            self._segment.finish()


__all__ = ["CallSoon", "WriterListener", "WriterThread"]
