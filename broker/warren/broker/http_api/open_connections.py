"""HTTP connections, from acceptance to end, and which of them is closed for a new one when there are too many.

Connections that send nothing, or their request byte by byte, could otherwise keep everybody else out, and take the file
descriptors of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final, NamedTuple, Protocol

from warren.broker.connection.client_network import client_network

QUIET_LOGGER: Final = logging.getLogger("warren.broker.http_api.library")
"""Logger of the HTTP library, which is off: it would log a traceback for each malformed request of a client."""
QUIET_LOGGER.disabled = True


class Closable(Protocol):
    """Socket that can be closed: a transport, or one that waits for its transport."""

    def is_closing(self) -> bool: ...

    def abort(self) -> None: ...


class Deadline(NamedTuple):
    """Time of the loop until which the head of a request has to arrive on a connection, and the bytes that were unsent when
    it was set.
    """

    transport: asyncio.WriteTransport
    time: float
    unsent: int


class OpenConnections:
    """Connections of one HTTP server, those without a request in work in the order of their last activity.

    :param most: connections that there may be. Half of them, and one at least, may be of one client address.
    :param head_seconds: seconds within which the head of a request has to arrive, from the opening of the connection or
        the last response on.
    """

    def __init__(self, most: int, head_seconds: float) -> None:
        self.head_seconds = head_seconds
        self._most = most
        self._most_of_address = max(most // 2, 1)
        self._idle: dict[Closable, str] = {}
        self._busy: dict[Closable, str] = {}
        self._deadlines: dict[Closable, Deadline] = {}
        """Deadlines of the heads that have to arrive, in ascending order."""
        self._begun: set[asyncio.WriteTransport] = set()
        """Transports on which the head of a request has arrived that has not got its response."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def add(self, accepted: Closable, address: str) -> bool:
        """Count a new connection of a client address, and close an idle one if there are too many.

        Return False if it has to be closed, because its address has too many with a request in work.
        """
        self._forget_closed()
        network = client_network(address)
        counts = Counter([*self._idle.values(), *self._busy.values()])
        if counts[network] >= self._most_of_address:
            if network not in self._idle.values():
                return False
            self._close_idle(network)
        elif len(self) >= self._most and self._idle:
            # The address with the most connections gives way.
            self._close_idle(max(self._idle.values(), key=counts.__getitem__))
        self._idle[accepted] = network
        return True

    def replace(self, accepted: Closable, transport: asyncio.WriteTransport) -> None:
        """Go on to count a connection by its transport, and close that if no request arrives in time."""
        network = self._idle.pop(accepted, None)
        if network is None:
            # It has just given way.
            transport.close()
            return
        # With TLS, a request may have arrived together with the end of the handshake.
        (self._busy if transport in self._busy else self._idle)[transport] = network
        if transport not in self._begun:
            self.await_request(transport)

    def discard(self, accepted: Closable) -> None:
        """Count a connection no more that has got no transport."""
        self._idle.pop(accepted, None)

    def begin(self, transport: asyncio.WriteTransport | None) -> None:
        """Count a connection as busy: its request has arrived completely."""
        if transport is not None:
            self._busy[transport] = self._idle.pop(transport, "")

    def end(self, transport: asyncio.WriteTransport | None) -> None:
        """Count a connection as idle again: the response to its request is known."""
        if transport is not None and transport in self._busy:
            self._idle[transport] = self._busy.pop(transport)

    def await_request(self, transport: asyncio.WriteTransport | None) -> None:
        """Close a connection if the head of a request does not arrive in time."""
        if transport is None:
            return
        self._begun.discard(transport)
        if transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        unsent = transport.get_write_buffer_size()
        self._deadlines[transport] = Deadline(transport, loop.time() + self.head_seconds, unsent)
        if self._timer is None:
            self._timer = loop.call_later(self.head_seconds, self._close_overdue)

    def begin_request(self, transport: asyncio.WriteTransport | None) -> None:
        """Do not close the connection for lack of a request any more: its head has arrived."""
        if transport is not None:
            self._begun.add(transport)
            self._deadlines.pop(transport, None)

    def _close_overdue(self) -> None:
        """Close the connections on which no request has begun in time, unless the client reads the last response."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for transport, time, unsent_before in list(self._deadlines.values()):
            if time > loop.time():
                self._timer = loop.call_at(time, self._close_overdue)
                return
            del self._deadlines[transport]
            unsent = transport.get_write_buffer_size()
            if not unsent:
                transport.close()
            elif unsent < unsent_before:
                self.await_request(transport)
            else:
                transport.abort()

    def has_room(self) -> bool:
        """Return whether another connection may be accepted: not if all that there may be have a request in work."""
        self._forget_closed()
        return len(self._busy) < self._most

    def _close_idle(self, network: str) -> None:
        """Close the connection of an address that was active the longest ago, of those without a request in work."""
        found = next(each for each, of in self._idle.items() if of == network)
        del self._idle[found]
        self._deadlines.pop(found, None)
        found.abort()

    def _forget_closed(self) -> None:
        for found in (self._idle, self._busy):
            for transport in [each for each in found if each.is_closing()]:
                del found[transport]
                self._deadlines.pop(transport, None)
