"""Open the database connection of a session: in a task that may be cancelled meanwhile, and always in a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

OPENING_SECONDS: Final = 10.0
"""Longest time in seconds for which a cancelled task waits for a connection that is being opened."""
AUTOCOMMIT: Final = "AUTOCOMMIT"
DEFAULT_LEVELS: Final = {"postgresql": "READ COMMITTED", "sqlite": "SERIALIZABLE"}
"""Isolation level of each database if nothing else is configured."""


async def open_connection(session: AsyncSession) -> AsyncConnection:
    """Open the session's connection in a transaction, also if its engine is in autocommit, and return it. A task that is
    cancelled meanwhile ends when the connection is open, or after `OPENING_SECONDS`, so that its session closes the
    connection.

    Otherwise nobody would close it: aiosqlite opens connections in a thread, and does not close one that is opened after
    its task was cancelled.
    """
    bind: Any = session.get_bind()
    return await _open(session, DEFAULT_LEVELS.get(bind.dialect.name) if _is_autocommit(bind) else None)


@asynccontextmanager
async def own_transaction(sessions: async_sessionmaker[AsyncSession]) -> AsyncIterator[AsyncSession]:
    """Open a session in a transaction of the pattern's own, and commit it at the end of the block.

    The transaction has the database's default isolation level: with that of the application's engine, such as
    SERIALIZABLE, statements that need no more than atomicity would fail when other processes write at the same time.
    """
    async with sessions() as session, session.begin():
        bind: Any = session.get_bind()
        # A session of one connection takes part in that connection's transaction, whose level cannot be changed.
        is_engine = bind.engine is bind
        await _open(
            session, DEFAULT_LEVELS.get(bind.dialect.name) if is_engine and _needs_level(bind) else None
        )
        yield session


def is_autocommit(connection: AsyncConnection) -> bool:
    """Return whether each statement on this connection is a transaction of its own."""
    return _is_autocommit(connection.sync_connection)


def _needs_level(bind: Any) -> bool:
    return bind.dialect.name == "postgresql" or _is_autocommit(bind)


def _is_autocommit(bind: Any) -> bool:
    """Return whether an engine or a connection is in autocommit, by its own options or by those of `create_engine`."""
    level = bind.get_execution_options().get("isolation_level")
    return (level or getattr(bind.dialect, "_on_connect_isolation_level", None)) == AUTOCOMMIT


async def _open(session: AsyncSession, isolation_level: str | None) -> AsyncConnection:
    options = {} if isolation_level is None else {"isolation_level": isolation_level}
    opening = asyncio.ensure_future(session.connection(execution_options=options))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((opening,), timeout=OPENING_SECONDS)
        finally:
            opening.cancel()
            # A session cannot be closed while it opens its connection.
            await asyncio.wait((opening,))
        if not opening.cancelled():
            opening.exception()  # Read, so that asyncio does not log it: the caller gets the cancellation.
        raise


__all__ = ["is_autocommit", "open_connection", "own_transaction"]
