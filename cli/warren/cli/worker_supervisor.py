"""Several processes of one App: started, watched, started again after an end, drained together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from warren.core.errors import ExitStatus

STATUS_VARIABLE: Final = "WARREN_RUN_STATUS"
"""In the environment of a worker: the number of the file that it tells its state on."""
READY: Final = b"+"
NOT_READY: Final = b"-"
FIRST_WAIT_SECONDS: Final = 0.5
LONGEST_WAIT_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 30.0
"""A worker that was ready for so long has not failed at its start."""


class Worker:
    """One process, and the next one after it ended.

    Its standard input is a pipe that ends with the supervisor, so that no worker outlives it.
    """

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        self.ready = False
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._failures = 0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def live(self, changed: Callable[[], None], obsolete: Callable[[], bool]) -> int:
        """One process from its start to its end: its exit status, negative for a signal.

        :param changed: called when it becomes ready, or is no longer.
        :param obsolete: whether it was to end while it was about to start, so that it got no signal.
        """
        reading, writing = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, **self._environment, STATUS_VARIABLE: str(writing)},
                pass_fds=(writing,),
                # Ctrl+C in a terminal is for the supervisor, which passes it on once.
                process_group=0,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        loop = asyncio.get_running_loop()
        began = loop.time()
        if obsolete():
            self.signal(signal.SIGTERM)
        listening = asyncio.create_task(self._listen(reading, changed))
        try:
            # Not the end of the pipe: a process that the worker has started may hold it, and live on.
            status = await self._process.wait()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        self._failures = 0 if loop.time() - began >= STEADY_SECONDS else self._failures + 1
        if self.ready:
            self.ready = False
            changed()
        return status

    async def _listen(self, reading: int, changed: Callable[[], None]) -> None:
        async for state in _states(reading):
            if self.ready != (state == READY):
                self.ready = state == READY
                changed()

    def wait_seconds(self) -> float:
        """Before the next process: at random below a bound that doubles with each one that ended soon."""
        bound = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(self._failures, 10))
        return random.uniform(bound / 2, bound)


async def _states(reading: int) -> AsyncIterator[bytes]:
    """What the worker says."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while said := await reader.read(4096):
                yield said[-1:]
        finally:
            transport.close()


class Supervisor:
    """Keeps its workers running until it is asked to stop.

    :param restart_on_usage: whether a worker that ends with 2 (wrong use, which no restart cures) is waited for to be
        changed and started anew, as `--reload` does; else all end with 2.
    """

    def __init__(
        self, command: Sequence[str], count: int, environment: Mapping[str, str], *, restart_on_usage: bool
    ) -> None:
        self.workers = [Worker(number, command, environment) for number in range(1, count + 1)]
        self.on_ready: Callable[[], None] = lambda: None
        self._restart_on_usage = restart_on_usage
        self._stopping = asyncio.Event()
        self._again = asyncio.Event()
        self._status: int = ExitStatus.SUCCESS

    @property
    def ready(self) -> bool:
        """Every worker is."""
        return not self._stopping.is_set() and all(worker.ready for worker in self.workers)

    async def run(self) -> int:
        """Until all workers have ended after `stop`: the exit status."""
        await asyncio.gather(*(self._keep(worker) for worker in self.workers))
        return self._status

    def stop(self) -> None:
        """Drain all; asked again, each worker stops at once."""
        self._stopping.set()
        self._again.set()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    def restart(self) -> None:
        """Drain all, and start them anew: their modules have changed."""
        self._again.set()
        self._again = asyncio.Event()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    async def _keep(self, worker: Worker) -> None:
        while not self._stopping.is_set():
            again = self._again
            status = await worker.live(self._changed, self._obsolete(again))
            if self._stopping.is_set():
                return
            if again.is_set():
                continue
            if status == ExitStatus.USAGE and not self._restart_on_usage:
                self._status = ExitStatus.USAGE
                self.stop()
                return
            if status == ExitStatus.USAGE:
                say(f"worker {worker.number} waits for a change")
                await again.wait()
                continue
            seconds = worker.wait_seconds()
            say(f"worker {worker.number} ended with {_shown(status)}; again in {seconds:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await again.wait()

    def _obsolete(self, again: asyncio.Event) -> Callable[[], bool]:
        return lambda: self._stopping.is_set() or again.is_set()

    def _changed(self) -> None:
        if self.ready:
            self.on_ready()


def say(text: str) -> None:
    print(f"warren run: {text}", file=sys.stderr, flush=True)


def _shown(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
