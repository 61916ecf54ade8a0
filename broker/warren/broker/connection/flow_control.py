"""Flow control: reasons for not reading a connection, and the resource alarms and disk backlogs that pause publishers.

Sources: https://www.rabbitmq.com/docs/flow-control, .../docs/alarms and .../docs/connection-blocked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.connection.connection import Connection
    from warren.broker.store.log.log import Log

logger = logging.getLogger(__name__)

# Reasons for which a connection is not read: bits of `Connection.reads_paused`.

AWAITING_REPLY: Final = 1
"""Reason not to read a client: the reply to its last method is not sent yet, usually because it waits for the disk."""
CLIENT_NOT_READING: Final = 2
"""Reason not to read a client: it does not read itself, and more than UNREAD_LIMIT bytes of output wait for it."""
ALARM: Final = 4
"""Reason not to read a client: it publishes during a resource alarm (connection.blocked)."""
DISK: Final = 8
"""Reason not to read a client: it publishes while the disk is too slow for the log or for paging."""
STOPPING: Final = 16
"""Reason not to read a client: the broker is stopping; it still confirms publishes that have arrived."""
BULK_WORK: Final = 32
"""Reason not to read a client: the bulk work that its last frame has caused is not finished."""
TURN_OVER: Final = 64
"""Reason not to read a client: its frames have taken the time of a slice, so that it is the turn of others."""

FRAMES_HELD: Final = AWAITING_REPLY | CLIENT_NOT_READING | ALARM | BULK_WORK | TURN_OVER
"""Reasons not to read a client for which complete frames that it has already sent are not processed either."""
PUBLISHER_PAUSED: Final = ALARM | DISK | STOPPING
"""Reasons not to read a publisher; `list_connections` then shows the state `flow`, or `blocked` for ALARM."""

BACKLOG_MESSAGES: Final = 2000
"""Number of ready messages beyond which a queue has a backlog, so that publishers to it are throttled."""
BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Bytes of ready messages beyond which a queue has a backlog, even with few messages (see BACKLOG_MESSAGES)."""
UNWRITTEN_LIMIT: Final = 16 * 1024 * 1024
"""Bytes waiting to be written to the log beyond which publishers are paused; they are resumed at half of it."""
OWN_UNWRITTEN_BYTES: Final = 256 * 1024
"""Bytes that a connection may send while the log is behind before it is paused, so that a quiet publisher is not."""
ALL_UNWRITTEN_BYTES: Final = 32 * 1024 * 1024
"""Bytes that all connections together may send so, before each that publishes is paused: there may be thousands of them."""
UNREAD_LIMIT: Final = 32 * 1024 * 1024
"""Bytes of output that a client may leave unread before the processing of its frames is paused.

Deliveries to it pause long before, at the high-water mark of its write buffer.
"""

# Resources and sources of alarms.

MEMORY_RESOURCE: Final = "memory"
DISK_RESOURCE: Final = "disk"
LOG_SOURCE: Final = "log"
"""Key in `FlowControl.alarms` of the alarm for a full or failed disk that holds the log."""


