"""TransactionalOnce: the claim commits with the handler's own work in the database, both or neither.

Guarantees: what the handler writes with the session that it is handed happens exactly once for each key: claim, result
and work are one transaction. A process that dies before the commit has done nothing, one that dies after it has done all,
and the redelivery gets the kept result. There is no lease: another delivery of the key waits until the database has
committed or rolled back the first, and takes over at once if its process died. Effects outside of this database are as
with `Once`.

Costs: one statement and one commit a message, one statement more for a result; a connection of the pool while the
handler runs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from warren.patterns.idempotency.delivery_key import idempotency_key
from warren.patterns.sql_tables import create_tables, require_sqlalchemy, upsert
from warren.patterns.stores import StoreUnavailable
from warren.patterns.stores.store import FIRST_WAIT, LAST_WAIT
from warren.sdk import App, Clock, ConfigError, Delivery, SystemClock

if TYPE_CHECKING:
    from sqlalchemy import Executable, Table
    from sqlalchemy.dialects.postgresql import Insert
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

log: logging.Logger = logging.getLogger("warren.patterns")

MILLISECOND: Final = timedelta(milliseconds=1)
NOTHING: Final = b"null"
"""What a handler returns that answers no request: it stands there from the claim on."""
SWEEP_MS: Final = 30_000
SWEEP_ROWS: Final = 5000

_session: ContextVar[AsyncSession] = ContextVar("warren.session")


@dataclass(slots=True)
class TransactionalOnceStatistics:
    """What happened to the deliveries that came through."""

    run: int = 0
    """The handler ran, and its work is committed."""
    duplicates: int = 0
    """A kept result was returned."""
    failed: int = 0
    """The handler raised, or its commit failed; nothing of it is in the database, or, if the connection was lost in the
    commit, all of it: the next delivery finds out."""


def current_session() -> AsyncSession:
    """The session of the handler that runs under `TransactionalOnce`: what is written with it commits with the claim.

    Called in the handler, or as a parameter: `session: Annotated[AsyncSession, Depends(current_session)]`.

    It is committed when the handler has returned, and rolled back when it raised: do neither in the handler.

    :raises ConfigError: no such handler runs here.
    """
    session = _session.get(None)
    if session is None:
        raise ConfigError("there is no transaction here: handle(..., once=TransactionalOnce(sessions))")
    return session


class TransactionalOnce:
    """`once=` of a handler that writes to a database: claim, result and the handler's work are one transaction.

        once = TransactionalOnce(async_sessionmaker(create_async_engine("postgresql+asyncpg://...")))

        @app.handle(PayInvoice, once=once)
        async def pay(command: PayInvoice, session: Annotated[AsyncSession, Depends(current_session)]) -> None:
            session.add(Payment(invoice=command.invoice_id))

    PostgreSQL and SQLite. In SQLite one handler at a time has the database, since its claim is a write; let `timeout` of the
    engine be longer than a handler takes. In PostgreSQL each running handler holds a connection: let the pool have as many
    as `concurrency` says.

    :param sessions: makes the sessions; of the database that the handler writes to.
    :param key: from the decoded message to what must happen once; by default the message id, which a republish and a
        redelivery keep. Keys of different queues never meet.
    :param keep: how long a result is kept, and a duplicate recognised. Default one day.
    :param table: where claims are, with its schema if that is not the first; made if it is missing. `.table` is it as
        SQLAlchemy knows it, for migrations.
    :param patience: how long a delivery waits for a database that does not answer, unacknowledged; then it fails with
        `StoreUnavailable`. Default one minute. What fails under the handler is the handler's error.
    :raises UsageError: SQLAlchemy is not installed. :raises ConfigError: `keep` is too short.
    """

    def __init__(
        self,
        sessions: async_sessionmaker[AsyncSession],
        *,
        key: Callable[[Any], str] | None = None,
        keep: timedelta = timedelta(days=1),
        table: str = "warren_once",
        patience: timedelta = timedelta(minutes=1),
        clock: Clock | None = None,
    ) -> None:
        require_sqlalchemy("TransactionalOnce")
        if keep < MILLISECOND:
            raise ConfigError(f"TransactionalOnce: keep ({keep}) is at least a millisecond")
        self.table: Table = _table(table)
        self.statistics: TransactionalOnceStatistics = TransactionalOnceStatistics()
        self._sessions = sessions
        self._key = key
        self._keep_ms = keep // MILLISECOND
        self._patience = patience.total_seconds()
        self._own_clock = clock
        self._clock: Clock = clock or SystemClock()
        self._statements: _Statements | None = None
        self._swept_ms = 0

    def register(self, app: App) -> None:
        """Take the time from the App, unless a clock was given (the SDK calls this)."""
        self._clock = self._own_clock or app.clock

    async def run(self, message: Any, delivery: Delivery, handler: Callable[[], Awaitable[bytes]]) -> bytes:
        """Run `handler` in a transaction with its claim, unless its result is known; the result (the SDK calls this).

        :raises DeadLetter: there is neither a key function nor a message id.
        :raises StoreUnavailable: the database did not answer within `patience`, or was lost in the commit.
        """
        key = idempotency_key(self._key, message, delivery).encode()
        async with self._sessions() as session:
            kept = await self._claim_patiently(session, key)
            if kept is not None:
                self.statistics.duplicates += 1
                return kept
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
        """Nothing to close: sessions and engine are the application's."""

    async def _claim_patiently(self, session: AsyncSession, key: bytes) -> bytes | None:
        from sqlalchemy.exc import DBAPIError

        give_up = self._clock.now() + self._patience
        wait = FIRST_WAIT
        while True:
            try:
                return await self._claim(session, key)
            except (DBAPIError, OSError) as error:
                await session.rollback()
                if self._clock.now() + wait > give_up:
                    raise StoreUnavailable(f"no claim from the database: {error}") from error
            await self._clock.sleep(wait)
            wait = min(2 * wait, LAST_WAIT)

    async def _claim(self, session: AsyncSession, key: bytes) -> bytes | None:
        """Claim within the transaction, waiting for whoever else claims; or the kept result."""
        if self._statements is None:
            await create_tables(self._sessions, self.table)
            self._statements = _Statements.of(self.table, upsert(session, self.table))
        while True:
            now_ms = self._now_ms()
            values = {"key": key, "now_ms": now_ms, "until_ms": now_ms + self._keep_ms}
            if (await session.execute(self._statements.claim, values)).first() is not None:
                return None
            found = await session.execute(self._statements.result, {"its_key": key})
            kept: bytes | None = found.scalar_one_or_none()
            if kept is not None:
                return kept

    async def _commit(self, session: AsyncSession, key: bytes, result: bytes) -> None:
        from sqlalchemy import update
        from sqlalchemy.exc import DBAPIError

        try:
            if result != NOTHING:
                await session.execute(update(self.table).where(self.table.c.key == key).values(result=result))
            await session.commit()
        except OSError as error:
            raise StoreUnavailable(f"the database was lost in the commit: {error}") from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise StoreUnavailable(f"the database was lost in the commit: {error}") from error

    async def _sweep(self) -> None:
        """Forget what was kept long enough, now and then, in a transaction of its own."""
        from sqlalchemy import delete, select

        now_ms = self._now_ms()
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        swept_ms, self._swept_ms = self._swept_ms, now_ms
        columns = self.table.c
        old = select(columns.key).where(columns.keep_until_ms <= now_ms).limit(SWEEP_ROWS)
        try:
            async with self._sessions() as session:
                sweep = delete(self.table).where(columns.key.in_(old.with_for_update(skip_locked=True)))
                swept = await session.execute(sweep.returning(columns.key))
                full = len(swept.all()) == SWEEP_ROWS
                await session.commit()
            if full:
                # There is more: the next message goes on, so that no rate of messages outgrows the cleaning.
                self._swept_ms = swept_ms
        except Exception as error:  # The message is done; what is left goes with the next sweep.
            log.warning("once.not_swept table=%s error=%s", self.table.name, error)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)


class _Statements(NamedTuple):
    """Built once: building them costs as much as running them."""

    claim: Executable
    """Insert the claim, or take over one that was kept long enough; a row if it is ours."""
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
