"""Broker-wide state that all connections share: virtual hosts, users, settings, pending output and replies."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sized
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.access.access_control import Access
from warren.broker.access.sasl_authentication import LoginSettings
from warren.broker.connection.connection_limits import ConnectionLimits
from warren.broker.connection.connection_settings import ConnectionSettings
from warren.broker.connection.flow_control import LOG_SOURCE, STOPPING, FlowControl
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.publisher_confirms import PublisherConfirms
    from warren.broker.connection.connection import Connection
    from warren.broker.model.vhost.declarations import Declarations
    from warren.broker.store.definitions.definitions_database import Definitions
    from warren.broker.store.log.log import Log

logger = logging.getLogger(__name__)

CONFIRM_DRAIN_SECONDS: Final = 5.0
"""Seconds for which a stop waits for the confirms of what was published before it."""


class BrokerNode:
    """State of one broker that all its connections share.

    :ivar connections: connections that have not ended, in the order in which they were accepted.
    :ivar flow: flow control of publishers, with the resource alarms.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        access: Access,
        login_settings: LoginSettings,
        settings: ConnectionSettings,
        virtual_hosts: VirtualHosts,
        log: Optional[Log],  # noqa: UP045
        definitions: Optional[Definitions],  # noqa: UP045
        server_properties: bytes,
    ) -> None:
        self.loop = loop
        self.access = access
        self.login_settings = login_settings
        self.settings = settings
        self.virtual_hosts = virtual_hosts
        self.vhosts: dict[bytes, Declarations] = virtual_hosts.declarations
        self.log = log
        self.definitions = definitions
        self.server_properties = server_properties
        self.connections: dict[Connection, bool] = {}
        self.limits = ConnectionLimits(self.connections, self.vhosts, access, settings)
        self.flow = FlowControl(self.connections, log)
        self.unflushed: list[Connection] = []
        """Connections with output that has yet to be written."""
        self.flush_scheduled = False
        """The event loop will call `flush_all`."""
        self.processing_input = False
        """Frames of a client are being processed; their output is flushed afterwards."""
        self.loop_callbacks: Optional[Sized] = getattr(loop, "_ready", None)  # noqa: UP045
        """Callbacks that the loop runs before it polls again; None for a loop other than asyncio's own."""
        self.confirm_waiters: list[PublisherConfirms] = []
        """Channels with publishes that are not on the disk yet."""
        self.commit_waiters: deque[tuple[int, Connection, bytes]] = deque()
        """Replies that wait for definitions: number of the change, connection, reply."""
        self.sync_waiters: deque[tuple[int, Connection, bytes]] = deque()
        """Replies that wait for the log: number of the batch, connection, reply."""
        self.confirms_drained: Optional[asyncio.Future[None]] = None  # noqa: UP045
        """Resolved when no confirm waits for the disk any more; None unless the broker stops."""

    # -- output

    def flush_later(self, connection: Connection) -> None:
        """Flush a connection when the input at hand has been processed, or at the latest before the loop polls."""
        connection.flush_scheduled = True
        self.unflushed.append(connection)
        if not self.processing_input:
            self.schedule_flush()

    def schedule_flush(self) -> None:
        """Have the loop call `flush_all`, once."""
        if not self.flush_scheduled:
            self.flush_scheduled = True
            self.loop.call_soon(self.flush_all)

    def input_processed(self) -> None:
        """Flush the output of the input that was just processed, unless more input waits in the loop.

        With no callback pending, waiting would gather nothing more. Connections are flushed in the order in which their
        output arose: deliveries first, then their publisher's confirm. The first one written to gets a core of its own
        sooner, and a delivery is what somebody waits for.
        """
        self.processing_input = False
        if not self.unflushed:
            return
        if self.loop_callbacks is None or len(self.loop_callbacks):
            self.schedule_flush()
            return
        self.flush_all()

    def flush_all(self) -> None:
        """Write the output of all connections that have some."""
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
        """Return the number of the log's batch that the records just appended belong to."""
        log = self.log
        assert log is not None
        return log.batch

    def synced_batch(self) -> i64:
        """Return the number of the last batch that is on the disk; 0 without a log."""
        log = self.log
        return log.synced if log is not None else 0

    def log_failed(self) -> bool:
        """Return whether a write or a sync of the log has failed."""
        log = self.log
        return log is not None and log.failed

    def on_synced(self, batch: int) -> None:
        """Send the confirms and replies that waited for a batch of the log, and resume publishers."""
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
        if not self.confirm_waiters:
            self.resolve_drained()
        self.flow.on_batch_synced()

    def on_failed(self) -> None:
        """Refuse all publishes that wait for the disk, after it has failed."""
        waiters = self.confirm_waiters
        self.confirm_waiters = []
        for confirms in waiters:
            confirms.waiting = False
            confirms.channel.connection.schedule_confirms(confirms)
            confirms.channel.connection.flush()
        self.resolve_drained()

    def resolve_drained(self) -> None:
        """Let a stop that waits for the confirms go on."""
        if self.confirms_drained is not None and not self.confirms_drained.done():
            self.confirms_drained.set_result(None)

    async def drain_confirms(self) -> None:
        """Stop reading all connections, and wait until what was published has been confirmed."""
        for connection in list(self.connections):
            connection.pause_reads(STOPPING)
        if self.confirm_waiters and LOG_SOURCE not in self.flow.alarms:
            self.confirms_drained = self.loop.create_future()
            try:
                async with asyncio.timeout(CONFIRM_DRAIN_SECONDS):
                    await self.confirms_drained
            except TimeoutError:
                logger.warning("event=broker.stopped_without_confirms channels=%d", len(self.confirm_waiters))
        for connection in list(self.connections):
            connection.flush()

    # -- replies that wait for definitions

    def on_committed(self, change: int) -> None:
        """Send the replies that waited for definitions, which are on disk up to a change."""
        waiters = self.commit_waiters
        while waiters and waiters[0][0] <= change:
            _, connection, reply = waiters.popleft()
            self.send_awaited_reply(connection, reply)

    def send_awaited_reply(self, connection: Connection, reply: bytes) -> None:
        """Send a reply that had to wait. An error of one connection does not keep the others from their replies."""
        try:
            connection.resume_with(lambda: connection.send(reply))
        except Exception:
            logger.exception("event=connection.crashed peer=%s", connection.peer)
            connection.lifecycle.handle_error(AmqpError(Reply.INTERNAL_ERROR, "internal error"))

    # -- closing

    def close_connections(self, explanation: str, user: str = "", vhost: str = "") -> None:
        """Close the connections of a user, or to a virtual host, with 320 CONNECTION_FORCED."""
        reason = AmqpError(Reply.CONNECTION_FORCED, explanation)
        for connection in list(self.connections):
            if (user and connection.user == user.encode()) or (vhost and connection.vhost == vhost.encode()):
                connection.lifecycle.shut_down(reason)
