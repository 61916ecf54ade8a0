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

QUIET_LOGGER: Final = logging.getLogger("warren.broker.http_api.library")
"""Logger of the HTTP library, which is off: it would log a traceback for each malformed request of a client."""
QUIET_LOGGER.disabled = True


class OpenConnections:
    """Open connections of one HTTP server, those without a request in work in the order of their last activity."""

    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self._most = most
        self._idle: dict[asyncio.BaseTransport, str] = {}
        self._busy: dict[asyncio.BaseTransport, str] = {}

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
        """Count a connection as idle again: its request was answered."""
        if transport is not None and transport in self._busy:
            self._idle[transport] = self._busy.pop(transport)

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
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    def _forget_closed(self) -> None:
        for found in (self._idle, self._busy):
            for transport in [each for each in found if each.is_closing()]:
                del found[transport]
