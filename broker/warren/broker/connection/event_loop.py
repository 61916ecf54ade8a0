"""Event loop of `warren broker`: asyncio's own, except that it reads plain (non-TLS) sockets directly after the poll.

This avoids one asyncio callback for each socket that is readable.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys

from warren.broker.connection.socket_reader import SocketReader
from warren.core.operating_system.portable_switch import PORTABLE

if sys.platform == "linux":

    class DirectReadSelector(selectors.EpollSelector):
        """Selector that lets a `SocketReader` read plain (non-TLS) sockets, and returns other events to the loop."""

        def __init__(self, reader: SocketReader) -> None:
            super().__init__()
            self._read = reader.poll
            # A handle of its own on the same epoll instance.
            self._epoll = select.epoll.fromfd(os.dup(self.fileno()))
            self._poll = self._epoll.poll

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Poll, let the `SocketReader` read its sockets, and return the other events to the event loop.

            Each event is a pair of a registered key and a mask of selectors.EVENT_READ and EVENT_WRITE.

            :param timeout: seconds to wait; 0 does not wait, None waits without limit.
            """
            ready = []
            for descriptor, event in self._read(self._poll, timeout):
                key = self.get_map().get(descriptor)
                if key is not None:
                    # An error or a hang-up concerns readers and writers alike.
                    wanted = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                    wanted |= selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                    ready.append((key, wanted & key.events))
            return ready

        def close(self) -> None:
            self._epoll.close()
            super().close()

    class DirectReadEventLoop(asyncio.SelectorEventLoop):
        """Event loop that reads plain (non-TLS) sockets right after the poll, without an asyncio callback for each.

        :ivar socket_reader: reads those sockets; a listener registers them there.
        """

        def __init__(self) -> None:
            self.socket_reader = SocketReader()
            super().__init__(DirectReadSelector(self.socket_reader))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: a `DirectReadEventLoop` on Linux; elsewhere, without epoll, asyncio's default loop."""
    if sys.platform == "linux" and not PORTABLE:
        return DirectReadEventLoop()
    return asyncio.new_event_loop()
