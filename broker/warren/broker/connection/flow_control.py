"""Flow control: reasons for not reading a connection, and the resource alarms and disk backlogs that pause publishers.

Sources: https://www.rabbitmq.com/docs/flow-control, .../docs/alarms and .../docs/connection-blocked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Optional

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.store.log.log import Log

logger = logging.getLogger(__name__)

# Reasons for which a connection is not read: bits of `Connection.reads_paused`.

AWAITING_REPLY: Final = 1
"""The reply to the last method waits, for the disk as a rule; the client's next frames wait for the reply."""
CLIENT_NOT_READING: Final = 2
"""The client leaves more than UNREAD_LIMIT of its output unread."""
ALARM: Final = 4
"""The client publishes while a resource alarm is in effect; it has been sent connection.blocked."""
DISK: Final = 8
"""The client publishes while the log or paging is behind."""
STOPPING: Final = 16
"""The broker stops: publishes that have arrived are confirmed, no others are accepted."""

FRAMES_HELD: Final = AWAITING_REPLY | CLIENT_NOT_READING | ALARM
"""Reasons for which complete frames in the buffer wait, too."""
PUBLISHER_PAUSED: Final = ALARM | DISK | STOPPING
"""Reasons that concern publishers."""

BACKLOG_MESSAGES: Final = 2000
"""Ready messages beyond which a queue has a backlog, and the publishers to it are throttled."""
BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Bytes of ready messages beyond which a queue has a backlog."""
UNWRITTEN_LIMIT: Final = 64 * 1024 * 1024
"""Publishers are paused while more bytes than this wait to be written to the log, and resumed at half of it."""
UNREAD_LIMIT: Final = 32 * 1024 * 1024
"""Bytes of output that a client may leave unread before its frames are held. Deliveries pause long before."""

# Resources and sources of alarms.

MEMORY_RESOURCE: Final = "memory"
DISK_RESOURCE: Final = "disk"
LOG_SOURCE: Final = "log"
"""Source of the alarm that a full or failed disk under the log raises."""


class FlowControl:
    """Broker-wide flow control: resource alarms, paging and log backlogs, and the publishers that they pause.

    :ivar alarm: the reason that connection.blocked gives; empty without an alarm.
    :ivar alarms: the resource of each alarm in effect, by its source.
    :ivar paging_behind: paging to disk cannot keep up with what is published.
    """

    def __init__(self, connections: dict[Connection, bool], log: Optional[Log]) -> None:  # noqa: UP045
        self.connections = connections
        self.log = log
        self.paused: dict[Connection, bool] = {}
        self.paging_behind = False
        self.alarm = b""
        self.alarms: dict[str, str] = {}

    def log_behind(self) -> bool:
        """Return whether publishers must wait for the log."""
        log = self.log
        return log is not None and log.unwritten_bytes > UNWRITTEN_LIMIT

    def log_caught_up(self) -> bool:
        """Return whether publishers that waited for the log may go on."""
        log = self.log
        return log is None or log.unwritten_bytes <= UNWRITTEN_LIMIT // 2

    def on_batch_synced(self) -> None:
        """Resume publishers if the log has caught up."""
        if self.paused and not self.alarm and self.log_caught_up():
            self.resume_publishers()

    def on_paging_behind(self, behind: bool) -> None:
        """Note whether ready messages exceed their memory budget and cannot be paged out fast enough."""
        self.paging_behind = behind
        if behind:
            logger.info("event=paging.fell_behind")
        else:
            logger.info("event=paging.caught_up")
            if not self.alarm:
                self.resume_publishers()

    def on_disk_full(self, full: bool) -> None:
        """Raise or clear the alarm of a log that finds no room on its disk."""
        self.set_alarm(LOG_SOURCE, DISK_RESOURCE, full)

    def set_alarm(self, source: str, resource: str, raised: bool) -> None:
        """Raise or clear the alarm of one source.

        Alarms block publishers and nobody else. A connection is blocked when it publishes, or waits to publish, while an
        alarm is in effect; not for what it published before.

        :param resource: MEMORY_RESOURCE or DISK_RESOURCE.
        """
        if (source in self.alarms) == raised:
            return
        if raised:
            self.alarms[source] = resource
            logger.warning("event=alarm.raised resource=%s source=%r", resource, source)
        else:
            del self.alarms[source]
            logger.warning("event=alarm.cleared resource=%s source=%r", resource, source)
        low = [name for name in (DISK_RESOURCE, MEMORY_RESOURCE) if name in self.alarms.values()]
        had_alarm = bool(self.alarm)
        self.alarm = ("low on " + " & ".join(low)).encode() if low else b""
        if self.alarm and not had_alarm:
            for connection in self.connections:
                connection.has_published = False
                connection.last_target = None
            for connection in self.paused:
                connection.block()
        elif not self.alarm:
            self.resume_publishers()

    def resume_publishers(self) -> None:
        """Read all paused publishers again."""
        paused = self.paused
        self.paused = {}
        for connection in paused:
            connection.resume_publisher()
