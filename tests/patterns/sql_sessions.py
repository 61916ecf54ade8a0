"""The databases that a pattern writes to in its caller's transaction: a real PostgreSQL, and a SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

Sessions = async_sessionmaker[AsyncSession]


def driven(url: str) -> str:
    """Return the URL as SQLAlchemy takes it."""
    return url.replace("postgresql://", "postgresql+asyncpg://")


@asynccontextmanager
async def sessions_of(url: str, schema: str | None = None) -> AsyncIterator[Sessions]:
    """:param schema: of the test's own in PostgreSQL, made and used for all that has no other."""
    options = {"connect_args": {"server_settings": {"search_path": schema}}} if schema else {}
    engine: AsyncEngine = create_async_engine(driven(url), pool_size=20, **options)
    try:
        if schema is not None:
            async with engine.begin() as connection:
                await connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
        yield async_sessionmaker(engine)
    finally:
        await engine.dispose()


def sqlite_url(folder: Path) -> str:
    # Who waits for another one's transaction waits for a disk that may be slow, too.
    return f"sqlite+aiosqlite:///{folder}/work.sqlite?timeout=60"
