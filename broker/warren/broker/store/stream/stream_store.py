"""All streams of a broker: their folder, the threads that read them, and the removal of the files of deleted ones."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.file_system.files_protocol import Files
from warren.broker.store.file_system.memory_files import MemoryFiles
from warren.broker.store.log.group_commit import Gate
from warren.broker.store.log.log import Log
from warren.broker.store.stream.chunk_reader import StreamRead
from warren.broker.store.stream.stream_log import StreamLog
from warren.broker.store.stream.stream_recovery import StreamRecovery
from warren.broker.store.stream.stream_segment_writer import StreamSegmentWriter

READERS: Final = 2
"""Number of threads that read. With more than one, a read that waits for a slow disk does not hold up all others."""


class StreamStore:
    """The streams of one broker: their logs, the threads that read them, and the files of deleted streams.

    :param loop: the event loop on which the streams are used.
    :param folder: the data folder; None keeps the streams in memory.
    :param log: the log whose batches write the streams.
    :param gate: the definitions database: the files of a deleted stream stay until its deletion is on disk there.
    :param recovery: the streams that were found in the data folder.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: DataFolder | None = None,
        log: Log | None = None,
        gate: Gate | None = None,
        recovery: StreamRecovery | None = None,
    ) -> None:
        self.reading = 0
        """Number of reads whose callback has not been called yet."""
        self._loop = loop
        self._identity = folder.identity if folder is not None else 0
        self._folder_identity = folder.identity if folder is not None else None
        self._folder = folder.streams if folder is not None else "memory"
        self._files: Files = folder.files if folder is not None else MemoryFiles()
        self._log = log
        self._gate = gate
        self._recovered = recovery.streams if recovery is not None else {}
        self._dropped: list[tuple[int, list[str], int]] = []
        """Deleted streams, each as (change, files, incarnation). The files are removed when that change is on disk.

        It is the number of the change of the definitions database that deletes the stream."""
        self._memory_writer = StreamSegmentWriter(self._files, sync=False)
        self._executor: ThreadPoolExecutor | None = None
        if log is not None:
            if gate is not None:
                gate.watch(self._remove_dropped)
            if recovery is not None and recovery.unknown:
                log.delete_stream_segments(recovery.unknown)

    def log(self, incarnation: int, now_ms: Callable[[], int]) -> StreamLog:
        """Return the log of a stream: the recovered one, or a new one.

        :param incarnation: the unique number of the stream in the data folder.
        :param now_ms: returns the time in milliseconds since 1970.
        """
        log = StreamLog(
            self._identity,
            incarnation % 2**64,
            self._folder,
            self._files,
            self._log,
            self._write_soon,
            now_ms,
        )
        recovered = self._recovered.pop(incarnation, None)
        if recovered is not None:
            log.segments = recovered.segments
            log.next_offset = log.committed = recovered.next_offset
            log.timestamp = recovered.timestamp
            log.offsets = recovered.offsets
            log.producers.restore(recovered.producers)
        log.on_removed = self._remove
        return log

    def new_identity(self, incarnation: int) -> str:
        """Return a text that identifies a stream: the same after each start of the broker, and never that of another.

        :param incarnation: the unique number of the stream in the data folder.
        """
        if self._folder_identity is None:
            return secrets.token_hex(16)
        return f"{self._folder_identity:016x}{incarnation % 2**64:016x}"

    def read(self, read: StreamRead, done: Callable[[StreamRead], None]) -> None:
        """Read chunks of a stream from its file in a thread, or from memory at once.

        :param read: the segment and position to read; the result is stored in it, too.
        :param done: called with `read` on the event loop when it has its result.
        """
        self.reading += 1
        if self._log is None:
            read.run(self._files)
            self._loop.call_soon(self._done, read, done)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(READERS, "warren-stream")
        executor = self._executor
        executor.submit(self._run, read, done)

    def drop(self, log: StreamLog) -> None:
        """Remove the files of a deleted stream as soon as its deletion is on disk in the definitions database.

        The caller has submitted the deletion before. If the files were removed earlier, a crash could bring the stream
        back without its messages.
        """
        paths = log.drop()
        if self._log is None:
            self._memory_writer.remove(paths)
        elif paths or log.next_offset:
            change = self._gate.submitted if self._gate is not None else 0
            self._dropped.append((change, paths, log.incarnation))
            self._remove_dropped()

    def close(self) -> None:
        """End the reading threads. Call it when no consumer is left."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(cancel_futures=True)

    def _run(self, read: StreamRead, done: Callable[[StreamRead], None]) -> None:
        read.run(self._files)
        self._loop.call_soon_threadsafe(self._done, read, done)

    def _done(self, read: StreamRead, done: Callable[[StreamRead], None]) -> None:
        self.reading -= 1
        done(read)

    def _write_soon(self, log: StreamLog) -> None:
        self._loop.call_soon(self._write, log)

    def _write(self, log: StreamLog) -> None:
        part = log.take_batch()
        if part is None:
            return
        for write in part.writes:
            self._memory_writer.write(write, b"".join(write.pieces))
        log.commit(part)

    def _remove(self, paths: list[str]) -> None:
        if self._log is None:
            self._memory_writer.remove(paths)
        else:
            self._log.delete_stream_segments(paths)

    def _remove_dropped(self) -> None:
        committed = self._gate.committed if self._gate is not None else 0
        while self._dropped and self._dropped[0][0] <= committed:
            assert self._log is not None
            _, paths, incarnation = self._dropped.pop(0)
            self._log.delete_stream_segments(paths, incarnation)


__all__ = ["StreamStore"]
