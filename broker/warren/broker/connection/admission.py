"""Admission of connections: bounds for all sockets of clients, and for those whose connection is not open yet.

A socket counts from its acceptance to its end. Until connection.open-ok it is unopened, in a TLS handshake, too. At a
bound, accepting waits; the system's backlog holds further clients. Unopened connections give way to new ones, so that
sockets that never speak cannot lock out a client that opens its connection quickly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from warren.broker.connection.client_network import client_network
from warren.broker.connection.unopened_connections import UnopenedConnections

logger = logging.getLogger(__name__)

GRACE: Final = 1.0
"""Seconds that every client gets to open its connection before it may have to give way to a new one."""
MOST_GRACE: Final = 5.0
"""Seconds that a client gets while other clients of its address go on opening connections: many may have reconnected."""
MOST_CLOSED: Final = 16
"""Most connections that give way at once."""
REPORT_INTERVAL: Final = 10.0
"""Seconds between two log lines about connections that gave way."""
QUIET_SECONDS: Final = 5.0
"""Seconds without a further pause after which a pause of accepting is logged as over."""


class Clock(Protocol):
    """Time and timers of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...


class AdmittedSocket:
    """A client's socket, from its acceptance to its end.

    :param address: IP address of the other end.
    :param abort: closes the socket at once.
    """

    __slots__ = ("_admission", "abort", "accepted_at", "address", "has_transport", "network", "released")

    def __init__(
        self, admission: Admission, address: str, accepted_at: float, abort: Callable[[], object]
    ) -> None:
        self._admission = admission
        self.address = address
        self.network = client_network(address)
        self.accepted_at = accepted_at
        self.abort = abort
        self.has_transport = False
        """True once a transport of the event loop owns the socket and closes it."""
        self.released = False
        """True once the socket is closed and counts no more."""

    def set_address(self, address: str) -> None:
        """Count the socket for the client whose address a proxy has sent."""
        self._admission.move(self, address)

    def on_opened(self) -> None:
        """Count the connection as open."""
        self._admission.on_opened(self)

    def release(self) -> None:
        """Stop counting the socket, because it is closed; further calls have no effect."""
        self._admission.release(self)


