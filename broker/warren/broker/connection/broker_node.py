"""State of one broker that its connections share: virtual hosts, users, settings, pending output and replies."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.access.access_control import Access
from warren.broker.access.audit_log import AuditLog
from warren.broker.access.login_chain import LoginChain
from warren.broker.access.sasl_authentication import LoginSettings
from warren.broker.connection.churn import Churn
from warren.broker.connection.connection_limits import ConnectionLimits
from warren.broker.connection.connection_settings import ConnectionSettings
from warren.broker.connection.flow_control import LOG_SOURCE, FlowControl
from warren.broker.connection.hangup_watch import HangupWatch
from warren.broker.connection.login_delays import LoginDelays
from warren.broker.model.message_counts import SizeCounts
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.publisher_confirms import PublisherConfirms
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.connection.connection import Connection
    from warren.broker.model.vhost.declarations import Declarations
    from warren.broker.store.definitions.definitions_database import Definitions
    from warren.broker.store.log.log import Log

logger = logging.getLogger(__name__)

CONFIRM_DRAIN_SECONDS: Final = 5.0
"""Seconds that a stopping broker waits until the log is on disk and earlier publishes are confirmed."""


MESSAGE_SIZES: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""Upper bounds of the buckets of `BrokerNode.message_sizes`, in bytes: those of RabbitMQ."""


