"""Helpers for patterns that write in a caller's database transaction: table creation, and upserts for PostgreSQL and
SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.patterns.optional_packages import require_package
from warren.patterns.sql_connections import open_connection
from warren.sdk import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.dialects.postgresql import Insert
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker


def require_sqlalchemy(purpose: str) -> None:
    """Raise `UsageError` if SQLAlchemy is not installed; its text names the `purpose`."""
    require_package("sqlalchemy", "sql", purpose)


async def create_tables(sessions: async_sessionmaker[AsyncSession], *tables: Table) -> None:
    """Create those of the tables that are missing, in a transaction of their own.

    :raises ConfigError: the database is neither PostgreSQL nor SQLite.
    """
    for table in tables:
        await _create(sessions, table)


async def _create(sessions: async_sessionmaker[AsyncSession], table: Table) -> None:
    from sqlalchemy import inspect
    from sqlalchemy.exc import DBAPIError

    async with sessions() as session:
        connection = await open_connection(session)
        dialect = connection.dialect.name
        if dialect not in ("postgresql", "sqlite"):
            raise ConfigError(f"the patterns support PostgreSQL and SQLite, not {dialect}")
        try:
            await connection.run_sync(table.create, checkfirst=True)
            await session.commit()
        except DBAPIError:
            # Another process may have created it at the same time; the error depends on how far it was.
            await session.rollback()
            connection = await open_connection(session)
            if not await connection.run_sync(lambda sync: inspect(sync).has_table(table.name, table.schema)):
                raise


def upsert(session: AsyncSession, table: Table) -> Insert:
    """Return an insert statement for the table with the method `on_conflict_do_update`, in the dialect of the session's
    database (PostgreSQL or SQLite)."""
    from sqlalchemy.dialects import postgresql, sqlite

    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table)  # type: ignore[return-value]
    return postgresql.insert(table)


__all__ = ["create_tables", "require_sqlalchemy", "upsert"]