class Admission:
    """Bounds of the sockets that clients may have.

    :param most_sockets: bound of all sockets.
    :param most_unopened: bound of those whose connection is not open yet.
    :param most_per_address: bound of the unopened ones of one client address (IPv6: one network of 64 bits); None is no
        bound of its own.
    """

    def __init__(
        self, clock: Clock, most_sockets: int, most_unopened: int, most_per_address: int | None = None
    ) -> None:
        self.most_sockets = most_sockets
        self.most_unopened = most_unopened
        self.sockets = 0
        """Sockets of clients."""
        self.accepting = True
        """False while a bound keeps further clients in the backlog."""
        self.on_slot_free: Callable[[], object] = _nothing
        """Callback that accepts further sockets, called when a socket was closed or its connection was opened."""
        self._clock = clock
        self._most_per_address = most_per_address
        self._unopened: UnopenedConnections[AdmittedSocket] = UnopenedConnections()
        self._opened_at: dict[str, float] = {}
        """Times at which the last connections were opened, by network, of networks with unopened ones."""
        self._gave_way = 0
        """Connections that gave way since the last log line about them."""
        self._reports_later = False
        """True while REPORT_INTERVAL has not passed since that line."""
        self._pauses = 0
        """Pauses of accepting since the last one that was logged as over."""
        self._paused_at = self._resumed_at = 0.0

    @property
    def unopened(self) -> int:
        """Number of sockets whose connection is not open yet."""
        return len(self._unopened)

    @property
    def is_full(self) -> bool:
        """True while no further socket is accepted, because all descriptors for them are in use."""
        return self.sockets >= self.most_sockets

    def admit(self, address: str, abort: Callable[[], object]) -> AdmittedSocket:
        """Count a socket that was accepted. If its address has too many unopened ones, the oldest of them is closed.

        :param address: IP address of the other end.
        :param abort: closes the socket at once.
        """
        admitted = AdmittedSocket(self, address, self._clock.time(), abort)
        self.sockets += 1
        self._unopened.add(admitted, admitted.network)
        self._bound_address(admitted.network)
        return admitted

    def wait(self) -> float:
        """Return 0 if a socket may be accepted now, else the seconds to wait; infinity to wait for `on_slot_free`.

        At a bound, unopened connections older than GRACE are closed to make room, of the address that has the most. They
        get MOST_GRACE while others of that address go on opening, as a herd of clients does that lost their connections.
        """
        if self.sockets < self.most_sockets and len(self._unopened) < self.most_unopened:
            return 0.0
        for _ in range(MOST_CLOSED):
            oldest = self._unopened.oldest_of_largest()
            if oldest is None:
                return math.inf
            due = oldest.accepted_at + GRACE
            if oldest.network in self._opened_at:
                opened_at = self._opened_at[oldest.network]
                due = max(due, min(opened_at + GRACE, oldest.accepted_at + MOST_GRACE))
            wait = due - self._clock.time()
            if wait > 0:
                return wait
            self._close(oldest)
            if self.sockets < self.most_sockets:
                return 0.0
        # Their descriptors are free in the next turn of the event loop.
        return math.inf

    def move(self, admitted: AdmittedSocket, address: str) -> None:
        """Count a socket for another address from now on."""
        admitted.address = address
        network = client_network(address)
        if network != admitted.network and not admitted.released:
            self._discard(admitted)
            admitted.network = network
            self._unopened.add(admitted, network)
            self._bound_address(network)

    def on_opened(self, admitted: AdmittedSocket) -> None:
        """Stop counting a socket as unopened."""
        self._opened_at[admitted.network] = self._clock.time()
        self._discard(admitted)
        self.on_slot_free()

    def release(self, admitted: AdmittedSocket) -> None:
        """Stop counting a socket, which is closed."""
        if not admitted.released:
            admitted.released = True
            self.sockets -= 1
            self._discard(admitted)
            self.on_slot_free()

    def on_paused(self, reason: str) -> None:
        """Log that accepting pauses, once for all pauses that follow each other."""
        self.accepting = False
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self._clock.time()
            logger.warning(
                "event=listener.accepting_paused reason=%r connections=%d unopened=%d limit=%d",
                reason,
                self.sockets,
                len(self._unopened),
                self.most_sockets,
            )
            self._clock.call_later(QUIET_SECONDS, self._report_resumed)

    def on_resumed(self) -> None:
        """Log that accepting goes on, once no further pause has followed for QUIET_SECONDS."""
        self.accepting = True
        self._resumed_at = self._clock.time()

    def _report_resumed(self) -> None:
        if not self.accepting or self._clock.time() - self._resumed_at < QUIET_SECONDS:
            self._clock.call_later(QUIET_SECONDS, self._report_resumed)
            return
        logger.warning(
            "event=listener.accepting_resumed connections=%d limit=%d paused_s=%.1f pauses=%d",
            self.sockets,
            self.most_sockets,
            self._resumed_at - self._paused_at,
            self._pauses,
        )
        self._pauses = 0

    def _bound_address(self, network: str) -> None:
        most = self._most_per_address
        if most is not None and self._unopened.count(network) > most:
            oldest = self._unopened.oldest_of(network)
            if oldest is not None:
                self._close(oldest)

    def _discard(self, admitted: AdmittedSocket) -> None:
        self._unopened.discard(admitted)
        if not self._unopened.count(admitted.network):
            self._opened_at.pop(admitted.network, None)

    def _close(self, admitted: AdmittedSocket) -> None:
        self._discard(admitted)
        self._gave_way += 1
        if not self._reports_later:
            self._report(admitted.address)
        admitted.abort()

    def _report(self, address: str) -> None:
        logger.warning(
            "event=listener.unopened_closed count=%d peer=%s unopened=%d limit=%d",
            self._gave_way,
            address,
            len(self._unopened),
            self.most_unopened,
        )
        self._gave_way = 0
        self._reports_later = True

        def again() -> None:
            self._reports_later = False
            if self._gave_way:
                self._report(address)

        self._clock.call_later(REPORT_INTERVAL, again)


def _nothing() -> None:
    return
