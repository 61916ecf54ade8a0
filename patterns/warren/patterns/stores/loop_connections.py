"""Connections of a store, one for each event loop that uses it: what belongs to one loop cannot be used on another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


class LoopConnections(Generic[Connection]):
    """Connections by event loop. Threads may use it at the same time, each with a loop of its own.

    :param connect: creates the connection of the running loop, without waiting.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}

    def current(self) -> Connection:
        """Return the connection of the running loop; create it if there is none."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            connection = self._connect()
            with self._lock:
                # Loops that have ended without closing theirs.
                for ended in [each for each in self._connections if each.is_closed()]:
                    del self._connections[ended]
                self._connections[loop] = connection
        return connection

    def remove_current(self) -> Connection | None:
        """Remove and return the connection of the running loop, for its end; None if there is none. Other loops close
        theirs.
        """
        with self._lock:
            return self._connections.pop(asyncio.get_running_loop(), None)


__all__ = ["LoopConnections"]
