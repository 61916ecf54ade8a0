"""Helpers for patterns that write in a caller's database transaction: table creation, upserts, and lists of values in
PostgreSQL and SQLite."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from warren.patterns.optional_packages import require_package
from warren.patterns.sql_connections import open_connection
from warren.sdk import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, Connection, Dialect, Engine, Executable, Select, Table
    from sqlalchemy.dialects.postgresql import Insert
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

UNDEFINED_TABLE: Final = "42P01"
"""PostgreSQL's code of the error of a statement that names a missing table."""
# One statement, which also works in autocommit. The block is a savepoint: if another transaction has created the table
# meanwhile, PostgreSQL waits for its end and then reports a duplicate of the table, its type or an entry in a catalog, which
# must not end the caller's transaction.
CREATE_IN_TRANSACTION: Final = """
DO $warren$ BEGIN
    {create};
EXCEPTION WHEN OTHERS THEN
    IF to_regclass({name}) IS NULL THEN RAISE; END IF;
END $warren$
"""

_creating: WeakSet[Connection] = WeakSet()
"""Connections in whose transaction a table was created, which is undone if the transaction or its savepoint is rolled
back. A connection of SQLAlchemy ends with its transaction."""


def require_sqlalchemy(purpose: str) -> None:
    """Raise `UsageError` if SQLAlchemy is not installed; its text names the `purpose`."""
    require_package("sqlalchemy", "sql", purpose)


class CreatedTables:
    """Tables of a pattern, which are created where they are missing.

    An object of this class remembers the engines in whose database it has found or created the tables, so the check is
    made once for each. It forgets an engine when a statement finds a table missing, because somebody has dropped it.
    """

    def __init__(self, sessions: async_sessionmaker[AsyncSession], *tables: Table) -> None:
        self._sessions = sessions
        self._tables = tables
        self._all_known: WeakSet[Engine] = WeakSet()
        """Engines whose database has all the tables."""
        self._first_known: WeakSet[Engine] = WeakSet()
        """Engines whose database has the first table."""

    async def create(self) -> None:
        """Create those of the tables that are missing, in transactions of their own, unless this object knows that they
        exist. Call it while the caller holds no connection.

        :raises ConfigError: the database is neither PostgreSQL nor SQLite.
        """
        async with self._sessions() as session:
            engine: Engine = session.get_bind().engine
        if engine not in self._all_known:
            for table in self._tables:
                await _create(self._sessions, table)
            self._all_known.add(engine)
            self._first_known.add(engine)

    def forget(self) -> None:
        """Check at the next use whether the tables exist."""
        self._all_known.clear()
        self._first_known.clear()

    async def execute(self, session: AsyncSession, statement: Executable, values: Mapping[str, Any]) -> None:
        """Execute a statement on the first table in the caller's transaction. If the table is missing, it is created in
        the same transaction and on the same connection, because the caller's pool may have no other one, and because
        SQLite's transaction may hold the database's lock.

        :raises ConfigError: the database is neither PostgreSQL nor SQLite.
        :raises sqlalchemy.exc.DBAPIError: the statement failed. If that was because somebody had dropped the table in
            PostgreSQL, the next transaction creates it.
        """
        from sqlalchemy.exc import DBAPIError

        bind = session.get_bind()
        _check_dialect(bind.dialect)
        is_sqlite = bind.dialect.name == "sqlite"
        if not is_sqlite and bind.engine not in self._first_known:
            await self._create_in_transaction(session)
        try:
            await session.execute(statement, values)
        except DBAPIError as error:
            if not names_missing_table(error):
                raise
            self.forget()
            if not is_sqlite:
                error.add_note(
                    f"The table {self._tables[0].name} was dropped while this process was running; the next transaction"
                    " creates it: repeat this one."
                )
                raise
            # An error of this kind does not end a transaction of SQLite.
            await self._create_in_transaction(session)
            await session.execute(statement, values)

    async def _create_in_transaction(self, session: AsyncSession) -> None:
        from sqlalchemy import text
        from sqlalchemy.schema import CreateTable

        table = self._tables[0]
        connection = await session.connection()
        create = CreateTable(table, if_not_exists=True)
        if connection.dialect.name == "sqlite":
            await connection.execute(create)
            return
        own = connection.sync_connection
        assert own is not None
        if await _has_table(connection, table):
            # Not remembered if this transaction has created it: a rollback, also to a savepoint, would undo that.
            if own not in _creating:
                self._first_known.add(own.engine)
            return
        _creating.add(own)
        name = connection.dialect.identifier_preparer.format_table(table).replace("'", "''")
        sql = CREATE_IN_TRANSACTION.format(
            create=create.compile(dialect=connection.dialect), name=f"'{name}'"
        )
        await connection.execute(text(sql.replace(":", "\\:")))


def names_missing_table(error: DBAPIError) -> bool:
    """Return whether the statement failed because a table is missing."""
    cause = error.orig
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return code == UNDEFINED_TABLE or "no such table" in str(cause)


async def _create(sessions: async_sessionmaker[AsyncSession], table: Table) -> None:
    from sqlalchemy.exc import DBAPIError

    async with sessions() as session:
        connection = await open_connection(session)
        _check_dialect(connection.dialect)
        try:
            await connection.run_sync(table.create, checkfirst=True)
            await session.commit()
        except DBAPIError:
            # Another process may have created it at the same time; the error depends on how far it was.
            await session.rollback()
            if not await _has_table(await open_connection(session), table):
                raise


def _check_dialect(dialect: Dialect) -> None:
    if dialect.name not in ("postgresql", "sqlite"):
        raise ConfigError(f"the patterns support PostgreSQL and SQLite, not {dialect.name}")


async def _has_table(connection: AsyncConnection, table: Table) -> bool:
    from sqlalchemy import inspect

    return await connection.run_sync(lambda sync: inspect(sync).has_table(table.name, table.schema))


def upsert(session: AsyncSession, table: Table) -> Insert:
    """Return an insert statement for the table with the method `on_conflict_do_update`, in the dialect of the session's
    database (PostgreSQL or SQLite)."""
    from sqlalchemy.dialects import postgresql, sqlite

    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table)  # type: ignore[return-value]
    return postgresql.insert(table)


def value_rows(session: AsyncSession, column: Column[Any], values: Collection[Any]) -> Select[tuple[Any]]:
    """Return a query with the values as its rows, for use with `IN` and `NOT IN`. All values are passed as one parameter,
    an array (PostgreSQL) or JSON text (SQLite), because both databases limit the number of parameters of a statement.

    :param column: column with which the values are compared; its type is the element type of the array.
    """
    from sqlalchemy import ARRAY, func, literal, select

    if session.get_bind().dialect.name == "sqlite":
        return select(func.json_each(json.dumps(list(values))).table_valued("value").c.value)
    return select(func.unnest(literal(list(values), ARRAY(column.type))).column_valued())


def is_among(session: AsyncSession, column: Column[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """Return the condition that an indexed column has one of the values, which are passed as one parameter. PostgreSQL
    looks up each value in the index."""
    from sqlalchemy import ARRAY, any_, literal

    if session.get_bind().dialect.name == "sqlite":
        return column.in_(value_rows(session, column, values))
    return column == any_(literal(list(values), ARRAY(column.type)))


__all__ = ["CreatedTables", "is_among", "names_missing_table", "require_sqlalchemy", "upsert", "value_rows"]
