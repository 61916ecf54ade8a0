"""Outbox: messages that are published if, and only if, the transaction that wrote them commits.

Guarantees: a message that was added in a transaction is published at least once when that has committed, and never when
it has not; always with the same message id, so that `Once` recognises its duplicates. Of the processes that share the
table, one relays at a time; when it dies, another takes over after the lease. Messages with the same `ordered_by` reach
the broker in the order in which they were added, as far as their transactions exclude each other (lock the order before
its event). What the broker refuses is tried again and holds back what follows with the same `ordered_by`, nothing else.

Costs: one insert a message in the caller's transaction; the relay's part of one select and one delete a batch. A message
leaves some milliseconds after the commit if the relay is in this process, and up to `poll` later if it is elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from opentelemetry import metrics

from warren.patterns.idempotency import current_session
from warren.patterns.outbox.outbox_tables import OutboxTables
from warren.patterns.outbox.relay import OutboxStatistics, Relay
from warren.patterns.sql_tables import require_sqlalchemy
from warren.sdk import App, Clock, ConfigError, Message, SystemClock
from warren.sdk.extend import encode

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session

MILLISECOND: Final = timedelta(milliseconds=1)

Parameters = ParamSpec("Parameters")


class Outbox:
    """Messages written in a database transaction, and relayed to the broker when it has committed.

        outbox = Outbox(sessions, ordered_by=lambda event: event.order_id)
        app.include(outbox)

        async with sessions.begin() as session:
            session.add(order)
            await outbox.add(session, OrderPlaced(order_id=order.id))

    `app.include(outbox)` in every process that may relay; one that only adds needs no App. What the messages must reach is
    declared where the App says so: `app.publishes(OrderPlaced)`.

    :param sessions: makes the relay's sessions; of the database that is written to. PostgreSQL or SQLite.
    :param ordered_by: from a message to what it is in order with (an order's id), or None for no order; the default of
        `add`.
    :param table: where messages wait, with its schema if that is not the first; made if it is missing, as
        `<table>_relay` is. `.tables` are both as SQLAlchemy knows them, for migrations.
    :param lease: how long a relay that died keeps the others waiting. Default 5 s, by the database's clock.
    :param poll: how often the relay looks for what other processes have added. Default 100 ms. (Not by NOTIFY: PostgreSQL
        makes commits that notify wait for each other.)
    :param retry_after: the first wait after the broker refused a message; it doubles up to a minute. Default 1 s.
    :raises UsageError: SQLAlchemy is not installed. :raises ConfigError: a duration is too short.
    """

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSession],
        *,
        ordered_by: Callable[[Any], str | None] | None = None,
        table: str = "warren_outbox",
        lease: timedelta = timedelta(seconds=5),
        poll: timedelta = timedelta(milliseconds=100),
        retry_after: timedelta = timedelta(seconds=1),
    ) -> None:
        require_sqlalchemy("Outbox")
        if min(lease, poll, retry_after) < MILLISECOND:
            raise ConfigError(
                f"Outbox: lease ({lease}), poll ({poll}) and retry_after ({retry_after}) are at least a millisecond"
            )
        self.statistics: OutboxStatistics = OutboxStatistics()
        self._tables = OutboxTables(sessions, table)
        self._ordered_by = ordered_by
        self._lease_ms = lease // MILLISECOND
        self._poll = poll.total_seconds()
        self._retry = retry_after.total_seconds()
        self._clock: Clock = SystemClock()
        self._app: App | None = None
        self._relay: Relay | None = None
        self._running: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        metrics.get_meter("warren.patterns").create_observable_gauge(
            "warren.outbox.lag",
            callbacks=[self._observe],
            unit="s",
            description="How long the oldest message of the outbox has waited, as its relay sees it.",
        )

    @property
    def tables(self) -> tuple[Table, Table]:
        return self._tables.messages, self._tables.lease

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
    ) -> None:
        """Write `message` in the session's transaction; it is published when, and only when, that commits.

        :param ordered_by: what it is in order with; default what the Outbox's `ordered_by` says.
        :param exchange: and `key`, `message_id`, `headers`: as for `app.publish`.
        :raises ConfigError: the message has no address, or a header is nothing that JSON carries.
        """
        if ordered_by is None and self._ordered_by is not None:
            ordered_by = self._ordered_by(message)
        now = self._clock.now()
        outgoing = encode(
            message, now=now, exchange=exchange, key=key, message_id=message_id, headers=headers
        )
        await self._tables.add(session, outgoing, ordered_by, int(now * 1000))
        self.statistics.added += 1
        self._wake_after_commit(session)

    def publishes(
        self, function: Callable[Parameters, Awaitable[Message | Sequence[Message] | None]]
    ) -> Callable[Parameters, Coroutine[Any, Any, None]]:
        """Decorate a handler under `TransactionalOnce`: what it returns, a message or several, goes through the outbox in
        the transaction of its claim and its work.

            @app.handle(PlaceOrder, once=TransactionalOnce(sessions))
            @outbox.publishes
            async def place(command: PlaceOrder) -> OrderPlaced: ...

        :raises ConfigError: when the handler runs without `TransactionalOnce`.
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
        """How long the oldest message waits; zero if none does. Asks the database, so that any process may.

        :raises sqlalchemy.exc.DBAPIError: the database does not answer.
        """
        await self._tables.make()
        return self._since(await self._tables.oldest_ms())

    def register(self, app: App) -> None:
        self._app = app
        self._clock = app.clock

    @property
    def busy(self) -> str:
        """What a test on virtual time waits for: the relay, while it works on what was committed."""
        return "the relay of an outbox" if self._relay is not None and self._relay.busy else ""

    async def on_start(self) -> None:
        if self._app is None:
            raise ConfigError("this Outbox belongs to no App: app.include(outbox)")
        self._loop = asyncio.get_running_loop()
        self._relay = Relay(
            self._tables, self.statistics, lease_ms=self._lease_ms, poll=self._poll, retry=self._retry
        )
        # In a context of its own: that it sleeps does not mean that a handler does.
        self._running = asyncio.create_task(
            self._relay.run(self._app),
            name=f"relay of {self._tables.messages.name}",
            context=contextvars.Context(),
        )

    async def on_stop(self) -> None:
        """What waits is relayed by another process, or after the next start."""
        relay, self._relay = self._relay, None
        running, self._running = self._running, None
        if relay is not None and running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await relay.release()

    def _wake_after_commit(self, session: AsyncSession) -> None:
        """The relay of this process looks at once when the transaction has committed."""
        from sqlalchemy import event

        if self._relay is None:
            return
        if self not in session.info:
            # Once a session, which may commit often.
            event.listen(session.sync_session, "after_commit", self._committed)
        session.info[self] = True

    def _committed(self, session: Session) -> None:
        added, session.info[self] = session.info.get(self), False
        if added and self._relay is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._relay.news.set)

    def _observe(self, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        if self.statistics.relaying:
            lag = self._since(self.statistics.oldest_ms).total_seconds()
            yield metrics.Observation(lag, {"warren.outbox.table": self._tables.messages.name})

    def _since(self, added_ms: int | None) -> timedelta:
        if added_ms is None:
            return timedelta(0)
        return max(timedelta(0), timedelta(milliseconds=self._clock.now() * 1000 - added_ms))


__all__ = ["Outbox"]
