"""Heartbeats of a connection, and detection of a dead client (https://www.rabbitmq.com/docs/heartbeats)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from warren.broker.connection.connection_phases import LINGERING
from warren.broker.connection.tcp_statistics import bytes_received, is_receive_buffer_full

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.connection.lifecycle import ConnectionLifecycle

logger = logging.getLogger(__name__)

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
MISSED_LIMIT: Final = 2
"""Consecutive heartbeat timeouts without a byte from the client after which the client is considered dead."""


class Heartbeats:
    """Heartbeats of one connection.

    One is sent after each half timeout without other output. A client silent for two timeouts is disconnected. While the
    socket is not read, the bytes that arrive there are counted by the system. (RabbitMQ checks nothing meanwhile.)
    """

    def __init__(self, connection: Connection, lifecycle: ConnectionLifecycle) -> None:
        self._connection = connection
        self._lifecycle = lifecycle
        self._timeout = 0
        self._received: int | None = None
        """Bytes that had arrived at the socket at the last check; None if unknown."""
        self._missed = 0

    def start(self, timeout: int) -> None:
        """Start sending heartbeats and checking for those of the client.

        :param timeout: the negotiated heartbeat timeout in seconds.
        """
        self._timeout = timeout
        # The first heartbeat comes after half a timeout, as in RabbitMQ: connection.open-ok is no output of that time.
        self._connection.flush()
        self._connection.has_sent = False
        self._lifecycle.call_later(timeout / 2, self._send)
        self._lifecycle.call_later(timeout, self._check)

    def _send(self) -> None:
        """Send a heartbeat unless other output was sent during the last half timeout."""
        connection = self._connection
        if connection.phase >= LINGERING:
            return
        if not connection.has_sent:
            connection.write(HEARTBEAT_FRAME)
        self._lifecycle.send_timeout.watch()
        connection.has_sent = False
        self._lifecycle.call_later(self._timeout / 2, self._send)

    def _check(self) -> None:
        """Disconnect the client if it has been silent for two timeouts."""
        connection = self._connection
        if connection.phase >= LINGERING:
            return
        has_arrived = self._has_arrived()
        if connection.has_received or (connection.reads_paused and has_arrived):
            self._missed = 0
        else:
            self._missed += 1
        connection.has_received = False
        if self._missed >= MISSED_LIMIT:
            logger.warning(
                "event=connection.heartbeat_missed peer=%s timeout_s=%d", connection.peer, self._timeout
            )
            self._lifecycle.drop()
            return
        self._lifecycle.call_later(self._timeout, self._check)

    def _has_arrived(self) -> bool:
        """Return whether bytes have arrived since the last check, read or not, or may be unable to arrive.

        They are unable to if the socket is full of unread input. On systems that count no bytes, always return True.
        """
        sock = self._connection.transport.get_extra_info("socket")
        before, self._received = self._received, bytes_received(sock)
        return self._received is None or self._received != before or is_receive_buffer_full(sock)
