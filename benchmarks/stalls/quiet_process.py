"""Process of the quiet client: `python -m benchmarks.stalls.quiet_process URL BROKER-PID`.

At a steady pace it publishes a transient and a persistent message, each with its confirm, and gets each again. It prints
`ready`, then measures until it reads a line, and prints the longest wait of each kind as a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path

from pamqp import commands

from tests.support.frames import BASIC_GET_OK, publish_frames
from tests.support.raw_client import RawClient, encoded, made

PACE = 0.01
"""Seconds from the start of a round to that of the next."""
TRANSIENT, DURABLE = "quiet-transient", "quiet-durable"
BODY = b"x" * 16


class ProcessThreads:
    """Scheduler's account of the threads of a process. The main thread of the broker is the event loop's."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc", str(pid), "task")
        self._main = pid
        self._files: dict[int, int] = {}
        self.find_threads()

    def find_threads(self) -> None:
        """Look for threads that have begun or ended."""
        threads = {int(name) for name in os.listdir(self._folder)}
        for ended in self._files.keys() - threads:
            os.close(self._files.pop(ended))
        for begun in threads - self._files.keys():
            with contextlib.suppress(FileNotFoundError):
                self._files[begun] = os.open(self._folder / str(begun) / "schedstat", os.O_RDONLY)

    def times(self) -> dict[int, tuple[int, int]]:
        """Return for each thread the nanoseconds that it ran, and that it was runnable and waited for a processor."""
        found = {}
        for thread, file in self._files.items():
            with contextlib.suppress(ProcessLookupError):
                ran, queued, _ = os.pread(file, 100, 0).split()
                found[thread] = int(ran), int(queued)
        return found

    def since(self, before: dict[int, tuple[int, int]]) -> tuple[float, float, float, float]:
        """Return milliseconds since `before`: run and queued of the main thread, run and longest queued of others."""
        main, others = (0.0, 0.0), [(0.0, 0.0)]
        for thread, (ran, queued) in self.times().items():
            first_ran, first_queued = before.get(thread, (ran, queued))
            spent = (ran - first_ran) / 1e6, (queued - first_queued) / 1e6
            if thread == self._main:
                main = spent
            else:
                others.append(spent)
        return *main, sum(ran for ran, _ in others), max(queued for _, queued in others)


class Waits:
    """Longest wait of each kind of request, and the one with the longest part that other programs did not cause."""

    def __init__(self, broker: ProcessThreads) -> None:
        self.broker = broker
        self._own = ProcessThreads(os.getpid())
        self.longest: dict[str, float] = {}
        self.causes: dict[str, dict[str, float]] = {}
        self.count = 0

    def measure(self, kind: str, client: RawClient, request: bytes, *answer: tuple[int, int]) -> None:
        before = self.broker.times()
        own_before = self._own.times()
        begun = time.perf_counter()
        client.send_bytes(request)
        if answer == (BASIC_GET_OK,):
            client.expect_content(*answer)
        else:
            client.expect_frame(*answer)
        wait = (time.perf_counter() - begun) * 1e3
        self.count += 1
        self.longest[kind] = max(wait, self.longest.get(kind, 0.0))
        known = self.causes.get(kind)
        if known is not None and wait <= known["own"]:
            return
        busy, queued, threads, threads_queued = self.broker.since(before)
        queued += threads_queued + self._own.since(own_before)[1]
        own = max(wait - queued, min(busy, wait))
        if known is None or own > known["own"]:
            self.causes[kind] = {
                "wait": wait,
                "own": own,
                "busy": busy,
                "threads": threads,
                "queued": queued,
                "at": time.time(),
            }


def main() -> None:
    url, pid = sys.argv[1:]
    waits = Waits(ProcessThreads(int(pid)))
    with RawClient(url, timeout=600.0) as client:
        client.connect().open()
        client.declare_queue(TRANSIENT, exclusive=True)
        client.declare_queue(DURABLE, durable=True)
        client.select_confirms()
        publish = publish_frames(1, "", TRANSIENT, BODY)
        store = publish_frames(1, "", DURABLE, BODY, persistent=True)
        get = encoded(made(commands.Basic.Get, queue=TRANSIENT, no_ack=True))
        fetch = encoded(made(commands.Basic.Get, queue=DURABLE, no_ack=True))
        print("ready", flush=True)
        turn = time.perf_counter()
        while not select.select([sys.stdin], [], [], max(0.0, turn - time.perf_counter()))[0]:
            waits.broker.find_threads()
            waits.measure("publish", client, publish, (60, 80))
            waits.measure("get", client, get, BASIC_GET_OK)
            waits.measure("durable", client, store, (60, 80))
            waits.measure("get", client, fetch, BASIC_GET_OK)
            turn = max(turn + PACE, time.perf_counter())
    print(json.dumps({"count": waits.count, "longest": waits.longest, "causes": waits.causes}), flush=True)


if __name__ == "__main__":
    main()
