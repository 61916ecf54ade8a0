"""Common parts of the worker processes: messages to the coordinator, sampling of counters, socket reads.

A worker sends `Ready`, receives a `Schedule`, and sends its report at the end. A consumer also sends `Progress` from time to
time, and continues until it receives `Stop`. A worker that fails sends `Failure`.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from warren.broker.bench.load_options import ConsumerReport, PublisherReport, Schedule, SpanCounts
from warren.core.blocking_connection import BlockingConnection, ClosedByBroker

READ_SIZE = 1 << 18
"""Most bytes that one socket read returns."""
STALL_SECONDS = 30.0
"""Seconds that a worker may wait to read from or write to the broker; after them, the run fails."""


@dataclass(frozen=True)
class Ready:
    """Report of a worker process to the coordinator: it is connected to the broker, and waits for its schedule."""


@dataclass(frozen=True)
class Progress:
    """Report of a consumer process to the coordinator: number of this run's AMQP messages that it has received so far.

    By these reports, the coordinator knows when all published messages have been consumed.
    """

    count: int


@dataclass(frozen=True)
class Stop:
    """Request of the coordinator to a consumer process: end, and send the report."""


@dataclass(frozen=True)
class Failure:
    """Report of a worker process to the coordinator that it has failed: the error in one line.

    `is_client_error` is true if the options are wrong, not the broker.
    """

    text: str
    is_client_error: bool = False


def run_and_report(pipe: Connection, work: Callable[[], PublisherReport | ConsumerReport]) -> None:
    """Run the function `work` of a worker, and send its report, or the failure that ended it, to the coordinator."""
    try:
        pipe.send(work())
    except ClosedByBroker as refused:
        pipe.send(Failure(str(refused), refused.is_client_error))
    except (TimeoutError, BlockingIOError):
        pipe.send(Failure(f"the broker made no progress for {STALL_SECONDS:g} s"))
    except (OSError, EOFError) as error:
        pipe.send(Failure(str(error) or type(error).__name__))
    except KeyboardInterrupt:
        pass


class RateMeter:
    """Recorder of a worker's message count and processor time at the start and the end of the measured span."""

    def __init__(self, schedule: Schedule, rates: SpanCounts) -> None:
        self._from = schedule.measured_from
        self._until = schedule.measured_until
        self._rates = rates
        self.measuring = False

    def sample(self, now: int, count: int) -> None:
        """Record time, message count and processor time if the measured span has begun or ended since the last call.

        :param now: current `time.monotonic_ns()`
        :param count: messages that the worker has processed so far
        """
        rates = self._rates
        if self.measuring:
            if now >= self._until:
                self.measuring = False
                rates.ended, rates.last = now, count
                rates.processor = time.process_time() - rates.processor
        elif not rates.began and now >= self._from:
            self.measuring = True
            rates.began, rates.first, rates.processor = now, count, time.process_time()


def set_timeouts(connection: BlockingConnection, read_seconds: float) -> None:
    """Set the timeout of socket reads to `read_seconds`, and of writes to `STALL_SECONDS` (30 s).

    Except for TLS they are socket options of the kernel, because a timeout of Python's socket costs one more system
    call for each read and write.
    """
    if isinstance(connection.socket, ssl.SSLSocket):
        connection.socket.settimeout(read_seconds)
        return
    connection.socket.settimeout(None)
    for option, seconds in ((socket.SO_RCVTIMEO, read_seconds), (socket.SO_SNDTIMEO, STALL_SECONDS)):
        value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        connection.socket.setsockopt(socket.SOL_SOCKET, option, value)


def receive(connection: BlockingConnection) -> bytes:
    """Receive the next bytes from the broker.

    :raises ConnectionError: if the broker closed the connection
    :raises TimeoutError: if nothing arrives in time; `BlockingIOError` where the kernel enforces the timeout
    """
    data = connection.socket.recv(READ_SIZE)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return data


def raise_if_closed(connection: BlockingConnection, frames: list[bytes]) -> None:
    """Raise an error if the broker has closed the channel or the connection; otherwise clear `frames`.

    :param frames: received frames other than deliveries and confirms, such as channel.close.
    :raises ClosedByBroker: if one of the frames closes the channel or the connection
    """
    for each in frames:
        connection.raise_if_closed(each)
    frames.clear()
