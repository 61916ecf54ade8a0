"""When a connection is not read: its client leaves too much unread, the disk is behind, an alarm stands, or all stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.session.limits import UNWRITTEN_LIMIT

if TYPE_CHECKING:
    from warren.broker.session.connection import Connection


def leave_unread(connection: Connection) -> None:
    """The client asks for answers that it does not read: it has to wait."""
    if not connection.stalled and not connection.closed and not connection.closing:
        connection.stalled = True
        connection.unread = True
        connection.transport.pause_reading()


def hold_back(connection: Connection) -> None:
    """A publisher is not read while the disk is behind, or while an alarm stands."""
    node = connection.node
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
