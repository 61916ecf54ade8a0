"""Process of the quiet client: `python -m benchmarks.stalls.quiet_process URL BROKER-PID`.

At a steady pace it publishes a transient and a persistent message, each with its confirm, and gets each again. It prints
`ready`, then measures until it reads a line, and prints the longest wait of each kind as a line of JSON.
"""

from __future__ import annotations

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


class MainThread:
    """Scheduler's account of the main thread of a process, which in the broker is the event loop's."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(Path("/proc", str(pid), "task", str(pid), "schedstat"), os.O_RDONLY)

    def times(self) -> tuple[int, int]:
        """Return nanoseconds that the thread ran, and that it waited for a processor."""
        ran, waited, _ = os.pread(self._file, 100, 0).split()
        return int(ran), int(waited)


class Waits:
    """Longest wait of each kind of request, with what the broker's event loop thread did meanwhile."""

    def __init__(self, broker: MainThread) -> None:
        self._broker = broker
        self._own = MainThread(os.getpid())
        self.longest: dict[str, dict[str, float]] = {}
        self.count = 0

    def measure(self, kind: str, client: RawClient, request: bytes, *answer: tuple[int, int]) -> None:
        ran, waited = self._broker.times()
        own_waited = self._own.times()[1]
        begun = time.perf_counter()
        client.send_bytes(request)
        if answer == (BASIC_GET_OK,):
            client.expect_content(*answer)
        else:
            client.expect_frame(*answer)
        milliseconds = (time.perf_counter() - begun) * 1e3
        self.count += 1
        known = self.longest.get(kind)
        if known is None or milliseconds > known["wait"]:
            now_ran, now_waited = self._broker.times()
            self.longest[kind] = {
                "wait": milliseconds,
                "busy": (now_ran - ran) / 1e6,
                "queued": (now_waited - waited + self._own.times()[1] - own_waited) / 1e6,
                "at": time.time(),
            }


def main() -> None:
    url, pid = sys.argv[1:]
    waits = Waits(MainThread(int(pid)))
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
            waits.measure("publish", client, publish, (60, 80))
            waits.measure("get", client, get, BASIC_GET_OK)
            waits.measure("durable", client, store, (60, 80))
            waits.measure("get", client, fetch, BASIC_GET_OK)
            turn = max(turn + PACE, time.perf_counter())
    print(json.dumps({"count": waits.count, "longest": waits.longest}), flush=True)


if __name__ == "__main__":
    main()
