"""Supervision of worker processes: start, watch, restart with a backoff, and stop together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from warren.core.command_output import write_error
from warren.core.errors import ExitStatus
from warren.core.worker_number import WORKER_VARIABLE

STATUS_VARIABLE: Final = "WARREN_RUN_STATUS"
"""Environment variable that holds the number of the file descriptor to which a worker writes its states."""
WORKERS_VARIABLE: Final = "WARREN_RUN_WORKERS"
"""Environment variable that holds the number of workers."""
MOST_REASON: Final = 2000
"""Most characters of a reason that a worker reports, so that each state is written to the pipe as a whole."""
FIRST_WAIT_SECONDS: Final = 0.5
"""Upper bound, in seconds, of the random wait before a restart; each early end of the worker in a row doubles it."""
LONGEST_WAIT_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 30.0
"""Seconds that a worker must run so that its end is no early end, and the wait before its restart is short again."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """State of a worker that has loaded its App, which it writes to its pipe at each change.

    :ivar started: true if the start of its App has returned.
    :ivar ready: true if its App is ready.
    :ivar reason: why it is not ready, as far as it is known.
    """

    started: bool = False
    ready: bool = False
    reason: str | None = None

    def encode(self) -> bytes:
        """Return the line of the pipe."""
        reason = None if self.reason is None else self.reason[:MOST_REASON]
        return json.dumps({**asdict(self), "reason": reason}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> WorkerState:
        """Return the state of a line of the pipe."""
        return cls(**json.loads(line))


class Worker:
    """A worker process of `warren run`, which is started again when it ends.

    Its standard input is a pipe that is closed when the supervisor ends; the worker then stops, too.

    :param number: number of the worker in messages to the user, from 1 on
    :param command: program and arguments of the process
    :param environment: environment variables, by name, that the process gets in addition to those of this one
    """

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        self.state = WorkerState()
        self.loaded: asyncio.Event = asyncio.Event()
        """Set when a process of this worker has loaded its App, or has ended for another reason than wrong use."""
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """Process id; None before the first start."""
        return None if self._process is None else self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def run_once(self, changed: Callable[[], None], obsolete: Callable[[], bool]) -> int:
        """Start a process and wait for its end. Return the exit status, negative for a signal.

        :param changed: callback for the worker becoming ready, or not ready any more
        :param obsolete: returns True if the process has to stop again; called once after the start, because a signal
            to stop that was sent before the process existed is lost
        """
        reading, writing = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, **self._environment, STATUS_VARIABLE: str(writing)},
                pass_fds=(writing,),
                # Ctrl+C in a terminal must reach the supervisor only, which forwards it once.
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
        reader_task = asyncio.create_task(self._follow_state(reading, changed))
        try:
            # The end of the pipe is no sign of the worker's end: a child of the worker may keep it open.
            status = await self._process.wait()
        finally:
            reader_task.cancel()
            await asyncio.gather(reader_task, return_exceptions=True)
        if status != ExitStatus.USAGE:
            self.loaded.set()
        self._failures = 0 if loop.time() - began >= STEADY_SECONDS else self._failures + 1
        if self.state != WorkerState():
            self.state = WorkerState()
            changed()
        return status

    async def _follow_state(self, reading: int, changed: Callable[[], None]) -> None:
        async for state in _read_states(reading):
            self.loaded.set()
            if self.state != state:
                self.state = state
                changed()

    def wait_seconds(self) -> float:
        """Return the seconds to wait before the next start: a random number between half of a bound and the bound.

        The bound doubles each time in a row that the worker ends within STEADY_SECONDS of its start.
        """
        bound = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(self._failures, 10))
        return random.uniform(bound / 2, bound)


async def _read_states(reading: int) -> AsyncIterator[WorkerState]:
    """Yield the states that a worker writes to its pipe.

    :param reading: file descriptor of the pipe's reading end
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                yield WorkerState.decode(line)
        finally:
            transport.close()


class Supervisor:
    """Supervisor that keeps worker processes running until it is stopped.

    :param command: program and arguments of each worker process
    :param count: number of workers
    :param environment: environment variables, by name, that workers get in addition to those of this process
    :param restart_on_usage: reaction to a worker that ends with 2 (its App cannot be loaded): True to wait until
        `restart` is called, as with `--reload`; False to stop all workers and return 2
    """

    def __init__(
        self, command: Sequence[str], count: int, environment: Mapping[str, str], *, restart_on_usage: bool
    ) -> None:
        self.workers = [
            Worker(number, command, {**environment, WORKER_VARIABLE: f"{number}/{count}"})
            for number in range(1, count + 1)
        ]
        self.on_started: Callable[[], None] = lambda: None
        self.on_ready: Callable[[], None] = lambda: None
        self._was_started = self._was_ready = False
        self._restart_on_usage = restart_on_usage
        self._stopping = asyncio.Event()
        self._restart_requested = asyncio.Event()
        self._status: int = ExitStatus.SUCCESS

    @property
    def ready(self) -> bool:
        """True if all workers are ready."""
        return not self._stopping.is_set() and all(worker.state.ready for worker in self.workers)

    @property
    def started(self) -> bool:
        """True if the Apps of all workers have started, ready or not."""
        return not self._stopping.is_set() and all(worker.state.started for worker in self.workers)

    async def run(self) -> int:
        """Run until all workers have ended after `stop`, and return the exit status."""
        await asyncio.gather(*(self._keep(worker) for worker in self.workers))
        return self._status

    def stop(self) -> None:
        """Stop all workers gracefully. A second call stops them at once."""
        self._stopping.set()
        self._restart_requested.set()
        # Workers that have not been started yet wait for the first.
        self.workers[0].loaded.set()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    def restart(self) -> None:
        """Stop all workers gracefully and start them again; `--reload` calls it after a Python file has changed."""
        self._restart_requested.set()
        self._restart_requested = asyncio.Event()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    async def _keep(self, worker: Worker) -> None:
        if worker is not self.workers[0]:
            # An App that cannot be loaded is then reported once, not by every worker.
            await self.workers[0].loaded.wait()
        while not self._stopping.is_set():
            restart = self._restart_requested
            status = await worker.run_once(self._changed, self._obsolete(restart))
            if self._stopping.is_set():
                return
            if restart.is_set():
                continue
            if status == ExitStatus.USAGE and not self._restart_on_usage:
                self._status = ExitStatus.USAGE
                self.stop()
                return
            if status == ExitStatus.USAGE:
                print_status(f"worker {worker.number} waits for a change of its files")
                await restart.wait()
                continue
            seconds = worker.wait_seconds()
            print_status(
                f"worker {worker.number} ended with {_describe_status(status)}; restart in {seconds:.1f} s"
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await restart.wait()

    def _obsolete(self, restart: asyncio.Event) -> Callable[[], bool]:
        return lambda: self._stopping.is_set() or restart.is_set()

    def _changed(self) -> None:
        was_started, self._was_started = self._was_started, self.started
        was_ready, self._was_ready = self._was_ready, self.ready
        if self._was_started and not was_started:
            self.on_started()
        if self._was_ready and not was_ready:
            self.on_ready()


def print_status(text: str) -> None:
    """Print a line about the workers on standard error: `warren run: ` and the text."""
    write_error(f"warren run: {text}")


def _describe_status(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
