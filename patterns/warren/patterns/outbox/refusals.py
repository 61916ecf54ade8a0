"""Database table of the outbox's refused messages: why the broker refused them, when they are retried, and requests of
people to retry them now."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from warren.patterns.sql_connections import own_transaction
from warren.patterns.sql_tables import CreatedTables, is_among, upsert

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

log: logging.Logger = logging.getLogger("warren.patterns")

ERROR_CHARACTERS = 1000
"""Number of characters to which the text of an error is cut."""
PIECE_ROWS: Final = 1000
"""Largest number of rows that one statement reads, changes or deletes."""


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

    def __init__(self, sessions: async_sessionmaker[AsyncSession], name: str, messages: Table) -> None:
        self.table: Table = _refused(name)
        self._messages = messages
        self._sessions = sessions
        self._created = CreatedTables(sessions, self.table)
        self._usable: bool | None = None
        self._is_empty = False
        self._checked_up_to: int | None = 0
        """Id up to which refusals of messages that are no longer in the outbox were deleted; None if all were."""

    async def create(self) -> None:
        """Create the table if it is missing. If that fails, for example because the database's user may not create
        tables, log it, and store no refusals until `begin`."""
        from sqlalchemy.exc import ProgrammingError

        if self._usable is False:
            return
        try:
            await self._created.create()
            self._usable = True
        except ProgrammingError as error:
            self._usable = False
            log.warning(
                "event=outbox.refusals_not_stored table=%s error=%s",
                self.table.name,
                str(error).split("\n")[0],
            )

    def begin(self) -> None:
        """Begin a run of the relay: other processes may have changed the table since the last one."""
        self._usable = None
        self._is_empty = False
        self._checked_up_to = 0

    def forget_created(self) -> None:
        """Check at the next use whether the table exists."""
        self._created.forget()

    async def record(self, refusals: Sequence[Refusal], now_ms: int) -> None:
        """Store refusals of messages, and count them.

        :param now_ms: present time in milliseconds since the epoch.
        """
        if not self._usable or not refusals:
            return
        columns = self.table.c
        rows = [
            {
                "id": refusal.id,
                "attempts": 1,
                "requested": 0,
                "ordered_by": refusal.ordered_by,
                "error": refusal.error[:ERROR_CHARACTERS],
                "refused_ms": now_ms,
                "retry_ms": now_ms + int(refusal.retry_seconds * 1000),
            }
            for refusal in refusals
        ]
        self._is_empty = False
        async with own_transaction(self._sessions) as session:
            insert = upsert(session, self.table)
            changed = {
                name: insert.excluded[name] for name in ("ordered_by", "error", "refused_ms", "retry_ms")
            }
            await session.execute(
                insert.on_conflict_do_update(
                    index_elements=[columns.id], set_={**changed, "attempts": columns.attempts + 1}
                ),
                rows,
            )

    async def forget(self, ids: Sequence[int]) -> None:
        """Delete the refusals of messages that the broker has accepted meanwhile."""
        from sqlalchemy import delete

        if not self._usable or self._is_empty or not ids:
            return
        async with own_transaction(self._sessions) as session:
            await session.execute(delete(self.table).where(is_among(session, self.table.c.id, ids)))

    async def forget_missing(self) -> bool:
        """Delete refusals of messages that are no longer in the outbox, among the next `PIECE_ROWS` refusals, until all
        have been checked since `begin`. Return whether the next call has more to check."""
        from sqlalchemy import select

        if not self._usable or self._checked_up_to is None:
            return False
        columns = self.table.c
        piece = (
            select(columns.id).where(columns.id > self._checked_up_to).order_by(columns.id).limit(PIECE_ROWS)
        )
        async with own_transaction(self._sessions) as session:
            ids = list((await session.execute(piece)).scalars())
            await self._delete_missing(session, ids)
        if not self._checked_up_to and not ids:
            self._is_empty = True
        self._checked_up_to = ids[-1] if len(ids) == PIECE_ROWS else None
        return self._checked_up_to is not None

    async def take_requests(self) -> list[tuple[int, str | None]]:
        """Return the id and ordering key of messages whose retry was requested, or that were skipped, since the last
        call: at most `PIECE_ROWS`, so call this again after a result of that length."""
        from sqlalchemy import literal_column, select, update

        if not self._usable:
            return []
        columns = self.table.c
        # No parameter: the partial index serves only a condition that is like its own.
        requested = columns.requested == literal_column("1")
        wanted = (
            select(columns.id, columns.ordered_by).where(requested).order_by(columns.id).limit(PIECE_ROWS)
        )
        async with own_transaction(self._sessions) as session:
            found = [(row.id, row.ordered_by) for row in await session.execute(wanted)]
            if found:
                ids = [number for number, _ in found]
                taken = update(self.table).where(is_among(session, columns.id, ids)).values(requested=0)
                await session.execute(taken)
                await self._delete_missing(session, ids)
        return found

    async def request_all(self) -> int:
        """Request a retry of all refused messages, in several transactions, and return their number."""
        from sqlalchemy import select, update

        columns = self.table.c
        total, low = 0, 0
        while True:
            piece = select(columns.id).where(columns.id > low).order_by(columns.id).limit(PIECE_ROWS)
            async with own_transaction(self._sessions) as session:
                ids = list((await session.execute(piece)).scalars())
                if ids:
                    request = update(self.table).where(is_among(session, columns.id, ids), self.is_waiting())
                    changed = await session.execute(request.values(requested=1))
                    total += changed.rowcount  # type: ignore[attr-defined]
            if len(ids) < PIECE_ROWS:
                return total
            low = ids[-1]

    async def request(self, number: int) -> bool:
        """Request a retry of the message with this id, and return whether it is refused."""
        from sqlalchemy import update

        columns = self.table.c
        async with own_transaction(self._sessions) as session:
            request = update(self.table).where(columns.id == number, self.is_waiting()).values(requested=1)
            return (await session.execute(request.returning(columns.id))).first() is not None

    def is_waiting(self) -> ColumnElement[bool]:
        """Return the condition that the message of a refusal is still in the outbox."""
        from sqlalchemy import select

        number = self._messages.c.id
        return select(number).where(number == self.table.c.id).exists()

    async def _delete_missing(self, session: AsyncSession, ids: Sequence[int]) -> None:
        from sqlalchemy import delete

        if ids:
            gone = delete(self.table).where(is_among(session, self.table.c.id, ids), ~self.is_waiting())
            await session.execute(gone)


def _refused(name: str) -> Table:
    from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text, text

    schema, _, own = name.rpartition(".")
    requested = text("requested = 1")
    return Table(
        f"{own}_refused",
        MetaData(),
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("ordered_by", Text, index=True),
        Column("attempts", Integer, nullable=False),
        Column("error", Text, nullable=False),
        Column("refused_ms", BigInteger, nullable=False),
        Column("retry_ms", BigInteger, nullable=False),
        Column("requested", Integer, nullable=False),
        Index(None, "id", postgresql_where=requested, sqlite_where=requested),
        schema=schema or None,
    )


__all__ = ["Refusal", "Refusals"]
