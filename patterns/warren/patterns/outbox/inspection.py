"""Operator's view of an outbox: list and show waiting messages, retry a refused one now, and skip one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from warren.core.errors import UsageError
from warren.patterns.outbox.outbox_tables import OutboxRow, OutboxTables, read_row
from warren.patterns.outbox.refusals import Refusals
from warren.patterns.sql_connections import is_database_error, open_connection, own_transaction
from warren.patterns.sql_tables import is_among, require_sqlalchemy
from warren.patterns.stores.store import StoreUnavailable
from warren.patterns.stores.url_masking import mask_url
from warren.sdk import Outgoing

if TYPE_CHECKING:
    from sqlalchemy import Select
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

DRIVERS: Final = {
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
"""SQLAlchemy's dialect and driver for the schemes of URLs that name no driver."""
PIECE_ROWS: Final = 500
"""Largest number of messages that one statement reads."""


class WaitingState(StrEnum):
    """State of a message that waits in an outbox."""

    WAITING = "waiting"
    """The relay has not tried it yet."""
    REFUSED = "refused"
    """The broker refused it; the relay tries it again."""
    HELD_BACK = "held_back"
    """An earlier message with the same ordering key is refused."""


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """Message that waits in an outbox. Times are milliseconds since the epoch.

    :ivar id: id of its row, by which it is shown, retried and skipped.
    :ivar attempts: number of times that the broker refused it.
    :ivar error: error of the last attempt; empty if there was none.
    :ivar retry_ms: time of the next attempt; None if none is scheduled.
    """

    id: int
    state: WaitingState
    ordered_by: str | None
    added_ms: int
    outgoing: Outgoing
    attempts: int = 0
    error: str = ""
    retry_ms: int | None = None


class OutboxInspection:
    """View of the outbox in one database.

    :param sessions: sessions on the outbox's database.
    :param table: name of the table of messages.
    """

    def __init__(self, sessions: async_sessionmaker[AsyncSession], table: str) -> None:
        self._sessions = sessions
        self._tables = OutboxTables(sessions, table)
        self._messages = self._tables.messages
        self._refusals = Refusals(sessions, table, self._messages)
        self._refused = self._refusals.table
        self._name = table
        self._has_refusals = False

    async def open(self) -> None:
        """Check that the outbox's tables exist.

        :raises UsageError: the database has no such outbox.
        """
        from sqlalchemy import inspect

        async with self._sessions() as session:
            connection = await open_connection(session)
            present = await connection.run_sync(
                lambda sync: [
                    inspect(sync).has_table(table.name, table.schema)
                    for table in (self._messages, self._refused)
                ]
            )
        if not present[0]:
            raise UsageError(f"this database has no table {self._name}: name that of the outbox with --table")
        self._has_refusals = present[1]

    async def messages(self, limit: int) -> tuple[Sequence[WaitingMessage], int]:
        """Return the oldest waiting messages, at most `limit`, and the number of all."""
        from sqlalchemy import select

        total = await self._tables.count()
        number = self._messages.c.id
        found: list[WaitingMessage] = []
        refused_keys: set[str] = set()
        while len(found) < limit:
            size = min(PIECE_ROWS, limit - len(found))
            wanted = select(self._messages).order_by(number).limit(size)
            piece = await self._read(wanted.where(number > found[-1].id) if found else wanted, refused_keys)
            found += piece
            if len(piece) < size:
                break
        return found, total

    async def message(self, number: int) -> WaitingMessage | None:
        """Return the waiting message with this id; None if there is none."""
        from sqlalchemy import select

        columns = self._refused.c
        found = await self._read(select(self._messages).where(self._messages.c.id == number), set())
        if not found:
            return None
        message = found[0]
        if message.state is WaitingState.WAITING and message.ordered_by is not None and self._has_refusals:
            earlier = select(columns.id).where(columns.ordered_by == message.ordered_by, columns.id < number)
            async with own_transaction(self._sessions) as session:
                holding = await session.execute(earlier.where(self._refusals.is_waiting()).limit(1))
                if holding.first() is not None:
                    return replace(message, state=WaitingState.HELD_BACK)
        return message

    async def retry(self, number: int | None) -> int:
        """Ask the relay to try a refused message again at its next look at the table; return the number of messages.

        :param number: id of the message; None for all refused messages.
        """
        if not self._has_refusals:
            return 0
        return (
            await self._refusals.request_all()
            if number is None
            else int(await self._refusals.request(number))
        )

    async def skip(self, number: int) -> bool:
        """Delete a waiting message, so that it is not published, and those that it held back are; return whether it was
        there. If the relay is publishing it at this moment, it arrives nevertheless."""
        from sqlalchemy import delete, update

        columns = self._messages.c
        async with own_transaction(self._sessions) as session:
            gone = delete(self._messages).where(columns.id == number).returning(columns.id)
            found = (await session.execute(gone)).first() is not None
            if found and self._has_refusals:
                # The relay holds back the ordering key in its memory, until it reads this.
                refused = update(self._refused).where(self._refused.c.id == number)
                await session.execute(refused.values(requested=1))
        return found

    async def _read(self, wanted: Select[Any], refused_keys: set[str]) -> list[WaitingMessage]:
        """Return the waiting messages that a query finds, in the order of their ids.

        :param refused_keys: ordering keys that have an earlier refused message; those of the messages found are added.
        """
        from sqlalchemy import select

        refusals: dict[int, Any] = {}
        async with own_transaction(self._sessions) as session:
            rows = [read_row(row) for row in (await session.execute(wanted)).mappings()]
            if self._has_refusals and rows:
                its = select(self._refused).where(
                    is_among(session, self._refused.c.id, [row.id for row in rows])
                )
                refusals = {each["id"]: each for each in (await session.execute(its)).mappings()}
        found = []
        for row in rows:
            found.append(_waiting(row, refusals.get(row.id), row.ordered_by in refused_keys))
            if row.id in refusals and row.ordered_by is not None:
                refused_keys.add(row.ordered_by)
        return found


