"""Times of the event loop's turns, and of the read of a socket that took longest in a turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.wire.methods import BY_ID

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

monotonic = time.monotonic


class TurnClock:
    """Clock of the event loop's turns. A turn is all that runs between two polls of the sockets.

    The loop's thread writes it, with three readings of the clock for each turn and one for each socket that is read,
    nothing for each message. Other threads may read it.
    """

    number: i64 = 0
    """Number of the current turn, or, while the loop polls, of the last one."""
    polling: bool = True
    """True while the loop waits for events: it is idle then, and no turn is running."""
    started: float = 0.0
    """Time (time.monotonic) at which the current turn began."""
    longest: float = 0.0
    """Seconds that the longest turn took since `reset`."""
    threshold: float = math.inf
    """Seconds from which on a turn is reported to `on_stall`; infinite for none."""
    read_started: float = 0.0
    """Time (time.monotonic) at which the current read began, or the last one ended."""
    slowest_read: float = 0.0
    """Seconds that the longest read of the current turn took with the processing of its input; 0 if all were short."""
    slowest_work: str = ""
    """Description of that read: the method that was processed last, and the client."""

    def __init__(self) -> None:
        self.on_stall: Optional[Callable[[float], None]] = None  # noqa: UP045
        """Called at the end of a turn that took at least `threshold` seconds, with these seconds."""
        self.reading: Optional[Connection] = None  # noqa: UP045
        """Connection whose input is being processed; None in between, and in callbacks of the event loop."""

    def reset(self, threshold: float, on_stall: Optional[Callable[[float], None]]) -> None:  # noqa: UP045
        """Begin to measure: forget the longest turn, and let the current one begin now.

        :param threshold: seconds from which on a turn is reported; infinite for none.
        :param on_stall: called at the end of such a turn, with its seconds.
        """
        self.threshold = threshold
        self.on_stall = on_stall
        self.longest = 0.0
        self.started = monotonic()

    def end_turn(self) -> None:
        """Record the end of a turn: the loop is about to poll."""
        took = monotonic() - self.started
        if took > self.longest and self.number:
            self.longest = took
        if took >= self.threshold and self.number and self.on_stall is not None:
            self.on_stall(took)
        self.polling = True

    def start_turn(self) -> None:
        """Record the beginning of a turn: the poll has returned."""
        self.number += 1
        self.slowest_read = 0.0
        self.started = self.read_started = monotonic()
        self.polling = False

    def end_read(self) -> None:
        """Record that the input of the connection `reading` has been processed."""
        now = monotonic()
        took = now - self.read_started
        self.read_started = now
        if took > 0.5 * self.threshold and took > self.slowest_read:
            self.slowest_read = took
            self.slowest_work = self.describe_input()
        self.reading = None

    def describe_input(self) -> str:
        """Return the method that the connection `reading` sent last, and the client; empty if none."""
        connection = self.reading
        if connection is None:
            return ""
        method = BY_ID.get(int(connection.class_id << 16 | connection.method_id))
        # A frame that is not complete yet has no method; publishes come in a row.
        partial = "basic.publish" if connection.last_target is not None else "input"
        name = method.name if method is not None else partial
        vhost = connection.vhost.decode("utf-8", "replace")
        return f"{name} from <connection.{int(connection.serial)}> {connection.peer} vhost {vhost}"
