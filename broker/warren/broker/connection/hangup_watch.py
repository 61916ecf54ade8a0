"""Detection of clients that end while the broker does not read them during a resource alarm.

They publish, or wait for a reply that the disk holds up.

A socket that is not read does not report the end of its input. RabbitMQ notices such an end by the heartbeats that it
sends, and without heartbeats when it reads again (https://github.com/rabbitmq/rabbitmq-server/issues/384).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from warren.broker.connection.heartbeats import HEARTBEAT_FRAME
from warren.core.operating_system.portable_switch import offered

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

HANGUP: Final[int] = offered("select", "EPOLLRDHUP") or 0
"""Event mask of the end of a socket's input; errors and resets are always reported. 0 on systems without epoll."""
_new_epoll: Final[Any] = offered("select", "epoll")
PROBE_SECONDS: Final = 15.0
"""Seconds between two probes of clients without heartbeats."""
MOST_EVENTS: Final = 256


class HangupWatch:
    """Watch for the ends of sockets that are not read.

    An epoll instance of its own watches them for nothing but their end; the event loop watches the epoll instance. This
    works on every event loop and with TLS, and costs nothing for sockets at which nothing happens.

    The end of a client that had more to send than fits into the socket is not visible there: it waits behind that input.
    So each client is sent a heartbeat frame now and then, even if it has negotiated none. The system of a client that is
    dead answers it with a reset, which is visible.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Created at the start: a lack of descriptors blocks clients too, and would prevent its creation then.
        self._epoll: Any = _new_epoll() if HANGUP else None
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._on_ready)
        self._descriptors: dict[Connection, int] = {}
        self._connections: dict[int, Connection] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: Connection) -> None:
        """Watch a connection's socket, until `unwatch` or its end.

        No effect on systems without epoll, or if the system cannot watch more sockets: heartbeats then find the end.
        """
        sock = connection.transport.get_extra_info("socket")
        descriptor = -1 if sock is None else sock.fileno()
        if self._epoll is None or descriptor < 0 or connection in self._descriptors:
            return
        try:
            self._epoll.register(descriptor, HANGUP)
        except OSError:
            return
        self._descriptors[connection] = descriptor
        self._connections[descriptor] = connection
        if self._timer is None:
            self._timer = self._loop.call_later(PROBE_SECONDS, self._probe)

    def unwatch(self, connection: Connection) -> None:
        """Stop watching a connection, before its socket is read again or closed; no effect if it is not watched."""
        descriptor = self._descriptors.pop(connection, -1)
        if descriptor >= 0 and self._epoll is not None:
            del self._connections[descriptor]
            # asyncio closes the socket of a TLS connection before it reports the loss.
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        self._descriptors.clear()
        self._connections.clear()

    def _on_ready(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0, MOST_EVENTS):
            connection = self._connections.get(descriptor)
            if connection is not None:
                connection.lifecycle.on_hung_up()

    def _probe(self) -> None:
        self._timer = None
        for connection in list(self._descriptors):
            # Those with heartbeats are sent them anyway, and output that is not sent yet will do as well.
            if (
                not connection.lifecycle.handshake.heartbeat
                and not connection.transport.get_write_buffer_size()
            ):
                connection.write(HEARTBEAT_FRAME)
        if self._descriptors:
            self._timer = self._loop.call_later(PROBE_SECONDS, self._probe)
