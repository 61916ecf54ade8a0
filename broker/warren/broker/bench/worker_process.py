"""What the processes that make the load have in common: what they say, and how they read a socket.

A worker says `Ready`, gets a `Schedule` and reports at the end; a consumer also says now and then how far it
is, and goes on until it is told to stop. What goes wrong is told as `Trouble`.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from warren.broker.bench.load_options import Consumed, Published, Rates, Schedule
from warren.core.blocking_connection import BlockingConnection, ClosedByBroker

READ = 1 << 18
"""Bytes read at a time."""
PATIENCE = 30.0
"""Seconds without progress after which the broker counts as stuck."""


@dataclass(frozen=True)
class Ready:
    """The worker is connected and waits for its schedule."""


@dataclass(frozen=True)
class Progress:
    """How many messages a consumer has seen so far."""

    count: int


@dataclass(frozen=True)
class Stop:
    """Tells a consumer to report."""


@dataclass(frozen=True)
class Trouble:
    """Why a worker gave up, in one line; and whether what was asked for is at fault."""

    text: str
    is_client_error: bool = False


def reporting(pipe: Connection, work: Callable[[], Published | Consumed]) -> None:
    """Do the work and report what came of it, or what was in its way."""
    try:
        pipe.send(work())
    except ClosedByBroker as refused:
        pipe.send(Trouble(str(refused), refused.is_client_error))
    except (TimeoutError, BlockingIOError):
        pipe.send(Trouble(f"the broker did nothing for {PATIENCE:g} s"))
    except (OSError, EOFError) as error:
        pipe.send(Trouble(str(error) or type(error).__name__))
    except KeyboardInterrupt:
        pass


class Meter:
    """Takes the value of a counter at the two ends of the measured span."""

    def __init__(self, schedule: Schedule, rates: Rates) -> None:
        self._from = schedule.measured_from
        self._until = schedule.measured_until
        self._rates = rates
        self.measuring = False

    def look(self, now: int, count: int) -> None:
        rates = self._rates
        if self.measuring:
            if now >= self._until:
                self.measuring = False
                rates.ended, rates.last = now, count
                rates.processor = time.process_time() - rates.processor
        elif not rates.began and now >= self._from:
            self.measuring = True
            rates.began, rates.first, rates.processor = now, count, time.process_time()


def patient(connection: BlockingConnection, reading: float) -> None:
    """Bound the time that one read may take, in seconds, and that one write may take, by `PATIENCE`.

    The kernel keeps the time where it can: Python's own timeouts cost a system call more for each read and write.
    """
    if isinstance(connection.socket, ssl.SSLSocket):
        connection.socket.settimeout(reading)
        return
    connection.socket.settimeout(None)
    for option, seconds in ((socket.SO_RCVTIMEO, reading), (socket.SO_SNDTIMEO, PATIENCE)):
        value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        connection.socket.setsockopt(socket.SOL_SOCKET, option, value)


def read(connection: BlockingConnection) -> bytes:
    """What has come.

    :raises ConnectionError: if the broker closed the connection
    :raises TimeoutError: if nothing came in time; `BlockingIOError`, where the kernel keeps the time
    """
    data = connection.socket.recv(READ)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return data


def judge(connection: BlockingConnection, frames: list[bytes]) -> None:
    """Frames that nobody expected.

    :raises ClosedByBroker: if one closes the channel or the connection
    """
    for each in frames:
        connection.raise_if_closed(each)
    frames.clear()
