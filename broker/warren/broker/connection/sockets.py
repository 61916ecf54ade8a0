"""What plain sockets say goes from the poll to their sessions, with nothing of the event loop in between.

A message that comes after a pause finds caches cold, and then each step costs ten times what it does under load: those of
asyncio (a list of keys, a handle, a context, two calls of a transport) were half of the time until it was on its way again.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.connection.node import Node

logger = logging.getLogger(__name__)

READABLE: Final = 1
"""EPOLLIN and nothing else: hang-ups, errors and room to write are left to the loop."""
MOST_EVENTS: Final = 256
"""Of one poll; the others' turn is the next."""
READ_BYTES: Final = 128 * 1024
"""What is read from one socket before the others get their turn."""
LARGE_READ_BYTES: Final = 512 * 1024
"""The same in the middle of a large frame: there are few of them in it."""
SLOWED_BYTES: Final = 16 * 1024
"""The same for a connection that publishes faster than its queue is consumed."""
KEPT_BYTES: Final = 160 * 1024
"""So much of a message that has come in part is put before what is read next: more than a frame that is as large as most."""
LARGE: Final = 4096
"""A frame of which so much is kept is large. Pieces of output of this size, on average, are not joined: to copy them would
cost more than to name each."""
MOST_PIECES: Final = 512
"""Half of what one call takes (IOV_MAX)."""


class Sockets:
    """The sockets that are read here, by their descriptors. What is read is copied at once, so that all have one buffer."""

    def __init__(self) -> None:
        self.connections: dict[int, Connection] = {}
        self.view = memoryview(bytearray(KEPT_BYTES + LARGE_READ_BYTES))
        self.whole = [self.view[:READ_BYTES]]
        self.slowed = [self.view[:SLOWED_BYTES]]
        self.large = [self.view[:LARGE_READ_BYTES]]

    def poll(
        self,
        poll: Callable[[float, int], list[tuple[int, int]]],
        timeout: Optional[float],  # noqa: UP045
    ) -> list[tuple[int, int]]:
        """Wait, read what has come and work it off. What is left to the loop: descriptors and their events.

        What all of it causes is written at the end, in one piece for each client that gets something.

        :param poll: an epoll object's.
        :param timeout: seconds; None waits without end.
        """
        # In whole milliseconds, as epoll counts, rounded up: what is not quite due would be looked at again and again.
        wait = -1.0 if timeout is None else 0.0 if timeout <= 0 else math.ceil(timeout * 1e3) * 1e-3
        left: list[tuple[int, int]] = []
        node: Optional[Node] = None  # noqa: UP045
        for event in poll(wait, MOST_EVENTS):
            connection = self.connections.get(event[0])
            if connection is None or event[1] != READABLE:
                left.append(event)
                continue
            # One that was read before it in this turn may have had it paused, or ended.
            if connection.stalled or connection.closed or not connection.reading:
                continue
            if node is not connection.node:
                if node is not None:
                    node.worked()
                node = connection.node
                node.working = True
            if not self.read(event[0], connection):
                left.append(event)
        if node is not None:
            node.working = False
            node.flush_all()
        return left

    def read(self, descriptor: int, connection: Connection) -> bool:
        """False at the end of the stream, which the loop finds once more, and closes the socket."""
        view = self.view
        crowding = connection.crowding
        pieces = self.slowed if crowding else self.whole
        kept: i64 = len(connection.buffer)
        if kept > KEPT_BYTES:
            # All of it is copied with each piece: few and large ones.
            pieces = self.large
        elif kept > 0:
            # What has come of a frame goes before the rest of it, so that both are copied together, once.
            view[:kept] = connection.buffer
            room: i64 = len(pieces[0]) if kept < LARGE or crowding else LARGE_READ_BYTES
            pieces = [view[kept : kept + room]]
        count: i64
        try:
            count = os.readv(descriptor, pieces)
        except BlockingIOError:
            return True
        except OSError:
            connection.transport.abort()
            return True
        if count:
            try:
                if kept <= KEPT_BYTES:
                    connection.take(bytes(view[: kept + count]))
                else:
                    connection.take(connection.buffer + view[:count])
            except Exception:
                logger.exception("event=internal_error peer=%s", connection.peer)
                connection.transport.abort()
        return count > 0


def write(connection: Connection, pieces: list[bytes], size: i64) -> None:
    """What the socket takes is written at once. The rest is the transport's, and so is all that comes while it has some.

    :param size: bytes of all pieces.
    """
    if connection.descriptor < 0 or (connection.behind and connection.transport.get_write_buffer_size()):
        connection.transport.write(b"".join(pieces))
        return
    count: i64 = len(pieces)
    if count > MOST_PIECES or count * LARGE > size:
        pieces = [b"".join(pieces)]
    try:
        count = os.writev(int(connection.descriptor), pieces)
    except OSError:
        # Full, or gone: the transport finds out which.
        count = 0
    connection.behind = count < size
    if connection.behind:
        connection.transport.write(b"".join(pieces)[count:])