def _waiting(row: OutboxRow, refusal: Any, is_held_back: bool) -> WaitingMessage:
    message = WaitingMessage(row.id, WaitingState.WAITING, row.ordered_by, row.added_ms, row.outgoing)
    if refusal is not None:
        return replace(
            message,
            state=WaitingState.REFUSED,
            attempts=refusal["attempts"],
            error=refusal["error"],
            retry_ms=refusal["retry_ms"],
        )
    return replace(message, state=WaitingState.HELD_BACK) if is_held_back else message


@asynccontextmanager
async def open_outbox(address: str, table: str) -> AsyncIterator[OutboxInspection]:
    """Open the outbox in a database, and close the connections at the end of the block.

    :param address: `postgresql://...`, the path of an SQLite file, or a URL of SQLAlchemy.
    :param table: name of the table of messages.
    :raises UsageError: the address names no such database, a package is missing, or there is no such table.
    :raises StoreUnavailable: the database does not answer.
    """
    require_sqlalchemy("warren outbox")
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    try:
        engine = create_async_engine(_sqlalchemy_url(address))
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the driver of this database is not installed ({error}): pip install 'warrenmq[sql]'"
        ) from None
    try:
        outbox = OutboxInspection(async_sessionmaker(engine), table)
        await outbox.open()
        yield outbox
    except Exception as error:
        if not is_database_error(error, engine.dialect):
            raise
        cause = str(error).partition("\n")[0]
        raise StoreUnavailable(f"the database {mask_url(address)} did not answer: {cause}") from error
    finally:
        await engine.dispose()


def _sqlalchemy_url(address: str) -> str:
    scheme = urlsplit(address).scheme if "://" in address else ""
    if scheme.partition("+")[0] in ("postgresql", "sqlite") and "+" in scheme:
        return address
    if scheme in DRIVERS:
        return DRIVERS[scheme] + address[len(scheme) :]
    if scheme or not Path(address).is_file():
        raise UsageError(
            f"there is no outbox at {scheme}://...: it is in PostgreSQL (postgresql://HOST/DATABASE) or in an SQLite file"
            if scheme
            else f"there is no outbox at {address}: give postgresql://HOST/DATABASE, or the path of an existing SQLite file"
        )
    return f"sqlite+aiosqlite:///{Path(address).absolute()}"


__all__ = ["OutboxInspection", "WaitingMessage", "WaitingState", "open_outbox"]
