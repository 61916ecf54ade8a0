"""Reading of plain (non-TLS) sockets directly after the poll, bypassing asyncio's handles and transports.

The reason is latency. A message that arrives after a pause finds cold CPU caches: each step then takes ten times as
long as under load, and asyncio's own steps (a list of keys, a handle, a context, two calls of a transport) took half
of the time until the message was forwarded.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.connection.connection_phases import CLOSED
from warren.broker.connection.turn_clock import TurnClock

if TYPE_CHECKING:
    from warren.broker.connection.broker_node import BrokerNode
    from warren.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

READABLE: Final = 1
"""Event mask of sockets that are read here: EPOLLIN alone. Any other mask is left to the event loop."""
MOST_EVENTS: Final = 256
"""Most events that one poll returns; further ones are returned by the next poll."""
READ_BYTES: Final = 128 * 1024
"""Most bytes read from one socket before other sockets are read."""
LARGE_READ_BYTES: Final = 512 * 1024
"""Most bytes read at once in the middle of a large frame, where a read contains few frames."""
THROTTLED_READ_BYTES: Final = 16 * 1024
"""Most bytes read at once from a connection that publishes to a queue with a backlog."""
JOIN_BYTES: Final = 160 * 1024
"""Largest incomplete frame, in bytes, whose rest is read right behind its beginning, to copy both together."""
LARGE_FRAME_BYTES: Final = 4096
"""Received bytes of an incomplete frame beyond which larger reads are used (LARGE_READ_BYTES)."""


class SocketReader:
    """Reader of plain (non-TLS) sockets, bypassing asyncio.

    A listener registers each socket in `connections`, which maps file descriptors to connections. All sockets share one
    read buffer: the input of each is copied out of it before the next socket is read.
    """

    def __init__(self) -> None:
        self.connections: dict[int, Connection] = {}
        self.turns = TurnClock()
        self.view = memoryview(bytearray(JOIN_BYTES + LARGE_READ_BYTES))
        # As lists, because that is what os.readv takes.
        self.normal_buffer = [self.view[:READ_BYTES]]
        self.throttled_buffer = [self.view[:THROTTLED_READ_BYTES]]
        self.large_buffer = [self.view[:LARGE_READ_BYTES]]

    def poll(
        self,
        poll: Callable[[float, int], list[tuple[int, int]]],
        timeout: Optional[float],  # noqa: UP045
    ) -> list[tuple[int, int]]:
        """Poll, read and process the input of registered sockets, and return all other events for the event loop.

        Events are pairs of file descriptor and mask. The output that the input causes is written at the end, one write
        for each client.

        :param poll: the method `poll` of an epoll object.
        :param timeout: seconds to wait; None waits without limit.
        """
        # In whole milliseconds, as epoll counts, rounded up: a timer that is not quite due would be polled for repeatedly.
        wait = -1.0 if timeout is None else 0.0 if timeout <= 0 else math.ceil(timeout * 1e3) * 1e-3
        left: list[tuple[int, int]] = []
        node: Optional[BrokerNode] = None  # noqa: UP045
        turns = self.turns
        turns.end_turn()
        events = poll(wait, MOST_EVENTS)
        turns.start_turn()
        for event in events:
            connection = self.connections.get(event[0])
            if connection is None or event[1] != READABLE:
                left.append(event)
                continue
            # One that was read before it in this turn may have paused or ended it.
            if connection.reads_paused or connection.phase == CLOSED:
                continue
            if node is not connection.node:
                if node is not None:
                    node.input_processed()
                node = connection.node
                node.processing_input = True
            turns.reading = connection
            if not self.read(event[0], connection):
                left.append(event)
            turns.end_read()
        if node is not None:
            node.processing_input = False
            node.flush_all()
            if node.log is not None:
                # Callbacks of this iteration may do bulk work for some milliseconds.
                node.log.write_scheduled()
        return left

    def read(self, descriptor: int, connection: Connection) -> bool:
        """Read a socket once, and process the input; return False if the client has closed its end.

        The caller then passes the event to asyncio's event loop, which closes the socket.

        :param descriptor: file descriptor of the socket.
        """
        view = self.view
        throttled = connection.throttled
        pieces = self.throttled_buffer if throttled else self.normal_buffer
        kept: i64 = len(connection.buffer)
        if kept > JOIN_BYTES:
            # All of it is copied with each read: let there be few and large ones.
            pieces = self.large_buffer
        elif kept > 0:
            # The rest of a frame is read behind its beginning, so that both are copied together, once.
            view[:kept] = connection.buffer
            room: i64 = len(pieces[0]) if kept < LARGE_FRAME_BYTES or throttled else LARGE_READ_BYTES
            pieces = [view[kept : kept + room]]
        count: i64
        try:
            count = os.readv(descriptor, pieces)  # type: ignore[attr-defined,unused-ignore]
        except BlockingIOError:
            return True
        except OSError:
            connection.transport.abort()
            return True
        if count:
            try:
                if kept <= JOIN_BYTES:
                    connection.process_input(bytes(view[: kept + count]))
                else:
                    connection.process_input(connection.buffer + view[:count])
            except Exception:
                logger.exception("event=connection.crashed peer=%s", connection.peer)
                connection.transport.abort()
        return count > 0
