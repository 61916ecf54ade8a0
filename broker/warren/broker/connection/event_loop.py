"""The event loop of `warren broker`: asyncio's own, but plain sockets are read as soon as the poll reports them."""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys

from warren.broker.connection.sockets import Sockets

if sys.platform == "linux":

    class PromptSelector(selectors.EpollSelector):
        """Gives the sockets that `Sockets` has to it, and all others to the loop."""

        def __init__(self, sockets: Sockets) -> None:
            super().__init__()
            self._read = sockets.poll
            # A handle of its own on the same epoll instance.
            self._epoll = select.epoll.fromfd(os.dup(self.fileno()))
            self._poll = self._epoll.poll

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            ready = []
            for descriptor, event in self._read(self._poll, timeout):
                key = self.get_map().get(descriptor)
                if key is not None:
                    # An error or a hang-up is for both, whoever waits.
                    wanted = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                    wanted |= selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                    ready.append((key, wanted & key.events))
            return ready

        def close(self) -> None:
            self._epoll.close()
            super().close()

    class PromptLoop(asyncio.SelectorEventLoop):
        """:ivar sockets: those that a listener wants read at once."""

        def __init__(self) -> None:
            self.sockets = Sockets()
            super().__init__(PromptSelector(self.sockets))


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that reads promptly; where there is no epoll, asyncio's."""
    return PromptLoop() if sys.platform == "linux" else asyncio.new_event_loop()
