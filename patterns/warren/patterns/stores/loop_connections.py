"""Connections of a store, one for each event loop that uses it: what belongs to one loop cannot be used on another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Connection = TypeVar("Connection")


class LoopConnections(Generic[Connection]):
    """Connections by event loop. Threads may use it at the same time, each with a loop of its own.

    :param connect: creates the connection of the running loop, without waiting.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}

    def current(self) -> Connection:
        """Return the connection of the running loop; create it if there is none."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            connection = self._connect()
            # Loops that have ended without closing theirs. Other threads may do the same now.
            for ended in [each for each in list(self._connections) if each.is_closed()]:
                self._connections.pop(ended, None)
            self._connections[loop] = connection
        return connection

    def remove_current(self) -> Connection | None:
        """Remove and return the connection of the running loop, for its end; None if there is none. Other loops close
        theirs.
        """
        return self._connections.pop(asyncio.get_running_loop(), None)


__all__ = ["LoopConnections"]
