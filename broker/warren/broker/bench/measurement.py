"""One run: starts the workers, watches them, measures the broker's processor time meanwhile."""

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
from warren.broker.bench.load_options import Consumed, Load, Published, Schedule
from warren.broker.bench.publisher_process import publisher
from warren.broker.bench.worker_process import PATIENCE, Progress, Ready, Stop, Trouble

_Report = TypeVar("_Report", Published, Consumed)

LEAD = 0.05
"""Seconds from the last worker's being ready to the start; twice that, the load goes on after the span."""


class Failed(Exception):
    """The run could not be made: why, in one line, and whether what was asked for is at fault."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.is_client_error = trouble.is_client_error


@dataclass(frozen=True)
class Outcome:
    """What all workers report, and what the broker's processor did meanwhile."""

    published: list[Published]
    consumed: list[Consumed]
    processor: float | None
    """Processor seconds of the broker in the measured span, if its process id was given."""
    span: float
    """Seconds for which `processor` was counted."""


def measure(load: Load, broker_pid: int | None = None) -> Outcome:
    """Make the load and wait for its end.

    :param broker_pid: the broker's process, if its processor time is wanted
    :raises Failed: if a worker fails, or the broker does nothing for 30 s
    """
    with _Crew(load) as crew:
        start = time.monotonic_ns() + int(LEAD * 1e9)
        measured_from = start + int(load.warmup * 1e9)
        measured_until = measured_from + int(load.seconds * 1e9)
        schedule = Schedule(start, measured_from, measured_until, measured_until + int(LEAD * 2e9))
        crew.tell_all(schedule)
        crew.watch_until(schedule.measured_from)
        before, began = _processor(broker_pid), time.monotonic()
        crew.watch_until(schedule.measured_until)
        after, ended = _processor(broker_pid), time.monotonic()
        published, consumed = crew.finish()
    used = after - before if before is not None and after is not None else None
    return Outcome(published, consumed, used, ended - began)


def _processor(pid: int | None) -> float | None:
    if pid is None:
        return None
    try:
        return processor_time.seconds(pid)
    except OSError:
        raise Failed(Trouble(f"the broker's process {pid} has ended")) from None


class _Worker:
    """One process and what is known of it."""

    def __init__(self, process: SpawnProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.ready = False
        self.progress = 0
        self.report: Published | Consumed | None = None

    def listen(self) -> None:
        """:raises Failed: if it reports trouble, or has died"""
        try:
            message = self.pipe.recv()
        except EOFError:
            raise Failed(Trouble("a worker of the load tool died")) from None
        match message:
            case Ready():
                self.ready = True
            case Progress(count):
                self.progress = count
            case Published() | Consumed():
                self.report = message
            case Trouble():
                raise Failed(message)


class _Crew:
    """The workers of a run; leaving the block ends those that still run."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._publishers: list[_Worker] = []
        self._consumers: list[_Worker] = []

    @property
    def _all(self) -> list[_Worker]:
        return self._publishers + self._consumers

    def __enter__(self) -> _Crew:
        # A fresh interpreter a worker: nothing of this process reaches into the measurement.
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
            deadline = time.monotonic() + PATIENCE
            while not all(worker.ready for worker in self._all):
                if not self._listen(deadline - time.monotonic()):
                    raise Failed(Trouble(f"the workers were not connected after {PATIENCE:g} s"))
        except BaseException:
            self._end()
            raise
        return self

    def tell_all(self, message: Schedule) -> None:
        for worker in self._all:
            worker.pipe.send(message)

    def watch_until(self, moment: int) -> None:
        """Wait for a moment of the monotonic clock, in nanoseconds; a worker that fails ends the wait."""
        while (left := (moment - time.monotonic_ns()) / 1e9) > 0:
            self._listen(left)

    def finish(self) -> tuple[list[Published], list[Consumed]]:
        """Wait until the publishers are done and everything has been consumed, or nothing comes any more."""
        published: list[Published] = []
        while len(published := _reports(self._publishers, Published)) < self._load.publishers:
            self._listen(PATIENCE)
        expected = sum(one.confirmed if self._load.window else one.sent for one in published)
        expected *= self._load.copies
        while sum(worker.progress for worker in self._consumers) < expected and self._consumers:
            if not self._listen(PATIENCE / 3):
                # What has not come by now is lost: the report says so.
                break
        for worker in self._consumers:
            worker.pipe.send(Stop())
        while len(consumed := _reports(self._consumers, Consumed)) < self._load.consumers:
            self._listen(PATIENCE)
        return published, consumed

    def _listen(self, timeout: float) -> bool:
        """Take what the workers say within `timeout` seconds: whether one of them said something."""
        # Who has reported has no more to say; its pipe would be at its end for ever.
        speaking = {worker.pipe: worker for worker in self._all if worker.report is None}
        heard = wait(speaking, max(timeout, 0.0))
        for pipe in heard:
            assert isinstance(pipe, Connection)
            speaking[pipe].listen()
        return bool(heard)

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
    # Only the child holds that end from now on, so that its death is an end of file here.
    theirs.close()
    return _Worker(process, ours)


def _reports(workers: list[_Worker], kind: type[_Report]) -> list[_Report]:
    return [worker.report for worker in workers if isinstance(worker.report, kind)]
