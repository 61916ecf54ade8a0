"""What all sessions of one broker share: its virtual hosts, its users, its disk, and who waits for the disk."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sized
from typing import TYPE_CHECKING, Optional

from mypy_extensions import i64

from warren.broker.access.access_control import Access
from warren.broker.access.sasl import Login
from warren.broker.connection.flow_control import resume_reading, stop_reading
from warren.broker.connection.peer_limits import UNWRITTEN_LIMIT, Limits
from warren.broker.model.vhost.vhost_registry import VirtualHosts
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.channel.confirms import Confirms
    from warren.broker.connection.connection import Connection
    from warren.broker.model.vhost.declarations import Declarations
    from warren.broker.store.definitions.definitions_database import Definitions
    from warren.broker.store.log.log import Log

logger = logging.getLogger(__name__)

MEMORY = "memory"
DISK = "disk"
LOG = "log"
"""The source of the alarm that a full or failed disk under the log raises."""
SETTLE_SECONDS = 5.0
"""How long a stop waits for the confirms of what was published before it."""


class Node:
    """One broker's shared state, as its sessions see it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        access: Access,
        login: Login,
        limits: Limits,
        virtual_hosts: VirtualHosts,
        log: Optional[Log],  # noqa: UP045
        definitions: Optional[Definitions],  # noqa: UP045
        server_properties: bytes,
    ) -> None:
        self.loop = loop
        self.access = access
        self.login = login
        self.limits = limits
        self.virtual_hosts = virtual_hosts
        self.vhosts: dict[bytes, Declarations] = virtual_hosts.declarations
        self.log = log
        self.definitions = definitions
        self.server_properties = server_properties
        self.connections: dict[Connection, bool] = {}
        self.unflushed: list[Connection] = []
        """Those with output that has yet to be written."""
        self.flushes = False
        """A call of `flush_all` is on its way."""
        self.working = False
        """What a client has sent is being worked off."""
        self.callbacks: Optional[Sized] = getattr(loop, "_ready", None)  # noqa: UP045
        """What the loop calls before it looks at the sockets again; None if it does not say (asyncio's own does)."""
        self.confirm_waiters: list[Confirms] = []
        self.paused: dict[Connection, bool] = {}
        self.commit_waiters: deque[tuple[int, Connection, bytes]] = deque()
        self.sync_waiters: deque[tuple[int, Connection, bytes]] = deque()
        self.settled: Optional[asyncio.Future[None]] = None  # noqa: UP045
        self.behind = False
        """Paging cannot keep up with what is published."""
        self.alarm = b""
        """Why publishers are blocked: the reason that connection.blocked gives; empty if they are not."""
        self.alarms: dict[str, str] = {}
        """Who has raised an alarm, and over which resource."""

    # -- output

    def flush_soon(self, connection: Connection) -> None:
        """It has output: written when what is being worked off is done, or the loop would sleep."""
        connection.flushing = True
        self.unflushed.append(connection)
        if not self.working:
            self.have_flushed()

    def have_flushed(self) -> None:
        if not self.flushes:
            self.flushes = True
            self.loop.call_soon(self.flush_all)

    def worked(self) -> None:
        """All that a client has sent is worked off. If no other socket has something, waiting would gather nothing more.

        In the order in which output came up: deliveries first, then their publisher's confirm. Who is written to first has
        a core of its own sooner, and the message is what somebody waits for.
        """
        self.working = False
        if not self.unflushed:
            return
        if self.callbacks is None or len(self.callbacks):
            self.have_flushed()
            return
        self.flush_all()

    def flush_all(self) -> None:
        self.flushes = False
        unflushed = self.unflushed
        self.unflushed = []
        for connection in unflushed:
            connection.flushing = False
            try:
                connection.flush()
            except Exception:
                # The others' output is written all the same.
                logger.exception("event=internal_error peer=%s", connection.peer)
                connection.transport.abort()

    # -- confirms

    def collecting(self) -> i64:
        """The batch of the log that what was just stored will be part of."""
        log = self.log
        assert log is not None
        return log.batch

    def synced(self) -> i64:
        log = self.log
        return log.synced if log is not None else 0

    def failed(self) -> bool:
        log = self.log
        return log is not None and log.failed

    def on_synced(self, batch: int) -> None:
        """The log has a batch on disk: confirm what waited for it, and read on where reading had stopped."""
        waiters = self.confirm_waiters
        self.confirm_waiters = []
        for confirms in waiters:
            runs = confirms.runs
            if not runs:
                confirms.waiting = False
                continue
            if runs[0].batch <= batch and not confirms.listed:
                confirms.channel.connection.has_confirms(confirms)
            if runs[-1].batch > batch:
                self.confirm_waiters.append(confirms)
            else:
                confirms.waiting = False
        while self.sync_waiters and self.sync_waiters[0][0] <= batch:
            _, connection, reply = self.sync_waiters.popleft()
            self.answer(connection, reply)
        if not self.confirm_waiters and self.settled is not None and not self.settled.done():
            self.settled.set_result(None)
        if self.paused and not self.alarm and not self.overfull(UNWRITTEN_LIMIT // 2):
            self.resume_reading()

    def on_failed(self) -> None:
        """The disk has failed: what waits for it is refused."""
        waiters = self.confirm_waiters
        self.confirm_waiters = []
        for confirms in waiters:
            confirms.waiting = False
            confirms.channel.connection.has_confirms(confirms)
            confirms.channel.connection.flush()
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)

    async def settle(self) -> None:
        """Before a stop: read nothing more, and wait until what was published has its confirm."""
        for connection in list(self.connections):
            stop_reading(connection)
        if self.confirm_waiters and LOG not in self.alarms:
            self.settled = self.loop.create_future()
            try:
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self.settled
            except TimeoutError:
                logger.warning("event=stop_without_confirms channels=%d", len(self.confirm_waiters))
        for connection in list(self.connections):
            connection.flush()

    # -- closing

    def close_connections(self, explanation: str, user: str = "", vhost: str = "") -> None:
        """Close those of a user, or to a virtual host, with 320 CONNECTION_FORCED."""
        reason = AmqpError(Reply.CONNECTION_FORCED, explanation)
        for connection in list(self.connections):
            if (user and connection.user == user.encode()) or (vhost and connection.vhost == vhost.encode()):
                connection.conversation.shut_down(connection, reason)

    # -- back pressure

    def on_behind(self, behind: bool) -> None:
        """Waiting messages take more memory than they may and cannot leave it fast enough, or no longer do."""
        self.behind = behind
        logger.info("event=%s", "paging_behind" if behind else "paging_caught_up")
        if not behind and not self.alarm:
            self.resume_reading()

    def overfull(self, limit: int) -> bool:
        log = self.log
        return log is not None and log.unwritten_bytes > limit

    def on_full(self, full: bool) -> None:
        """The disk has no room, or has it again."""
        self.set_alarm(LOG, DISK, full)

    def set_alarm(self, source: str, resource: str, raised: bool) -> None:
        """Raise or clear the alarm of one source over MEMORY or DISK. Alarms block publishers and nobody else.

        A connection is blocked when it publishes, or waits to publish, while an alarm stands; not for what it did before.
        Source: https://www.rabbitmq.com/docs/alarms and .../docs/connection-blocked.
        """
        if (source in self.alarms) == raised:
            return
        if raised:
            self.alarms[source] = resource
        else:
            del self.alarms[source]
        logger.warning("event=%s_alarm_%s source=%s", resource, "set" if raised else "cleared", source)
        short = [name for name in (DISK, MEMORY) if name in self.alarms.values()]
        stood = self.alarm
        self.alarm = ("low on " + " & ".join(short)).encode() if short else b""
        if self.alarm and not stood:
            for connection in self.connections:
                connection.publishes = False
                connection.last = None
            for connection in self.paused:
                connection.conversation.block(connection)
        elif not self.alarm:
            self.resume_reading()

    def resume_reading(self) -> None:
        paused = self.paused
        self.paused = {}
        for connection in paused:
            resume_reading(connection)

    # -- definitions

    def on_committed(self, change: int) -> None:
        """Definitions are on disk up to a change: the replies that waited for it leave."""
        waiters = self.commit_waiters
        while waiters and waiters[0][0] <= change:
            _, connection, reply = waiters.popleft()
            self.answer(connection, reply)

    def answer(self, connection: Connection, reply: bytes) -> None:
        """One client's trouble must not keep the others from their answers."""
        try:
            connection.go_on_with(lambda: connection.send(reply))
        except Exception:
            logger.exception("event=internal_error peer=%s", connection.peer)
            connection.conversation.refuse(connection, AmqpError(Reply.INTERNAL_ERROR, "internal error"))
