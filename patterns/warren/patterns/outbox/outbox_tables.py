"""The outbox in the database: the table of messages, the lease of the one relay, and the statements on both."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from warren.patterns.sql_tables import create_tables, upsert
from warren.sdk import ConfigError, Outgoing

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, Select, Table
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

THE_ONE = 1
"""The only row of the lease."""


class Row(NamedTuple):
    """A message that waits for the relay."""

    id: int
    ordered_by: str | None
    added_ms: int
    outgoing: Outgoing


class OutboxTables:
    """Both tables, made when they are first used and missing."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession], name: str) -> None:
        self.messages: Table = _messages(name)
        self.lease: Table = _lease(name)
        self.sessions: async_sessionmaker[AsyncSession] = sessions
        self._made = False

    async def make(self) -> None:
        if not self._made:
            await create_tables(self.sessions, self.messages, self.lease)
            self._made = True

    async def add(
        self, session: AsyncSession, outgoing: Outgoing, ordered_by: str | None, now_ms: int
    ) -> None:
        """Within the caller's transaction.

        :raises ConfigError: a header is nothing that JSON carries.
        """
        try:
            properties = json.dumps({"properties": outgoing.properties, "headers": outgoing.headers})
        except TypeError as error:
            raise ConfigError(
                f"an outbox keeps headers as JSON, which cannot carry one of these: {error}"
            ) from None
        if not self._made:
            await self._make_for(session)
        await session.execute(
            self.messages.insert(),
            {
                "ordered_by": ordered_by,
                "exchange": outgoing.exchange,
                "routing_key": outgoing.routing_key,
                "properties": properties,
                "body": outgoing.body,
                "added_ms": now_ms,
            },
        )

    async def _make_for(self, session: AsyncSession) -> None:
        """Before a caller's transaction writes, in which a lock of SQLite may be held already: there it must do it."""
        from sqlalchemy.schema import CreateTable

        if session.get_bind().dialect.name == "sqlite":
            await session.execute(CreateTable(self.messages, if_not_exists=True))
        else:
            await self.make()

    async def waiting(
        self, limit: int, *, but_keys: Collection[str] = (), but_ids: Collection[int] = (), after: int = 0
    ) -> list[Row]:
        """The oldest of those that are committed, without what is put off.

        :param after: only what has a higher id, and follows none of its order that has not.
        """
        from sqlalchemy import or_, select

        columns = self.messages.c
        wanted = select(self.messages).order_by(columns.id).limit(limit)
        async with self.sessions() as session:
            if but_keys:
                keys = _values(session, columns.ordered_by, but_keys)
                wanted = wanted.where(or_(columns.ordered_by.is_(None), columns.ordered_by.not_in(keys)))
            if but_ids:
                wanted = wanted.where(columns.id.not_in(_values(session, columns.id, but_ids)))
            if after:
                # Joined once: as a condition of each row, either database would search it row by row.
                earlier = self.messages.alias().c
                passed = select(earlier.ordered_by).where(earlier.id <= after).distinct().subquery()
                wanted = wanted.outerjoin(passed, passed.c.ordered_by == columns.ordered_by)
                wanted = wanted.where(columns.id > after, passed.c.ordered_by.is_(None))
            return [_row(row) for row in (await session.execute(wanted)).mappings()]

    async def delete(self, ids: Sequence[int]) -> None:
        from sqlalchemy import delete

        async with self.sessions.begin() as session:
            await session.execute(delete(self.messages).where(self.messages.c.id.in_(ids)))

    async def oldest_ms(self) -> int | None:
        """When the oldest message was added."""
        from sqlalchemy import select

        columns = self.messages.c
        async with self.sessions() as session:
            found = await session.execute(select(columns.added_ms).order_by(columns.id).limit(1))
            oldest: int | None = found.scalar_one_or_none()
            return oldest

    async def take_lease(self, holder: str, lease_ms: int) -> bool:
        """Become, or stay, the one that relays; by the database's clock, so that no machine's own can be wrong."""
        columns = self.lease.c
        async with self.sessions.begin() as session:
            now = _database_ms(session)
            until = now + lease_ms
            claim = upsert(session, self.lease).values(id=THE_ONE, holder=holder, until_ms=until)
            claim = claim.on_conflict_do_update(
                index_elements=[columns.id],
                set_={"holder": holder, "until_ms": until},
                where=(columns.holder == holder) | (columns.until_ms <= now),
            )
            return (await session.execute(claim.returning(columns.id))).first() is not None

    async def release_lease(self, holder: str) -> None:
        from sqlalchemy import update

        columns = self.lease.c
        async with self.sessions.begin() as session:
            await session.execute(update(self.lease).where(columns.holder == holder).values(until_ms=0))


def _row(row: Any) -> Row:
    kept = json.loads(row["properties"])
    outgoing = Outgoing(
        row["exchange"], row["routing_key"], kept["properties"], kept["headers"], bytes(row["body"])
    )
    return Row(row["id"], row["ordered_by"], row["added_ms"], outgoing)


def _database_ms(session: AsyncSession) -> ColumnElement[int]:
    from sqlalchemy import BigInteger, literal_column

    if session.get_bind().dialect.name == "sqlite":
        words = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    else:
        words = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    return literal_column(words, BigInteger)


def _values(session: AsyncSession, column: Column[Any], values: Collection[Any]) -> Select[tuple[Any]]:
    """As rows of one argument: how many arguments a statement may have is limited in both databases."""
    from sqlalchemy import ARRAY, func, literal, select

    if session.get_bind().dialect.name == "sqlite":
        return select(func.json_each(json.dumps(list(values))).table_valued("value").c.value)
    return select(func.unnest(literal(list(values), ARRAY(column.type))).column_valued())


def _messages(name: str) -> Table:
    from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

    schema, _, own = name.rpartition(".")
    return Table(
        own,
        MetaData(),
        # In SQLite only an INTEGER counts by itself.
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("ordered_by", Text),
        Column("exchange", Text, nullable=False),
        Column("routing_key", Text, nullable=False),
        Column("properties", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("added_ms", BigInteger, nullable=False),
        schema=schema or None,
    )


def _lease(name: str) -> Table:
    from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text

    schema, _, own = name.rpartition(".")
    return Table(
        f"{own}_relay",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("holder", Text, nullable=False),
        Column("until_ms", BigInteger, nullable=False),
        schema=schema or None,
    )


__all__ = ["OutboxTables", "Row"]
