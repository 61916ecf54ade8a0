"""Coordination of a run: start the workers, collect their reports, and measure the broker's processor time."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import TypeVar

from warren.broker.bench import processor_time
from warren.broker.bench.consumer_process import consumer
from warren.broker.bench.load_options import ConsumerReport, Load, PublisherReport, Schedule
from warren.broker.bench.publisher_process import publisher
from warren.broker.bench.worker_process import STALL_SECONDS, Failure, Progress, Ready, Stop

_Report = TypeVar("_Report", PublisherReport, ConsumerReport)

LEAD_SECONDS = 0.05
"""Seconds between the last worker's report that it is connected (`Ready`) and the start of the run.

After the measured span, publishers continue for twice this time.
"""


class BenchError(Exception):
    """Failure of a benchmark run. The text is one line.

    `is_client_error` is true if the options are wrong, not the broker.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.is_client_error = failure.is_client_error


@dataclass(frozen=True)
class Measurement:
    """Raw results of a run: the reports of all workers, and the broker's processor time."""

    published: list[PublisherReport]
    consumed: list[ConsumerReport]
    processor: float | None
    """Processor time of the broker in the measured span, in seconds; None if its process id is unknown."""
    span: float
    """Length in seconds of the span over which the broker's processor time was measured."""


def measure(load: Load, broker_pid: int | None = None) -> Measurement:
    """Run a load to its end, and return the raw results.

    :param broker_pid: process id of the broker, to measure its processor time
    :raises BenchError: if a worker fails, or the broker makes no progress for 30 s
    """
    with _WorkerPool(load) as workers:
        start = time.monotonic_ns() + int(LEAD_SECONDS * 1e9)
        measured_from = start + int(load.warmup * 1e9)
        measured_until = measured_from + int(load.seconds * 1e9)
        schedule = Schedule(start, measured_from, measured_until, measured_until + int(LEAD_SECONDS * 2e9))
        workers.broadcast(schedule)
        workers.wait_until(schedule.measured_from)
        before, began = _processor(broker_pid), time.monotonic()
        workers.wait_until(schedule.measured_until)
        after, ended = _processor(broker_pid), time.monotonic()
        published, consumed = workers.finish()
    used = after - before if before is not None and after is not None else None
    return Measurement(published, consumed, used, ended - began)


def _processor(pid: int | None) -> float | None:
    if pid is None:
        return None
    try:
        return processor_time.seconds(pid)
    except OSError:
        raise BenchError(Failure(f"the broker's process {pid} has ended")) from None


class _Worker:
    """Worker process as the coordinator sees it: its pipe, its progress and, at the end, its report."""

    def __init__(self, process: SpawnProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.ready = False
        self.progress = 0
        self.report: PublisherReport | ConsumerReport | None = None

    def receive(self) -> None:
        """Receive one object (`Ready`, `Progress` or the report) from the worker's pipe, and store what it reports.

        :raises BenchError: if the worker reports a failure, or has died
        """
        try:
            message = self.pipe.recv()
        except EOFError:
            raise BenchError(Failure("a worker of the load tool died")) from None
        match message:
            case Ready():
                self.ready = True
            case Progress(count):
                self.progress = count
            case PublisherReport() | ConsumerReport():
                self.report = message
            case Failure():
                raise BenchError(message)


class _WorkerPool:
    """Context manager that starts the worker processes of a run, and terminates those still running at its end."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._publishers: list[_Worker] = []
        self._consumers: list[_Worker] = []

    @property
    def _all(self) -> list[_Worker]:
        return self._publishers + self._consumers

    def __enter__(self) -> _WorkerPool:
        # Each worker is a fresh interpreter, so that nothing of this process affects the measurement.
        spawn = multiprocessing.get_context("spawn")
        try:
            for index in range(self._load.publishers):
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=publisher, args=(theirs, self._load, index))
                self._publishers.append(_start(process, ours, theirs))
            for index in range(self._load.consumers):
                ours, theirs = spawn.Pipe()
                process = spawn.Process(target=consumer, args=(theirs, self._load, index))
                self._consumers.append(_start(process, ours, theirs))
            deadline = time.monotonic() + STALL_SECONDS
            while not all(worker.ready for worker in self._all):
                if not self._receive(deadline - time.monotonic()):
                    raise BenchError(Failure(f"the workers did not connect within {STALL_SECONDS:g} s"))
        except BaseException:
            self._end()
            raise
        return self

    def broadcast(self, message: Schedule) -> None:
        """Send the schedule to all workers."""
        for worker in self._all:
            worker.pipe.send(message)

    def wait_until(self, moment: int) -> None:
        """Process messages of the workers until `moment`, a time of the monotonic clock in nanoseconds.

        :raises BenchError: if a worker fails meanwhile
        """
        while (left := (moment - time.monotonic_ns()) / 1e9) > 0:
            self._receive(left)

    def finish(self) -> tuple[list[PublisherReport], list[ConsumerReport]]:
        """Wait for the publishers' end and for all messages to be consumed; return the reports of all workers.

        If consumers report no more messages for 10 s, it waits no longer; the missing messages are counted as lost.
        """
        published: list[PublisherReport] = []
        while len(published := _reports(self._publishers, PublisherReport)) < self._load.publishers:
            self._receive(STALL_SECONDS)
        expected = sum(one.confirmed if self._load.window else one.sent for one in published)
        expected *= self._load.copies
        while sum(worker.progress for worker in self._consumers) < expected and self._consumers:
            if not self._receive(STALL_SECONDS / 3):
                # No progress: the missing messages are lost, and the report counts them.
                break
        for worker in self._consumers:
            worker.pipe.send(Stop())
        while len(consumed := _reports(self._consumers, ConsumerReport)) < self._load.consumers:
            self._receive(STALL_SECONDS)
        return published, consumed

    def _receive(self, timeout: float) -> bool:
        """Receive pending messages of the workers, waiting up to `timeout` seconds. Return False if there were none."""
        # A worker that has reported sends nothing more, and its closed pipe would always be ready.
        pending = {worker.pipe: worker for worker in self._all if worker.report is None}
        ready = wait(pending, max(timeout, 0.0))
        for pipe in ready:
            assert isinstance(pipe, Connection)
            pending[pipe].receive()
        return bool(ready)

    def _end(self) -> None:
        for worker in self._all:
            worker.process.terminate()
            worker.process.join()
            worker.process.close()
            worker.pipe.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()


def _start(process: SpawnProcess, ours: Connection, theirs: Connection) -> _Worker:
    process.start()
    # From now on only the child holds that end, so that its death is an end of file here.
    theirs.close()
    return _Worker(process, ours)


def _reports(workers: list[_Worker], kind: type[_Report]) -> list[_Report]:
    return [worker.report for worker in workers if isinstance(worker.report, kind)]
