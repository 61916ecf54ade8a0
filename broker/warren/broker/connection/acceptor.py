"""Acceptance of sockets from listening sockets, in small portions, and its pauses while none can be accepted.

asyncio's servers repeat a failed accept as often as their backlog is long, each with a traceback, and they have no bound.
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections.abc import Callable
from typing import Final

BACKLOG: Final = 1024
"""Connections that the system keeps for a listening socket until they are accepted."""
ACCEPTS_PER_TURN: Final = 16
"""Most sockets that one turn of the event loop accepts, so that clients which are connected already are served between."""
SHORTAGE_PAUSE: Final = 0.2
"""Seconds to stop accepting after the system had no descriptor or memory for another socket."""
SHORTAGE_ERRORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept that mean that this process or the system lacks descriptors or memory."""

OnAccepted = Callable[[socket.socket, str], None]
"""Function that takes an accepted socket and the IP address of its other end."""


class Acceptor:
    """Acceptor of the sockets of one or more listening sockets.

    :param wait: returns 0 if a socket may be accepted, else the seconds to wait; infinity to wait for `resume`.
    :param on_paused: called with the reason when accepting pauses.
    :param on_resumed: called when it goes on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wait: Callable[[], float],
        on_paused: Callable[[str], None],
        on_resumed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._wait = wait
        self._on_paused = on_paused
        self._on_resumed = on_resumed
        self._listening: dict[socket.socket, OnAccepted] = {}
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, listening: socket.socket, on_accepted: OnAccepted) -> None:
        """Accept the connections of a listening socket, which the acceptor closes in the end."""
        listening.setblocking(False)
        self._listening[listening] = on_accepted
        if not self._paused:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Close the listening sockets."""
        self._cancel_timer()
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()

    def resume(self) -> None:
        """Accept again after a pause; no effect without one."""
        if self._paused:
            self._cancel_timer()
            wait = self._wait()
            if wait:
                self._schedule(wait)
                return
            self._paused = False
            for listening in self._listening:
                self._loop.add_reader(listening, self._accept, listening)
            self._on_resumed()

    def _accept(self, listening: socket.socket) -> None:
        if self._paused:
            # Another listening socket was ready in the same turn.
            return
        for _ in range(ACCEPTS_PER_TURN):
            wait = self._wait()
            if wait:
                self._pause("bound reached", wait)
                return
            try:
                accepted, peer = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in SHORTAGE_ERRORS:
                    self._pause(error.strerror or str(error), SHORTAGE_PAUSE)
                    return
                # An error of the one connection, which has ended before it was accepted.
                continue
            accepted.setblocking(False)
            self._listening[listening](accepted, str(peer[0]) if peer else "")

    def _pause(self, reason: str, seconds: float) -> None:
        self._paused = True
        for listening in self._listening:
            self._loop.remove_reader(listening)
        self._on_paused(reason)
        self._schedule(seconds)

    def _schedule(self, seconds: float) -> None:
        if seconds != math.inf:
            self._timer = self._loop.call_later(seconds, self.resume)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host.

    :param port: port to listen at; 0 is any free port, a different one for each address.
    :raises OSError: if an address is in use, is not this machine's, or may not be listened at.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listening: list[socket.socket] = []
    try:
        for family, where in dict.fromkeys((family, where) for family, _, _, _, where in found):
            listening.append(socket.create_server(where, family=family, backlog=BACKLOG))
    except OSError:
        for each in listening:
            each.close()
        raise
    return listening
