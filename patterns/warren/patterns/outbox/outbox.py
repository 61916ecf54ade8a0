"""Outbox: publish messages if, and only if, the transaction that wrote them commits.

Guarantees: a message that was added in a transaction is published at least once after the commit, and never without a
commit; always with the same message id, so that `Once` recognises its duplicates. Of the processes that share the
table, one at a time is the relay, which publishes the messages; when it dies, another takes over after the lease.
Messages with the same `ordered_by` reach the broker in the order in which they were added, provided that their
transactions do not run at the same time (lock the row of the order before you add its event). A process that stood
still for longer than the lease publishes none of the messages that it had read before, except those that it was
writing at that moment, at most one for each ordering key: such a copy may arrive behind newer messages, with the same
message id. A message that the broker refuses is retried, and holds back only later messages with the same `ordered_by`.

Costs: one insert per message in the caller's transaction, and one select and one delete by the relay per batch of
messages. A message leaves some milliseconds after the commit if the relay runs in this process, and up to `poll` later
if it runs elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, ParamSpec, Unpack
from weakref import WeakSet

from opentelemetry import metrics

from warren.patterns.argument_checks import check_function, check_sessions
from warren.patterns.idempotency import current_session
from warren.patterns.outbox.outbox_tables import OutboxTables
from warren.patterns.outbox.refusals import Refusals
from warren.patterns.outbox.relay import OutboxStatistics, Relay
from warren.patterns.sql_connections import is_autocommit
from warren.patterns.sql_tables import require_sqlalchemy
from warren.sdk import App, Clock, ConfigError, Message, PropertyOptions, SystemClock
from warren.sdk.extend import Duration, IncludedComponent, duration, encode

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session
    from sqlalchemy.pool import ConnectionPoolEntry

MILLISECOND: Final = timedelta(milliseconds=1)

Parameters = ParamSpec("Parameters")


class Outbox(IncludedComponent):
    """Outbox table: messages written in a database transaction, and relayed to the broker after its commit.

        outbox = Outbox(sessions, ordered_by=lambda event: event.order_id)
        app.include(outbox)

        async with sessions.begin() as session:
            session.add(order)
            await outbox.add(session, OrderPlaced(order_id=order.id))

    Call `app.include(outbox)` in every process that may relay. A process that only adds messages needs no App: it says so
    with `relay=False`. Declare the targets of the messages with `app.publishes(OrderPlaced)`.

    :param sessions: creates the relay's sessions, on the database in which the application's transactions write.
        PostgreSQL or SQLite.
    :param ordered_by: returns the ordering key of a message (an order's id), or None for no order; `add` may override
        it.
    :param table: table of waiting messages, qualified with its schema unless that is the first of the search path. It
        is created if it is missing, as are `<table>_relay` for the relay's lease and `<table>_refused` for the errors of
        refused messages. `.tables` has the SQLAlchemy tables of all three, for migrations.
    :param lease: how long other processes wait after a relay died. Default 5 s, by the database's clock. A relay
        publishes only within two thirds of a lease after its last request for it, so choose a lease much longer than
        the database takes to answer.
    :param poll: interval at which the relay reads messages that other processes have added. Default 100 ms.
        (PostgreSQL's NOTIFY is not used, because it makes commits wait for each other.)
    :param retry_after: first wait after the broker refused a message; it doubles up to a minute. Default 1 s.
    :param relay: False for a process that only adds messages, which other processes relay.
    :raises UsageError: SQLAlchemy is not installed.
    :raises ConfigError: a duration is too short.
    """

    requires_durable_broker: ClassVar[bool] = True

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSession],
        *,
        ordered_by: Callable[[Any], str | None] | None = None,
        table: str = "warren_outbox",
        lease: Duration = timedelta(seconds=5),
        poll: Duration = timedelta(milliseconds=100),
        retry_after: Duration = timedelta(seconds=1),
        relay: bool = True,
    ) -> None:
        require_sqlalchemy("Outbox")
        check_sessions("Outbox", sessions)
        check_function("Outbox: ordered_by", ordered_by, "ordered_by=lambda message: message.order_id")
        lease, poll = duration(lease, "Outbox: lease"), duration(poll, "Outbox: poll")
        retry_after = duration(retry_after, "Outbox: retry_after")
        if min(lease, poll, retry_after) < MILLISECOND:
            raise ConfigError(
                f"Outbox: lease ({lease}), poll ({poll}) and retry_after ({retry_after}) must be at least 1 ms"
            )
        self.statistics: OutboxStatistics = OutboxStatistics()
        """Counters of what this object has done in this process."""
        self._tables = OutboxTables(sessions, table)
        self._refusals = Refusals(sessions, table, self._tables.messages)
        self._ordered_by = ordered_by
        self._lease_ms = lease // MILLISECOND
        self._poll = poll.total_seconds()
        self._retry = retry_after.total_seconds()
        self._clock: Clock = SystemClock()
        self._relays = relay
        super().__init__()
        self._relay: Relay | None = None
        self._relay_task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched_engines: WeakSet[Engine] = WeakSet()
        """Engines that report each connection that returns to their pool."""
        metrics.get_meter("warren.patterns").create_observable_gauge(
            "warren.outbox.lag",
            callbacks=[self._observe],
            unit="s",
            description="How long the oldest message of the outbox has waited, as its relay sees it.",
        )

    @property
    def tables(self) -> tuple[Table, Table, Table]:
        """SQLAlchemy tables of the messages, of the relay's lease, and of the refused messages, for migrations."""
        return self._tables.messages, self._tables.lease, self._refusals.table

    async def add(
        self,
        session: AsyncSession,
        message: object,
        *,
        ordered_by: str | None = None,
        exchange: str | None = None,
        key: str | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str | int | float | bool] | None = None,
        **properties: Unpack[PropertyOptions],
    ) -> None:
        """Write `message` to the outbox in the session's transaction; it is published if and only if this transaction
        commits. Only the session's own connection is used. If the table of messages is missing, it is created in the same
        transaction.

        :param ordered_by: ordering key of the message; by default the result of the Outbox's function `ordered_by`.
        :param exchange: with `key`, `message_id` and `headers` as for `app.publish`.
        :param properties: AMQP properties, as for `app.publish`; an `expiration` begins when the message is in a queue.
        :raises ConfigError: the message has no address, a property is out of its range, or JSON cannot represent a
            header; or no App includes the outbox, and it was not made with `relay=False`.
        """
        if self._relays and self._app is None and not self._is_left_out:
            raise ConfigError(
                "the Outbox belongs to no App: call app.include(...) with it; or in a process that only adds messages, and"
                " lets another one relay them, app.leave_out(...), or make it with relay=False"
            )
        if ordered_by is None and self._ordered_by is not None:
            ordered_by = self._ordered_by(message)
        now = self._clock.now()
        outgoing = encode(
            message,
            now=now,
            exchange=exchange,
            key=key,
            message_id=message_id,
            headers=headers,
            **properties,
        )
        await self._tables.add(session, outgoing, ordered_by, int(now * 1000))
        self.statistics.added += 1
        if self._relays:
            await self._wake_after_commit(session)

    def publishes(
        self, function: Callable[Parameters, Awaitable[Message | Sequence[Message] | None]]
    ) -> Callable[Parameters, Coroutine[Any, Any, None]]:
        """Decorate a handler under `TransactionalOnce`, so that the message or messages that it returns are added to
        the outbox in its transaction.

            @app.handle(PlaceOrder, once=TransactionalOnce(sessions))
            @outbox.publishes
            async def place(command: PlaceOrder) -> OrderPlaced: ...

        :param function: the handler; it returns a message, several, or None for none.
        :return: a handler that returns None.
        :raises ConfigError: the handler runs without `TransactionalOnce`.
        """

        @functools.wraps(function)
        async def handler(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
            session = current_session()
            returned = await function(*arguments, **named)
            messages = [returned] if isinstance(returned, Message) else returned or []
            for message in messages:
                await self.add(session, message)

        return handler

    async def lag(self) -> timedelta:
        """Return how long the oldest waiting message has waited; zero if none waits. This reads the database, so it
        works in any process.

        :raises sqlalchemy.exc.DBAPIError: the database does not answer.
        """
        await self._tables.create()
        return self._since(await self._tables.oldest_ms())

    @property
    def lost_without_app(self) -> str:
        """Consequence of a missing inclusion: nothing relays; an error tells it to those who add."""
        return "nothing that is added is published" if self._relays else ""

    def register(self, app: App) -> None:
        super().register(app)
        self._clock = app.clock

    @property
    def busy(self) -> str:
        """Name of the background work in progress, such as "the relay of an outbox"; empty if there is none. A test on
        a virtual clock advances the time only while this is empty."""
        return "the relay of an outbox" if self._relay is not None and self._relay.busy else ""

    async def on_start(self) -> None:
        """Start the relay, the task that publishes the outbox's messages."""
        app = self.included_in()
        if not self._relays:
            return
        self._loop = asyncio.get_running_loop()
        self._relay = Relay(
            self._tables,
            self._refusals,
            self.statistics,
            lease_ms=self._lease_ms,
            poll=self._poll,
            retry=self._retry,
        )
        # In a separate context: a sleep of the relay must not count as a sleep of a handler.
        self._relay_task = asyncio.create_task(
            self._relay.run(app),
            name=f"relay of {self._tables.messages.name}",
            context=contextvars.Context(),
        )

    async def on_stop(self) -> None:
        """Stop the relay. Messages that still wait are published by another process, or after the next start."""
        relay, self._relay = self._relay, None
        relay_task, self._relay_task = self._relay_task, None
        if relay is not None and relay_task is not None:
            relay_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await relay_task
            await relay.release()

    async def _wake_after_commit(self, session: AsyncSession) -> None:
        """Arrange that this process's relay wakes up when the session's transaction has committed."""
        from sqlalchemy import event

        if self not in session.info:
            # Once per session, which may commit often.
            event.listen(session.sync_session, "after_commit", self._committed)
        connection = await session.connection()
        session.info[self] = connection.sync_connection
        if is_autocommit(connection):
            self._wake_relay()

    def _committed(self, session: Session) -> None:
        from sqlalchemy import event

        # SQLAlchemy also calls this for the release of a savepoint, which commits nothing.
        if session.in_nested_transaction():
            return
        connection: Connection | None = session.info.get(self)
        session.info[self] = None
        if connection is None:
            return
        if not connection.in_transaction():
            self._wake_relay()
            return
        # The session is part of an outer transaction of its connection: that ends before the pool gets the connection back.
        connection.info[self] = True
        if connection.engine not in self._watched_engines:
            self._watched_engines.add(connection.engine)
            event.listen(connection.engine, "checkin", self._checked_in)

    def _checked_in(self, _: object, record: ConnectionPoolEntry) -> None:
        if record.info.pop(self, False):
            self._wake_relay()

    def _wake_relay(self) -> None:
        if self._relay is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._relay.wakeup.set)

    def _observe(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        if self.statistics.relaying:
            lag = self._since(self.statistics.oldest_ms).total_seconds()
            yield metrics.Observation(lag, {"warren.outbox.table": self._tables.messages.name})

    def _since(self, added_ms: int | None) -> timedelta:
        if added_ms is None:
            return timedelta(0)
        return max(timedelta(0), timedelta(milliseconds=self._clock.now() * 1000 - added_ms))


__all__ = ["Outbox"]