class BrokerNode:
    """State of one broker that all its connections share.

    :ivar connections: connections that have not ended, in the order in which they were accepted.
    :ivar flow: flow control of publishers, with the resource alarms.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        access: Access,
        logins: LoginChain,
        login_settings: LoginSettings,
        settings: ConnectionSettings,
        virtual_hosts: VirtualHosts,
        log: Optional[Log],  # noqa: UP045
        definitions: Optional[Definitions],  # noqa: UP045
        server_properties: bytes,
    ) -> None:
        self.loop = loop
        self.access = access
        self.logins = logins
        self.login_settings = login_settings
        self.audit: Optional[AuditLog] = None  # noqa: UP045
        """Log of changes; None if there is none."""
        self.settings = settings
        self.virtual_hosts = virtual_hosts
        self.vhosts: dict[bytes, Declarations] = virtual_hosts.declarations
        self.log = log
        self.definitions = definitions
        self.server_properties = server_properties
        self.connections: dict[ClientSession, bool] = {}
        self.lingering: dict[Connection, bool] = {}
        """Connections that their clients have closed, and whose sockets are still open: a dict as an ordered set."""
        self.limits = ConnectionLimits(self.connections, self.vhosts, access, settings)
        self.churn = Churn()
        self.message_sizes = SizeCounts(list(MESSAGE_SIZES))
        """Body sizes of the messages that clients have published, in bytes, without the latest ones of open channels."""
        self.login_delays = LoginDelays(settings.login_failure_delay, loop.time)
        self.hangups = HangupWatch(loop)
        self.flow = FlowControl(self.connections, log)
        self.unflushed: list[Connection] = []
        """Connections with output that `flush_all` has yet to write."""
        self.flush_scheduled = False
        """True while a call of `flush_all` is scheduled on the event loop."""
        self.processing_input = False
        """True while frames of a client are processed; the output that they cause is flushed afterwards."""
        self.loop_callbacks: Optional[Sized] = getattr(loop, "_ready", None)  # noqa: UP045
        """Callbacks that asyncio's event loop will run before its next poll; None for an event loop of another kind."""
        self.confirm_waiters: list[PublisherConfirms] = []
        """Publisher confirms of the channels that have publishes which are not on disk yet."""
        self.commit_waiters: deque[tuple[int, Connection, bytes]] = deque()
        """(change, connection, reply): replies to send when the change of definitions with this number is on disk."""
        self.sync_waiters: deque[tuple[int, Connection, bytes]] = deque()
        """(batch, connection, reply): replies to send when the log batch with this number is on disk."""
        self.sync_calls: deque[tuple[int, Callable[[bool], None]]] = deque()
        """(batch, function): functions to call when the log batch with this number is on disk, or the log has failed."""
        self.confirms_drained: Optional[asyncio.Future[None]] = None  # noqa: UP045
        """Future resolved when no publish waits for the disk any more; None unless the broker is stopping."""

    # -- output

    def flush_later(self, connection: Connection) -> None:
        """Schedule a flush of a connection: when the input being processed is done, else in the next loop iteration."""
        connection.flush_scheduled = True
        self.unflushed.append(connection)
        if not self.processing_input:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        """Schedule one call of `flush_all` on the event loop, unless one is scheduled already."""
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self.loop.call_soon(self.flush_all)

    def input_processed(self) -> None:
        """Write the output that the input just processed has caused; postpone it if the loop has callbacks pending.

        A pending callback may bring more input, whose output is then written in the same system call. Connections are
        flushed in the order in which their output arose, so that a consumer gets a message before the publisher gets
        the confirm: a delivery is more urgent than a confirm.
        """
        self.processing_input = False
        if not self.unflushed:
            return
        if self.loop_callbacks is None or len(self.loop_callbacks):
            self.schedule_flush()
            return
        self.flush_all()

    def flush_all(self) -> None:
        """Write the pending output of all connections."""
        self.flush_scheduled = False
        unflushed = self.unflushed
        self.unflushed = []
        for connection in unflushed:
            connection.flush_scheduled = False
            try:
                connection.flush()
            except Exception:
                # The others' output is written all the same.
                logger.exception("event=connection.crashed peer=%s", connection.peer)
                connection.transport.abort()

    # -- confirms and replies that wait for the log

    def current_batch(self) -> i64:
        """Return the number of the log batch (records synced together) that the next record will be part of.

        `on_synced` is called when that batch is on disk.
        """
        log = self.log
        assert log is not None
        return log.batch

    def last_batch(self) -> i64:
        """Return the number of the last log batch that has records. It may be on disk already."""
        log = self.log
        assert log is not None
        return log.last_batch

    def synced_batch(self) -> i64:
        """Return the number of the last log batch that is on disk; 0 without a log."""
        log = self.log
        return log.synced if log is not None else 0

    def log_failed(self) -> bool:
        """Return whether a write or a sync of the log has failed."""
        log = self.log
        return log is not None and log.failed

    def on_synced(self, batch: int) -> None:
        """Send the confirms and replies that waited for log batches up to `batch`, and resume paused publishers."""
        waiters = self.confirm_waiters
        self.confirm_waiters = []
        for confirms in waiters:
            ranges = confirms.ranges
            if not ranges:
                confirms.waiting = False
                continue
            if ranges[0].batch <= batch and not confirms.flush_scheduled:
                confirms.channel.connection.schedule_confirms(confirms)
            if ranges[-1].batch > batch:
                self.confirm_waiters.append(confirms)
            else:
                confirms.waiting = False
        while self.sync_waiters and self.sync_waiters[0][0] <= batch:
            _, connection, reply = self.sync_waiters.popleft()
            self.send_awaited_reply(connection, reply)
        while self.sync_calls and self.sync_calls[0][0] <= batch:
            self.sync_calls.popleft()[1](True)
        if not self.confirm_waiters:
            self.resolve_drained()
        self.flow.on_batch_synced()

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """Call a function when all that is in the log now is on disk; at once if it is, or there is no log.

        The argument is False if the log has failed meanwhile.
        """
        batch = self.last_batch() if self.log is not None else 0
        if self.log_failed() or batch <= self.synced_batch():
            call(not self.log_failed())
        else:
            self.sync_calls.append((int(batch), call))

    def on_disk_full(self, full: bool) -> None:
        """Raise or clear the alarm for a full disk, and block the publishers that wait for it.

        Their publishes were received before the alarm, and are neither confirmed nor refused until there is room. Without
        connection.blocked, their clients would take the broker for slow. That holds also if the disk alarm was raised
        before, when there was little room.

        :param full: True if a write of the log found no room.
        """
        self.flow.on_disk_full(full)
        if full:
            for confirms in self.confirm_waiters:
                if confirms.ranges:
                    self.flow.block(confirms.channel.connection)
            for waiter in self.sync_waiters:
                self.flow.block(waiter[1])

    def on_failed(self) -> None:
        """Send basic.nack for all publishes that wait for the disk, because the disk has failed."""
        waiters = self.confirm_waiters
        self.confirm_waiters = []
        for confirms in waiters:
            confirms.waiting = False
            confirms.channel.connection.schedule_confirms(confirms)
            confirms.channel.connection.flush()
        while self.sync_calls:
            self.sync_calls.popleft()[1](False)
        self.resolve_drained()

    def resolve_drained(self) -> None:
        """Resolve `confirms_drained` if the broker is stopping, as no publish waits for the disk any more."""
        if self.confirms_drained is not None and not self.confirms_drained.done():
            self.confirms_drained.set_result(None)

    async def drain_confirms(self) -> None:
        """Stop reading from all clients, and wait until the publishes received so far are on disk; send their confirms.

        The wait is limited to CONFIRM_DRAIN_SECONDS, and omitted while the disk is full or has failed.
        """
        for session in list(self.connections):
            session.stop_reading()
        if self.confirm_waiters and LOG_SOURCE not in self.flow.alarms:
            self.confirms_drained = self.loop.create_future()
            try:
                async with asyncio.timeout(CONFIRM_DRAIN_SECONDS):
                    await self.confirms_drained
            except TimeoutError:
                logger.warning("event=broker.stopped_without_confirms channels=%d", len(self.confirm_waiters))
        for session in list(self.connections):
            session.flush()

    async def end_connections(self) -> None:
        """Send outstanding publisher confirms, and close all connections as a broker does that stops."""
        await self.drain_confirms()
        for session in list(self.connections):
            session.cancel_consumers()
        reason = AmqpError(Reply.CONNECTION_FORCED, "broker forced connection closure with reason 'shutdown'")
        for session in list(self.connections):
            session.shut_down(reason)
        for connection in list(self.lingering):
            connection.lifecycle.drop()

    # -- replies that wait for definitions

    def on_committed(self, change: int) -> None:
        """Send the replies that waited for definitions to be stored.

        :param change: number of the last change that is on disk; all earlier ones are on disk, too.
        """
        waiters = self.commit_waiters
        while waiters and waiters[0][0] <= change:
            _, connection, reply = waiters.popleft()
            self.send_awaited_reply(connection, reply)

    def send_awaited_reply(self, connection: Connection, reply: bytes) -> None:
        """Send a reply that waited for the disk, and process the client's next frames.

        An error on this connection is logged and handled here, so that other connections still get their replies.
        """
        try:
            connection.resume_with(lambda: connection.send(reply))
        except Exception:
            logger.exception("event=connection.crashed peer=%s", connection.peer)
            connection.lifecycle.handle_error(AmqpError(Reply.INTERNAL_ERROR, "internal error"))

    # -- closing

    def close_connections(self, explanation: str, user: str = "", vhost: str = "") -> None:
        """Close all connections of `user`, or to `vhost`, with 320 CONNECTION_FORCED and the text `explanation`."""
        reason = AmqpError(Reply.CONNECTION_FORCED, explanation)
        for session in list(self.connections):
            if (user and session.user == user.encode()) or (vhost and session.vhost == vhost.encode()):
                session.shut_down(reason)
