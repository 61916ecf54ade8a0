"""Open the database connection of a session: in a task that may be cancelled meanwhile, and always in a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import Dialect
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

Result = TypeVar("Result")

FINISHING_SECONDS: Final = 10.0
"""Longest time in seconds for which a cancelled task waits for the work that it has begun in the database."""
AUTOCOMMIT: Final = "AUTOCOMMIT"
DEFAULT_LEVELS: Final = {"postgresql": "READ COMMITTED", "sqlite": "SERIALIZABLE"}
"""Isolation level of each database if nothing else is configured."""


async def open_connection(session: AsyncSession) -> AsyncConnection:
    """Open the session's connection in a transaction, also if its engine is in autocommit, and return it. A task that is
    cancelled meanwhile ends when the connection is open, or after `FINISHING_SECONDS`, so that its session closes the
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


def is_database_error(error: BaseException, dialect: Dialect) -> bool:
    """Return whether an error comes from the database, its driver, the connection pool, or the network: the application's
    statements did not cause it, unless they were being executed.

    SQLAlchemy 2.0 passes an error of connecting, such as "too many clients" or "the database system is starting up", on as
    the driver raised it.
    """
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.exc import TimeoutError as PoolTimeout

    if isinstance(error, DBAPIError | PoolTimeout | OSError):
        return True
    return type(error).__module__.partition(".")[0] == dialect.driver


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
    return await finish(session.connection(execution_options=options))


async def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Do some work in the database, and return its result. A task that is cancelled meanwhile ends when the work is done,
    or after `FINISHING_SECONDS`."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((task,), timeout=FINISHING_SECONDS)
        finally:
            task.cancel()
            # A session cannot be closed while it opens its connection.
            await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # Read, so that asyncio does not log it: the caller gets the cancellation.
        raise


__all__ = ["finish", "is_autocommit", "is_database_error", "open_connection", "own_transaction"]
