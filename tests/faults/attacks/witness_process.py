"""A valid client in a process of its own: that of the attacks is busy with answers of megabytes, and would delay it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tests.faults.fuzz.witness import STALL_SECONDS, Witness


class Seen:
    """Result of the client, known at the end of the `with` block of `witness`."""

    slowest = 0.0
    """Longest time from a publish to its confirm and delivery, in seconds."""
    error = ""
    """Text of the error that ended it; empty if it went on."""


@contextmanager
def witness(url: str) -> Iterator[Seen]:
    """Let a client publish and consume at a broker, and measure how long it waits."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(url, theirs))
    process.start()
    seen = Seen()
    try:
        _receive(ours)
        yield seen
        ours.send(None)
        seen.slowest, seen.error = _receive(ours)
    finally:
        process.join(STALL_SECONDS)
        process.kill()


def _receive(pipe: Connection) -> tuple[float, str]:
    assert pipe.poll(2 * STALL_SECONDS), "the client does not answer"
    found: tuple[float, str] = pipe.recv()
    return found


def _run(url: str, pipe: Connection) -> None:
    with Witness(url) as running:
        pipe.send((0.0, ""))
        pipe.recv()
    pipe.send((running.slowest, "" if running.error is None else repr(running.error)))
