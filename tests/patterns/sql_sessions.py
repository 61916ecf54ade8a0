"""SQLAlchemy sessions of the caller's transactions: on a real PostgreSQL, or on a SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

Sessions = async_sessionmaker[AsyncSession]


def asyncpg_url(url: str) -> str:
    """Return the URL of a PostgreSQL with the driver that SQLAlchemy uses, asyncpg."""
    return url.replace("postgresql://", "postgresql+asyncpg://")


@asynccontextmanager
async def open_sessions(url: str, schema: str | None = None) -> AsyncIterator[Sessions]:
    """Yield a session factory on the database.

    :param schema: PostgreSQL schema of the test's own, created if needed; the default for unqualified names
    """
    options: dict[str, Any] = {"connect_args": {"server_settings": {"search_path": schema}}} if schema else {}
    if url.startswith("postgresql:"):
        # The pool for SQLite has no size before SQLAlchemy 2.0.38.
        options["pool_size"] = 20
    engine: AsyncEngine = create_async_engine(asyncpg_url(url), **options)
    try:
        if schema is not None:
            async with engine.begin() as connection:
                await connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
        yield async_sessionmaker(engine)
    finally:
        await engine.dispose()


def sqlite_url(folder: Path) -> str:
    # A writer waits for the other transaction, whose disk may be slow.
    return f"sqlite+aiosqlite:///{folder}/work.sqlite?timeout=60"
