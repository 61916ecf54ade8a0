"""Acceptance of sockets from listening sockets, in small portions, and its pauses while none can be accepted.

asyncio's servers repeat a failed accept as often as their backlog is long, each with a traceback, and they have no bound.
"""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections.abc import Callable
from typing import Any, Final

from warren.core.operating_system.sockets import watches_descriptors

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
        self._uses_tasks = not watches_descriptors(loop)
        self._wait = wait
        self._on_paused = on_paused
        self._on_resumed = on_resumed
        self._listening: dict[socket.socket, OnAccepted] = {}
        self._accepting: dict[socket.socket, asyncio.Task[None]] = {}
        """Tasks that accept the connections of listening sockets, on event loops that watch no descriptors."""
        self._ended: set[asyncio.Task[None]] = set()
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def listen(self, listening: socket.socket, on_accepted: OnAccepted) -> None:
        """Accept the connections of a listening socket, which the acceptor closes in the end."""
        listening.setblocking(False)
        self._listening[listening] = on_accepted
        if not self._paused:
            self._watch(listening)

    def stop(self) -> None:
        """Accept no more connections."""
        self._cancel_timer()
        for listening in self._listening:
            self._unwatch(listening)
            if not self._uses_tasks:
                listening.close()
        if not self._uses_tasks:
            self._listening.clear()

    async def close(self) -> None:
        """Accept no more connections, and close the listening sockets."""
        self.stop()
        # The event loop still knows the sockets of cancelled tasks.
        await asyncio.gather(*self._ended, return_exceptions=True)
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    def _watch(self, listening: socket.socket) -> None:
        if self._uses_tasks:
            self._accepting[listening] = self._loop.create_task(self._accept_in_turn(listening))
        else:
            self._loop.add_reader(listening, self._accept, listening)

    def _unwatch(self, listening: socket.socket) -> None:
        if not self._uses_tasks:
            self._loop.remove_reader(listening)
            return
        task = self._accepting.pop(listening, None)
        if task is not None:
            task.cancel()
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)

    async def _accept_in_turn(self, listening: socket.socket) -> None:
        """Accept one connection after the other, until this task is cancelled or accepting pauses.

        A connection that arrives after `wait` has returned 0 is accepted, even if another listening socket has used up the
        bound meanwhile.
        """
        while True:
            wait = self._wait()
            if wait:
                self._pause("bound reached", wait)
                return
            try:
                accepted, peer = await self._loop.sock_accept(listening)
            except OSError as error:
                if self._is_shortage(error):
                    return
                await asyncio.sleep(0)
                continue
            self._on_connection(listening, accepted, peer)

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
                self._watch(listening)
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
                if self._is_shortage(error):
                    return
                # An error of the one connection, which has ended before it was accepted.
                continue
            accepted.setblocking(False)
            self._on_connection(listening, accepted, peer)

    def _on_connection(self, listening: socket.socket, accepted: socket.socket, peer: Any) -> None:
        self._listening[listening](accepted, str(peer[0]) if peer else "")

    def _is_shortage(self, error: OSError) -> bool:
        """Pause if the system had no descriptor or memory for another socket, and return whether that was the error."""
        if error.errno not in SHORTAGE_ERRORS:
            return False
        self._pause(error.strerror or str(error), SHORTAGE_PAUSE)
        return True

    def _pause(self, reason: str, seconds: float) -> None:
        self._paused = True
        for listening in self._listening:
            self._unwatch(listening)
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
