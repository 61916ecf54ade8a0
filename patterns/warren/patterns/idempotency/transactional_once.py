"""TransactionalOnce: the claim commits together with the handler's own work in the database, or neither does.

Guarantees: the handler's writes with its session happen exactly once for each key, because claim, result and work are
one transaction. A process that dies before the commit has changed nothing; if it dies after the commit, the
redelivery gets the stored result. There is no lease: another delivery of the key waits until the database has
committed or rolled back the first, and takes over at once if its process died. Effects outside this database are
protected as with `Once`.

Costs: one statement and one commit per message, one statement more for a result; a connection of the pool while the
handler runs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from warren.patterns.argument_checks import check_function, check_sessions
from warren.patterns.idempotency.delivery_key import idempotency_key
from warren.patterns.monotonic_time import monotonic_time
from warren.patterns.sql_connections import is_database_error, open_connection, own_transaction
from warren.patterns.sql_tables import CreatedTables, names_missing_table, require_sqlalchemy, upsert
from warren.patterns.stores import StoreUnavailable
from warren.patterns.stores.store import FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS
from warren.sdk import App, Clock, ConfigError, Delivery, SystemClock
from warren.sdk.extend import Duration, duration, seconds

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Executable, Table
    from sqlalchemy.dialects.postgresql import Insert
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

log: logging.Logger = logging.getLogger("warren.patterns")

MILLISECOND: Final = timedelta(milliseconds=1)
NOTHING: Final = b"null"
"""Encoded result (JSON) of a handler that returns None. The claim is inserted with it, so only another result needs an
update before the commit."""
SWEEP_MS: Final = 30_000
SWEEP_ROWS: Final = 5000

_session: ContextVar[AsyncSession] = ContextVar("warren.session")


@dataclass(slots=True)
class TransactionalOnceStatistics:
    """Counters of the deliveries that one `TransactionalOnce` has processed in this process."""

    run: int = 0
    """Deliveries whose handler ran and whose work is committed."""
    duplicates: int = 0
    """Deliveries whose handler did not run, because a result for their key was stored already."""
    failed: int = 0
    """Deliveries whose handler raised, or whose commit failed. The database has none of the handler's work or, if the
    connection was lost during the commit, possibly all of it; the next delivery finds out by looking for the claim."""


def current_session() -> AsyncSession:
    """Return the session of the running handler under `TransactionalOnce`, whose writes commit with the claim.

    Call it in the handler, or use it as a parameter: `session: Annotated[AsyncSession, Depends(current_session)]`. The
    session is committed when the handler has returned, and rolled back when it raised; the handler itself must do
    neither.

    :raises ConfigError: no handler under `TransactionalOnce` is running.
    """
    session = _session.get(None)
    if session is None:
        raise ConfigError(
            "no handler under TransactionalOnce is running: use @app.handle(..., once=TransactionalOnce(sessions))"
        )
    return session


class TransactionalOnce:
    """Protection for a handler that writes to a database (`once=`): claim, result and the handler's work are one
    transaction.

        once = TransactionalOnce(async_sessionmaker(create_async_engine("postgresql+asyncpg://...")))

        @app.handle(PayInvoice, once=once)
        async def pay(command: PayInvoice, session: Annotated[AsyncSession, Depends(current_session)]) -> None:
            session.add(Payment(invoice=command.invoice_id))

    For PostgreSQL and SQLite. In SQLite only one handler runs at a time, because its claim locks the database for
    writing: set the engine's `timeout` longer than a handler takes. In PostgreSQL each running handler holds a
    connection: give the pool as many connections as `concurrency`.

    :param sessions: creates sessions of the database that the handler writes to.
    :param key: returns the key of a decoded message; by default the message id, which a republish and a redelivery
        keep. Keys of different queues are independent.
    :param keep: how long a result is stored, and a duplicate recognised. Default one day.
    :param table: table of the claims, qualified with its schema unless that is the first of the search path; created if
        it is missing. `.table` is the SQLAlchemy table, for migrations.
    :param patience: how long a delivery waits, unacknowledged, for a database that does not answer; then it fails with
        `StoreUnavailable`. Default one minute. An error of the handler's own statements is not retried here: it is an
        error of the handler.
    :raises UsageError: SQLAlchemy is not installed.
    :raises ConfigError: `keep` is too short.
    """

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSession],
        *,
        key: Callable[[Any], str] | None = None,
        keep: Duration = timedelta(days=1),
        table: str = "warren_once",
        patience: Duration = timedelta(minutes=1),
        clock: Clock | None = None,
    ) -> None:
        require_sqlalchemy("TransactionalOnce")
        check_sessions("TransactionalOnce", sessions)
        check_function("TransactionalOnce: key", key, "key=lambda message: message.order_id")
        keep = duration(keep, "TransactionalOnce: keep")
        if keep < MILLISECOND:
            raise ConfigError(f"TransactionalOnce: keep ({keep}) must be at least 1 ms")
        self.table: Table = _table(table)
        self.statistics: TransactionalOnceStatistics = TransactionalOnceStatistics()
        """Counters of what this object has done in this process."""
        self._sessions = sessions
        self._key = key
        self._keep_ms = keep // MILLISECOND
        self._patience = seconds(patience, "TransactionalOnce: patience")
        self._own_clock = clock
        self._clock: Clock = clock or SystemClock()
        self._created = CreatedTables(sessions, self.table)
        self._statements: dict[str, _Statements] = {}
        self._swept_ms = 0

    def register(self, app: App) -> None:
        """Take the App's clock for expiry times and retries, unless the constructor got a clock (called by the SDK when
        the handler is registered)."""
        self._clock = self._own_clock or app.clock

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the stored result for the message's key. If there is none, run `handler` in the transaction that
        inserts the claim, and store and return its result. Called by the SDK.

        :param handler: runs the application's handler, and returns its result encoded as JSON.
        :raises DeadLetter: there is neither a key function nor a message id.
        :raises StoreUnavailable: the database did not answer within `patience`, or the connection was lost during the
            commit.
        """
        key = idempotency_key(self._key, message, delivery).encode()
        async with self._sessions() as session:
            stored = await self._claim_with_retry(session, key)
            if stored is not None:
                self.statistics.duplicates += 1
                return stored
            token = _session.set(session)
            try:
                result = await handler()
                await self._commit(session, key, result)
            except BaseException:
                self.statistics.failed += 1
                raise
            finally:
                _session.reset(token)
        self.statistics.run += 1
        await self._sweep()
        return result

    async def on_stop(self) -> None:
        """Do nothing: sessions and engine belong to the application."""

    async def _claim_with_retry(self, session: AsyncSession, key: bytes) -> bytes | None:
        from sqlalchemy.exc import DBAPIError

        give_up = monotonic_time(self._clock) + self._patience
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._claim(session, key)
            except Exception as error:
                if not is_database_error(error, session.get_bind().dialect):
                    raise
                await session.rollback()
                if isinstance(error, DBAPIError) and names_missing_table(error):
                    # Somebody has dropped the table.
                    self._created.forget()
                if monotonic_time(self._clock) + wait > give_up:
                    raise StoreUnavailable(f"the database did not answer to a claim: {error}") from error
            await self._clock.sleep(wait)
            wait = min(2 * wait, MAX_RETRY_SECONDS)

    async def _claim(self, session: AsyncSession, key: bytes) -> bytes | None:
        """Insert the claim in the session's transaction, and return the result that is stored for the key, or None if
        the handler has to run.

        The database makes this wait until other transactions that have claimed the key have ended.
        """
        # Before this session has a connection: the pool may have no other one.
        await self._created.create()
        connection = await open_connection(session)
        statements = self._statements.get(connection.dialect.name)
        if statements is None:
            statements = _Statements.of(self.table, upsert(session, self.table))
            self._statements[connection.dialect.name] = statements
        while True:
            now_ms = self._now_ms()
            values = {"key": key, "now_ms": now_ms, "until_ms": now_ms + self._keep_ms}
            if (await session.execute(statements.claim, values)).first() is not None:
                return None
            found = await session.execute(statements.result, {"its_key": key})
            stored: bytes | None = found.scalar_one_or_none()
            if stored is not None:
                return stored

    async def _commit(self, session: AsyncSession, key: bytes, result: bytes) -> None:
        from sqlalchemy import update
        from sqlalchemy.exc import DBAPIError

        try:
            if result != NOTHING:
                await session.execute(update(self.table).where(self.table.c.key == key).values(result=result))
            await session.commit()
        except OSError as error:
            raise StoreUnavailable(
                f"the connection to the database was lost during the commit: {error}"
            ) from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise StoreUnavailable(
                f"the connection to the database was lost during the commit: {error}"
            ) from error

    async def _sweep(self) -> None:
        """Delete expired results in a separate transaction, if the last deletion was long enough ago."""
        from sqlalchemy import any_, delete, func, select

        now_ms = self._now_ms()
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        swept_ms, self._swept_ms = self._swept_ms, now_ms
        columns = self.table.c
        old = select(columns.key).where(columns.keep_until_ms <= now_ms)
        old = old.order_by(columns.keep_until_ms).limit(SWEEP_ROWS).with_for_update(skip_locked=True)
        try:
            async with own_transaction(self._sessions) as session:
                is_old: ColumnElement[bool] = columns.key.in_(old)
                if session.get_bind().dialect.name == "postgresql":
                    # As an array: PostgreSQL would join a subquery with the whole table.
                    is_old = columns.key == any_(func.array(old.scalar_subquery()))
                swept = await session.execute(delete(self.table).where(is_old))
                full = swept.rowcount == SWEEP_ROWS  # type: ignore[attr-defined]
            if full:
                # More rows have expired: the next message continues, so that they cannot accumulate.
                self._swept_ms = swept_ms
        except Exception as error:  # The message is handled; the next sweep deletes the rest.
            log.warning("event=once.sweep_failed table=%s error=%s", self.table.name, error)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


