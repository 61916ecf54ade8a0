"""Send timeout: ends the connection of a client that has stopped reading its socket.

Such a client may still send heartbeats, and would keep its exclusive queues, its unacknowledged messages and its role as
single active consumer for ever. RabbitMQ has this timeout from its socket library, Ranch: `send_timeout` of 30 s, with
`send_timeout_close` (https://github.com/ninenines/ranch, ranch_tcp).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from warren.broker.connection.connection_phases import CLOSING
from warren.broker.connection.tcp_statistics import bytes_acknowledged

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.connection.lifecycle import ConnectionLifecycle

logger = logging.getLogger(__name__)

SAMPLES: Final = 10
"""Samples in a row without progress after which the connection ends, one each tenth of the timeout.

They are counted instead of the time: a machine that was suspended has not given the client that time.
"""


class SendTimeout:
    """Send timeout of one connection.

    It is watched while the socket does not take all output. A client makes progress if its system acknowledges bytes,
    which it does while the client reads, or if the write buffer shrinks. Connections without a socket have no timeout.

    :param seconds: seconds without progress after which the connection ends; 0 is never.
    """

    def __init__(self, connection: Connection, lifecycle: ConnectionLifecycle, seconds: float) -> None:
        self._connection = connection
        self._lifecycle = lifecycle
        self._seconds = seconds
        self._watching = False
        self._samples = 0
        """Samples in a row without progress."""
        self._acknowledged: int | None = None
        """Bytes that the client's system had acknowledged at the last sample; None if the system does not count them."""
        self._unread = 0
        """Bytes that the socket had not taken at the last sample."""
        self._has_drained = False
        """True if the write buffer has sunk below its low-water mark since the last sample, whatever was added after."""

    def watch(self) -> None:
        """Watch the client if its socket has not taken all output; no effect if it is watched already."""
        if self._watching or not self._seconds or self._connection.phase >= CLOSING:
            return
        sock = self._connection.transport.get_extra_info("socket")
        if sock is None or not self._connection.unread_bytes():
            return
        self._watching = True
        self._samples = 0
        self._has_drained = False
        self._acknowledged = bytes_acknowledged(sock)
        self._unread = int(self._connection.unread_bytes())
        self._lifecycle.call_later(self._seconds / SAMPLES, self._sample)

    def on_drained(self) -> None:
        """Take note that the socket has taken most of the output: further deliveries may hide it from the next sample."""
        self._has_drained = True

    def _sample(self) -> None:
        """End the connection after SAMPLES samples without progress; stop watching if the socket has taken all output."""
        connection = self._connection
        unread = int(connection.unread_bytes())
        if not unread or connection.phase >= CLOSING:
            self._watching = False
            return
        acknowledged = bytes_acknowledged(connection.transport.get_extra_info("socket"))
        has_drained, self._has_drained = self._has_drained, False
        if acknowledged != self._acknowledged or unread < self._unread or has_drained:
            self._samples = 0
        else:
            self._samples += 1
        self._acknowledged, self._unread = acknowledged, unread
        if self._samples < SAMPLES:
            self._lifecycle.call_later(self._seconds / SAMPLES, self._sample)
            return
        logger.warning(
            "event=connection.send_timed_out peer=%s timeout_s=%g unread_bytes=%d",
            connection.peer,
            self._seconds,
            unread,
        )
        connection.node.churn.send_timeouts += 1
        self._lifecycle.abort()
