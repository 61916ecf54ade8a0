"""Loads by connections: many at once, and failed logins; generators as in `message_loads`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from pamqp import commands

from benchmarks.stalls.load_client import Control, LoadClient
from tests.support.raw_client import PROTOCOL_HEADER, RawClient

SECONDS = 5.0
"""Duration of the attempts to log in."""
THREADS = 8


def connect_at_once(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Open many connections that shake hands in step, open a channel, and end together."""
    yield
    opened = [RawClient(client.url, timeout=120.0) for _each in range(count)]
    for each in opened:
        each.send_bytes(PROTOCOL_HEADER)
    for each in opened:
        each.expect(commands.Connection.Start)
    for each in opened:
        each.send(each.start_ok(), 0)
    for each in opened:
        each.expect(commands.Connection.Tune)
    for each in opened:
        each.tune()
        each.send(commands.Connection.Open("/"), 0)
    for each in opened:
        each.expect(commands.Connection.OpenOk)
    for each in opened:
        each.send(commands.Channel.Open(), 1)
    for each in opened:
        each.expect(commands.Channel.OpenOk)
    for each in opened:
        each.abort()


def failed_logins(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Log in with a wrong password, from several threads, for five seconds, at most `count` times."""
    yield
    deadline = time.monotonic() + SECONDS

    def attempt(number: int) -> None:
        for _each in range(count // THREADS):
            if time.monotonic() > deadline:
                return
            with contextlib.suppress(OSError, AssertionError), RawClient(client.url, timeout=30.0) as one:
                one.greet()
                one.send(one.start_ok(response=f"\0guest\0wrong-{number}"), 0)
                one.read_method()

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
