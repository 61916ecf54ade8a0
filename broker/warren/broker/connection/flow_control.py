"""When a connection is read less, or not: its client leaves too much unread, its queue or the disk is behind, an alarm
stands, or all stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Optional

from warren.broker.connection.peer_limits import UNWRITTEN_LIMIT

if TYPE_CHECKING:
    from warren.broker.channel.channel import Target
    from warren.broker.connection.connection import Connection

BACKLOG: Final = 2000
BACKLOG_BYTES: Final = 16 * 1024 * 1024
"""Ready messages, and their bytes, beyond which consumers count as behind their queue's publishers."""


def crowds(last: Optional[Target]) -> bool:  # noqa: UP045
    """Whether the last publish of a connection went into a queue whose consumers are behind; without any, nobody waits."""
    if last is None or not last.queues:
        return False
    queue = last.queues[0]
    waiting = queue.ready
    return (waiting.count > BACKLOG or waiting.bytes > BACKLOG_BYTES) and len(queue.scheduler.consumers) > 0


def leave_unread(connection: Connection) -> None:
    """The client asks for answers that it does not read: it has to wait."""
    if not connection.stalled and not connection.closed and not connection.closing:
        connection.stalled = True
        connection.unread = True
        connection.transport.pause_reading()


def hold_back(connection: Connection) -> None:
    """A publisher is read in smaller pieces while its queue is behind, not at all while the disk is or an alarm stands."""
    node = connection.node
    connection.crowding = crowds(connection.last)
    if node.alarm:
        connection.conversation.block(connection)
        connection.stalled = True
    elif not node.overfull(UNWRITTEN_LIMIT) and not (node.behind and not holds_unacked(connection)):
        return
    stop_reading(connection)
    node.paused[connection] = True


def holds_unacked(connection: Connection) -> bool:
    """Whether what it would send may make room: an acknowledgement has to be read."""
    return any(channel.unacked for channel in connection.channels.values())


def stop_reading(connection: Connection) -> None:
    connection.reading = False
    if not connection.closed:
        connection.transport.pause_reading()


def resume_reading(connection: Connection) -> None:
    if connection.closed or connection.closing:
        return
    connection.reading = True
    connection.conversation.unblock(connection)
    connection.go_on()
