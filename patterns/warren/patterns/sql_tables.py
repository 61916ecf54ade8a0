"""What the patterns that write in a caller's database transaction share: their tables, and upserts in both dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.patterns.optional_packages import require_package
from warren.sdk import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.dialects.postgresql import Insert
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker


def require_sqlalchemy(purpose: str) -> None:
    """:raises UsageError: SQLAlchemy is not installed."""
    require_package("sqlalchemy", "sql", purpose)


async def create_tables(sessions: async_sessionmaker[AsyncSession], *tables: Table) -> None:
    """Make those that are missing, in a transaction of their own.

    :raises ConfigError: the database is neither PostgreSQL nor SQLite.
    """
    for table in tables:
        await _make(sessions, table)


async def _make(sessions: async_sessionmaker[AsyncSession], table: Table) -> None:
    from sqlalchemy import inspect
    from sqlalchemy.exc import DBAPIError

    async with sessions() as session:
        connection = await session.connection()
        dialect = connection.dialect.name
        if dialect not in ("postgresql", "sqlite"):
            raise ConfigError(f"a {dialect} database: the patterns know PostgreSQL and SQLite")
        try:
            await connection.run_sync(table.create, checkfirst=True)
            await session.commit()
        except DBAPIError:
            # Or somebody else made it at the same time: which error says so depends on how far they were.
            await session.rollback()
            connection = await session.connection()
            if not await connection.run_sync(lambda its: inspect(its).has_table(table.name, table.schema)):
                raise


def upsert(session: AsyncSession, table: Table) -> Insert:
    """An insert with `on_conflict_do_update`, which both dialects write alike."""
    from sqlalchemy.dialects import postgresql, sqlite

    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table)  # type: ignore[return-value]
    return postgresql.insert(table)


__all__ = ["create_tables", "require_sqlalchemy", "upsert"]
