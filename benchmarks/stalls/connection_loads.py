"""Loads by connections: many at once, and failed logins; generators as in `message_loads`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from pamqp import commands

from benchmarks.stalls.load_client import Control, LoadClient
from tests.support.raw_client import PROTOCOL_HEADER, RawClient

SECONDS = 5.0
"""Duration of the attempts to log in."""
THREADS = 8
AGAIN = 50
"""Connections that are opened at once after some were refused."""


def connect_at_once(client: LoadClient, _: Control, count: int) -> Iterator[None]:
    """Open many connections at once, and again as many as the broker refused; at last end all together."""
    yield
    opened = shake_hands(client.url, count)
    while len(opened) < count:
        opened += shake_hands(client.url, min(AGAIN, count - len(opened)))
    for each in opened:
        each.abort()


def shake_hands(url: str, count: int) -> list[RawClient]:
    """Open connections that shake hands in step and open a channel; return those that the broker did not refuse."""
    clients = [RawClient(url, timeout=120.0) for _each in range(count)]
    for step in STEPS:
        clients = [each for each in clients if succeeds(step, each)]
    return clients


def succeeds(step: Callable[[RawClient], object], client: RawClient) -> bool:
    """Perform a step of the handshake; return False if the broker has closed the connection."""
    try:
        step(client)
    except OSError:
        client.abort()
        return False
    return True


STEPS: tuple[Callable[[RawClient], object], ...] = (
    lambda client: client.send_bytes(PROTOCOL_HEADER),
    lambda client: client.expect(commands.Connection.Start),
    lambda client: client.send(client.start_ok(), 0),
    lambda client: client.expect(commands.Connection.Tune),
    lambda client: client.tune(),
    lambda client: client.send(commands.Connection.Open("/"), 0),
    lambda client: client.expect(commands.Connection.OpenOk),
    lambda client: client.send(commands.Channel.Open(), 1),
    lambda client: client.expect(commands.Channel.OpenOk),
)
"""Steps of the handshake. All connections perform one before any performs the next."""


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
