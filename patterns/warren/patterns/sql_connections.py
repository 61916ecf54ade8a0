"""Open the database connection of a session in a task that may be cancelled meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

OPENING_SECONDS: Final = 10.0
"""Longest time in seconds for which a cancelled task waits for a connection that is being opened."""


async def open_connection(session: AsyncSession) -> AsyncConnection:
    """Open the session's connection, and return it. A task that is cancelled meanwhile ends when the connection is
    open, or after `OPENING_SECONDS`, so that its session closes the connection.

    Otherwise nobody would close it: aiosqlite opens connections in a thread, and does not close one that is opened after
    its task was cancelled.
    """
    opening = asyncio.ensure_future(session.connection())
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


__all__ = ["open_connection"]
