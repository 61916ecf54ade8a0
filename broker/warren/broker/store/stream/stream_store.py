"""All streams of a broker: where their segments are, who reads them, and when the files of deleted ones go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from warren.broker.store.data_folder import DataFolder
from warren.broker.store.files import Files
from warren.broker.store.log.log import Gate, Log
from warren.broker.store.memory_files import MemoryFiles
from warren.broker.store.stream.chunk_reader import StreamRead
from warren.broker.store.stream.stream_files import StreamFiles
from warren.broker.store.stream.stream_log import StreamLog
from warren.broker.store.stream.stream_recovery import StreamRecovery

READERS: Final = 2
"""Threads that read: one that waits for a slow disk does not hold up them all."""


class Streams:
    """The streams of one broker, by incarnation. Made on the loop that they live on.

    :param recovery: what was found in the data folder; None keeps the streams in memory.
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
        """Reads whose end is yet to be told."""
        self._loop = loop
        self._identity = folder.identity if folder is not None else 0
        self._folder = folder.streams if folder is not None else "memory"
        self._files: Files = folder.files if folder is not None else MemoryFiles()
        self._log = log
        self._gate = gate
        self._recovered = recovery.streams if recovery is not None else {}
        self._dropped: list[tuple[int, list[str]]] = []
        """Files of deleted streams, each with the change of the definitions that has to be on the disk before they go."""
        self._memory = StreamFiles(self._files, sync=False)
        self._executor: ThreadPoolExecutor | None = None
        if log is not None:
            if gate is not None:
                gate.watch(self._tidy)
            if recovery is not None and recovery.unknown:
                log.remove(recovery.unknown)

    def log(self, incarnation: int, now_ms: Callable[[], int]) -> StreamLog:
        """The log of a stream, new or recovered."""
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
        log.on_removed = self._remove
        return log

    def read(self, read: StreamRead, done: Callable[[StreamRead], None]) -> None:
        """Do a read in a thread and call back on the loop; from memory at once."""
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
        """The stream is deleted, its deletion submitted to the definitions before: its files go after that."""
        paths = log.drop()
        if self._log is None:
            self._memory.remove(paths)
        elif paths:
            self._dropped.append((self._gate.submitted if self._gate is not None else 0, paths))
            self._tidy()

    def close(self) -> None:
        """No more reads; called when no consumer is left."""
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
        part = log.cut()
        if part is None:
            return
        for write in part.writes:
            self._memory.write(write, b"".join(write.pieces))
        log.commit(part)

    def _remove(self, paths: list[str]) -> None:
        if self._log is None:
            self._memory.remove(paths)
        else:
            self._log.remove(paths)

    def _tidy(self) -> None:
        committed = self._gate.committed if self._gate is not None else 0
        while self._dropped and self._dropped[0][0] <= committed:
            assert self._log is not None
            self._log.remove(self._dropped.pop(0)[1])


__all__ = ["Streams"]
