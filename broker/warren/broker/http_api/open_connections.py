"""HTTP connections that are open, and which of them is closed for a new one when there are too many.

Connections that send nothing, or their request byte by byte, could otherwise keep everybody else out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from warren.broker.connection.client_network import client_network

MOST_CONNECTIONS: Final = 128
"""HTTP connections that may be open at once."""
HEAD_SECONDS: Final = 5.0
"""Seconds within which the head of a request has to arrive, from the opening of the connection or the last response on."""

QUIET_LOGGER: Final = logging.getLogger("warren.broker.http_api.library")
"""Logger of the HTTP library, which is off: it would log a traceback for each malformed request of a client."""
QUIET_LOGGER.disabled = True


class OpenConnections:
    """Open connections of one HTTP server, those without a request in work in the order of their last activity."""

    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self._most = most
        self._idle: dict[asyncio.BaseTransport, str] = {}
        self._busy: dict[asyncio.BaseTransport, str] = {}
        self._deadlines: dict[asyncio.BaseTransport, tuple[float, int]] = {}
        """Times of the loop until which a head has to arrive, in ascending order, and the bytes that were unsent then."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def add(self, transport: asyncio.BaseTransport, address: str) -> None:
        """Count a new connection of a client address, and close an idle one if there are too many."""
        self._make_room()
        self._idle[transport] = client_network(address)

    def begin(self, transport: asyncio.BaseTransport | None) -> None:
        """Count a connection as busy: its request has arrived completely."""
        if transport is not None and transport in self._idle:
            self._busy[transport] = self._idle.pop(transport)

    def end(self, transport: asyncio.BaseTransport | None) -> None:
        """Count a connection as idle again: the response to its request is known."""
        if transport is not None and transport in self._busy:
            self._idle[transport] = self._busy.pop(transport)

    def await_request(self, transport: asyncio.BaseTransport | None) -> None:
        """Close a connection if the head of a request does not arrive in time."""
        if transport is None or transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        self._deadlines[transport] = loop.time() + HEAD_SECONDS, _unsent(transport)
        if self._timer is None:
            self._timer = loop.call_later(HEAD_SECONDS, self._close_overdue)

    def begin_request(self, transport: asyncio.BaseTransport | None) -> None:
        """Do not close the connection for lack of a request any more: its head has arrived."""
        if transport is not None:
            self._deadlines.pop(transport, None)

    def _close_overdue(self) -> None:
        """Close the connections on which no request has begun in time, unless the client reads the last response."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for transport, (deadline, unsent_before) in list(self._deadlines.items()):
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._close_overdue)
                return
            del self._deadlines[transport]
            unsent = _unsent(transport)
            if not unsent:
                transport.close()
            elif unsent < unsent_before:
                self.await_request(transport)
            elif isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    def has_room(self) -> bool:
        """Return whether another connection may be accepted: it would be one too many only if all others are busy."""
        self._forget_closed()
        return len(self._busy) < self._most

    def _make_room(self) -> None:
        """Close an idle connection if there is no room for another one.

        It is that of the address with the most connections which was active the longest ago.
        """
        self._forget_closed()
        if len(self) < self._most or not self._idle:
            return
        counts = Counter([*self._idle.values(), *self._busy.values()])
        most = max(counts[network] for network in self._idle.values())
        transport = next(each for each, network in self._idle.items() if counts[network] == most)
        del self._idle[transport]
        self._deadlines.pop(transport, None)
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    def _forget_closed(self) -> None:
        for found in (self._idle, self._busy):
            for transport in [each for each in found if each.is_closing()]:
                del found[transport]
                self._deadlines.pop(transport, None)


def _unsent(transport: asyncio.BaseTransport) -> int:
    return transport.get_write_buffer_size() if isinstance(transport, asyncio.WriteTransport) else 0