class FlowControl:
    """Flow control of a broker: pauses publishers during resource alarms and while log or paging is behind.

    :ivar alarm: reason text of connection.blocked, such as `low on memory`; empty without an alarm.
    :ivar alarms: alarms in effect: the key is the component that raised the alarm, the value the resource, memory or
        disk.
    :ivar paging_behind: True while messages cannot be paged out as fast as they are published.
    """

    def __init__(self, connections: dict[ClientSession, bool], log: Optional[Log]) -> None:  # noqa: UP045
        self.connections = connections
        self.log = log
        self.paused: dict[ClientSession, bool] = {}
        self.paging_behind = False
        self.admitted_limit: i64 = ALL_UNWRITTEN_BYTES
        """Most bytes of `admitted_bytes`, beyond which each connection that publishes is paused."""
        self.catch_ups: i64 = 0
        """Number of times that a sync of the log has found no more than half of UNWRITTEN_LIMIT unwritten."""
        self.admitted_bytes: i64 = 0
        """Bytes that connections which were not paused have sent while the log was behind, since the last of those times."""
        self.alarm = b""
        self.on_alarm: Optional[Callable[[str, bool], None]] = None  # noqa: UP045
        """Function that is called with the resource of each alarm that is raised (True) or cleared (False)."""
        self.alarms: dict[str, str] = {}

    def log_behind(self) -> bool:
        """Return whether more than UNWRITTEN_LIMIT bytes wait to be written to the log: publishers of much are paused."""
        log = self.log
        return log is not None and log.unwritten_bytes > UNWRITTEN_LIMIT

    def log_caught_up(self) -> bool:
        """Return whether paused publishers may be resumed: at most UNWRITTEN_LIMIT / 2 bytes wait for the log."""
        log = self.log
        return log is None or log.unwritten_bytes <= UNWRITTEN_LIMIT // 2

    def on_batch_synced(self) -> None:
        """Resume paused publishers if the log has caught up; called after each sync of the log."""
        if self.log_caught_up():
            self.catch_ups += 1
            self.admitted_bytes = 0
            if self.paused and not self.alarm:
                self.resume_publishers()

    def admits(self, connection: Connection, received: i64) -> bool:
        """Return whether a connection may publish although the log is behind, because it has sent little since.

        :param received: bytes of its input that were just processed.
        """
        if connection.catch_up != self.catch_ups:
            connection.catch_up = self.catch_ups
            connection.admitted_bytes = 0
        connection.admitted_bytes += received
        self.admitted_bytes += received
        return connection.admitted_bytes <= OWN_UNWRITTEN_BYTES and self.admitted_bytes <= self.admitted_limit

    def on_paging_behind(self, behind: bool) -> None:
        """Store whether paging is `behind`: messages are published faster than they can be paged out.

        If it is not, resume paused publishers, unless there is an alarm.
        """
        self.paging_behind = behind
        if behind:
            logger.info("event=paging.fell_behind")
        else:
            logger.info("event=paging.caught_up")
            if not self.alarm:
                self.resume_publishers()

    def on_disk_full(self, full: bool) -> None:
        """Raise or clear the alarm for a full disk, on which the log cannot grow."""
        self.set_alarm(LOG_SOURCE, DISK_RESOURCE, full)

    def set_alarm(self, source: str, resource: str, raised: bool) -> None:
        """Raise or clear the alarm that one component reports.

        An alarm blocks publishers only: a connection is blocked at the first basic.publish that is processed while the
        alarm is in effect, before anything is published.
        Publishes before the alarm do not count, but a publisher that is paused for a slow disk is blocked at once, and so
        is one whose publishes wait for room on a full disk (`BrokerNode.on_disk_full`).

        :param source: the component that reports it, such as LOG_SOURCE.
        :param resource: MEMORY_RESOURCE or DISK_RESOURCE.
        :param raised: True to raise the alarm, False to clear it; no effect if it is raised or cleared already.
        """
        if (source in self.alarms) == raised:
            return
        if raised:
            self.alarms[source] = resource
            logger.warning("event=alarm.raised resource=%s source=%r", resource, source)
        else:
            del self.alarms[source]
            logger.warning("event=alarm.cleared resource=%s source=%r", resource, source)
        if self.on_alarm is not None:
            self.on_alarm(resource, raised)
        low = [name for name in (DISK_RESOURCE, MEMORY_RESOURCE) if name in self.alarms.values()]
        had_alarm = bool(self.alarm)
        self.alarm = ("low on " + " & ".join(low)).encode() if low else b""
        if self.alarm and not had_alarm:
            for session in self.connections:
                session.on_alarm()
            for session in self.paused:
                session.block()
        elif not self.alarm:
            self.resume_publishers()

    def block(self, session: ClientSession) -> None:
        """Block a session until no alarm is in effect; no effect if it has ended."""
        if session in self.connections:
            session.block()
            self.paused[session] = True

    def blocked_input_bytes(self) -> int:
        """Return the bytes of memory that hold input of blocked sessions, which waits for the end of the alarm."""
        return sum(session.blocked_input_bytes() for session in self.paused)

    def resume_publishers(self) -> None:
        """Resume reading from all paused publishers."""
        paused = self.paused
        self.paused = {}
        for session in paused:
            session.resume_publisher()