class _Statements(NamedTuple):
    """SQL statements on the table of claims, built only once, because building them costs as much as running them."""

    claim: Executable
    """Inserts the claim, or takes over an expired one. It returns a row only if the caller has the claim now."""
    result: Executable

    @classmethod
    def of(cls, table: Table, insert: Insert) -> _Statements:
        from sqlalchemy import BigInteger, LargeBinary, bindparam, literal, select

        columns = table.c
        until = bindparam("until_ms", type_=BigInteger)
        values = {"result": literal(NOTHING, LargeBinary), "keep_until_ms": until}
        claim = insert.values(key=bindparam("key", type_=LargeBinary), **values).on_conflict_do_update(
            index_elements=[columns.key],
            set_=values,
            where=columns.keep_until_ms <= bindparam("now_ms", type_=BigInteger),
        )
        return cls(
            claim.returning(columns.key), select(columns.result).where(columns.key == bindparam("its_key"))
        )


def _table(name: str) -> Table:
    from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, Table

    schema, _, own = name.rpartition(".")
    return Table(
        own,
        MetaData(),
        Column("key", LargeBinary, primary_key=True),
        Column("result", LargeBinary, nullable=False),
        Column("keep_until_ms", BigInteger, nullable=False, index=True),
        schema=schema or None,
    )


__all__ = ["TransactionalOnce", "TransactionalOnceStatistics", "current_session"]
