"""Database table of the outbox's refused messages: why the broker refused them, when they are retried, and requests of
people to retry them now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from warren.patterns.sql_connections import open_connection
from warren.patterns.sql_tables import create_tables, upsert

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

log: logging.Logger = logging.getLogger("warren.patterns")

ERROR_CHARACTERS = 1000
"""Number of characters to which the text of an error is cut."""


class Refusal(NamedTuple):
    """Refusal of a message by the broker.

    :ivar id: id of the message's row.
    :ivar ordered_by: ordering key of the message; None if it has none.
    :ivar error: error of the publish.
    :ivar retry_seconds: seconds until the next attempt.
    """

    id: int
    ordered_by: str | None
    error: str
    retry_seconds: float


class Refusals:
    """Access to the table of refused messages. The relay writes it for people to read, and decides by its own memory;
    without the table it works as well, but nobody can list the refused messages or request a retry.

    :param name: name of the outbox's table of messages; this table is `<name>_refused`.
    """

    def __init__(
        self, sessions: async_sessionmaker[AsyncSession], name: str, messages: Table, *, created: bool = False
    ) -> None:
        self.table: Table = _refused(name)
        self._messages = messages
        self._sessions = sessions
        self._usable: bool | None = True if created else None

    async def create(self) -> None:
        """Create the table if it is missing. If that fails, for example because the database's user may not create
        tables, log it, and store no refusals."""
        if self._usable is not None:
            return
        from sqlalchemy.exc import ProgrammingError

        try:
            await create_tables(self._sessions, self.table)
            self._usable = True
        except ProgrammingError as error:
            self._usable = False
            log.warning(
                "event=outbox.refusals_not_stored table=%s error=%s",
                self.table.name,
                str(error).split("\n")[0],
            )

    async def record(self, refusals: Sequence[Refusal], now_ms: int) -> None:
        """Store refusals of messages, and count them.

        :param now_ms: present time in milliseconds since the epoch.
        """
        if not self._usable or not refusals:
            return
        columns = self.table.c
        async with self._sessions.begin() as session:
            await open_connection(session)
            for refusal in refusals:
                values = {
                    "ordered_by": refusal.ordered_by,
                    "error": refusal.error[:ERROR_CHARACTERS],
                    "refused_ms": now_ms,
                    "retry_ms": now_ms + int(refusal.retry_seconds * 1000),
                }
                insert = upsert(session, self.table).values(id=refusal.id, attempts=1, requested=0, **values)
                await session.execute(
                    insert.on_conflict_do_update(
                        index_elements=[columns.id], set_={**values, "attempts": columns.attempts + 1}
                    )
                )

    async def forget(self, ids: Iterable[int]) -> None:
        """Delete the refusals of messages that the broker has accepted meanwhile."""
        from sqlalchemy import delete

        gone = list(ids)
        if not self._usable or not gone:
            return
        async with self._sessions.begin() as session:
            await open_connection(session)
            await session.execute(delete(self.table).where(self.table.c.id.in_(gone)))

    async def forget_missing(self) -> None:
        """Delete the refusals of all messages that are no longer in the outbox."""
        from sqlalchemy import delete, select

        if not self._usable:
            return
        async with self._sessions.begin() as session:
            await open_connection(session)
            present = select(self._messages.c.id)
            await session.execute(delete(self.table).where(self.table.c.id.not_in(present)))

    async def take_requests(self) -> list[tuple[int, str | None]]:
        """Return the id and ordering key of each message whose retry was requested, and of each that was skipped, since
        the last call."""
        from sqlalchemy import select, update

        if not self._usable:
            return []
        columns = self.table.c
        async with self._sessions.begin() as session:
            await open_connection(session)
            wanted = select(columns.id, columns.ordered_by).where(columns.requested == 1)
            found = [(row.id, row.ordered_by) for row in await session.execute(wanted)]
            if found:
                ids = [number for number, _ in found]
                await session.execute(update(self.table).where(columns.id.in_(ids)).values(requested=0))
        if found:
            await self.forget_missing()
        return found


def _refused(name: str) -> Table:
    from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text

    schema, _, own = name.rpartition(".")
    return Table(
        f"{own}_refused",
        MetaData(),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("ordered_by", Text),
        Column("attempts", Integer, nullable=False),
        Column("error", Text, nullable=False),
        Column("refused_ms", BigInteger, nullable=False),
        Column("retry_ms", BigInteger, nullable=False),
        Column("requested", Integer, nullable=False),
        schema=schema or None,
    )


__all__ = ["Refusal", "Refusals"]
