"""Database tables of the outbox (waiting messages, and the relay's lease), and the SQL statements on them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from warren.patterns.sql_connections import open_connection
from warren.patterns.sql_tables import create_tables, upsert
from warren.sdk import ConfigError, Outgoing

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, Select, Table
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

LEASE_ROW_ID = 1
"""Id of the only row in the table of the relay's lease."""


class OutboxRow(NamedTuple):
    """Row of a message that waits to be published by the relay."""

    id: int
    ordered_by: str | None
    added_ms: int
    outgoing: Outgoing


class OutboxTables:
    """Access to the tables of messages and of the relay's lease, which are created on first use if they are missing."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession], name: str) -> None:
        self.messages: Table = _messages(name)
        self.lease: Table = _lease(name)
        self.sessions: async_sessionmaker[AsyncSession] = sessions
        self._created = False

    async def create(self) -> None:
        """Create the tables if they are missing, unless this object has already done so."""
        if not self._created:
            await create_tables(self.sessions, self.messages, self.lease)
            self._created = True

    async def add(
        self, session: AsyncSession, outgoing: Outgoing, ordered_by: str | None, now_ms: int
    ) -> None:
        """Insert a message in the caller's transaction.

        :param outgoing: the encoded message, with its address.
        :param ordered_by: ordering key, for which the relay publishes messages in the order of `add`; None for no
            order.
        :param now_ms: present time in milliseconds since the epoch, stored with the message.
        :raises ConfigError: JSON cannot represent a header.
        """
        try:
            properties = json.dumps(
                {
                    "properties": outgoing.properties,
                    "headers": outgoing.headers,
                    "mandatory": outgoing.mandatory,
                }
            )
        except TypeError as error:
            raise ConfigError(
                f"an outbox stores headers as JSON, which cannot represent one of these: {error}"
            ) from None
        if not self._created:
            await self._create_for(session)
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

    async def _create_for(self, session: AsyncSession) -> None:
        """Create missing tables before the session's transaction writes a message. In PostgreSQL this is a transaction
        of its own. In SQLite the table of messages is created in the session's transaction, because that may already
        hold the database's lock."""
        from sqlalchemy.schema import CreateTable

        if session.get_bind().dialect.name == "sqlite":
            await session.execute(CreateTable(self.messages, if_not_exists=True))
        else:
            await self.create()

    async def pending(
        self,
        limit: int,
        *,
        excluded_keys: Collection[str] = (),
        excluded_ids: Collection[int] = (),
        after: int = 0,
    ) -> list[OutboxRow]:
        """Return the oldest committed messages that are not excluded, for the relay to publish.

        :param limit: largest number of messages.
        :param excluded_keys: ordering keys whose messages wait for a retry.
        :param excluded_ids: ids of messages without an ordering key that wait for a retry.
        :param after: return only messages with a higher id. Messages of an ordering key that has a message with an id
            up to `after` are left out, because that message must be published first.
        """
        from sqlalchemy import or_, select

        columns = self.messages.c
        wanted = select(self.messages).order_by(columns.id).limit(limit)
        async with self.sessions() as session:
            await open_connection(session)
            if excluded_keys:
                keys = _values(session, columns.ordered_by, excluded_keys)
                wanted = wanted.where(or_(columns.ordered_by.is_(None), columns.ordered_by.not_in(keys)))
            if excluded_ids:
                wanted = wanted.where(columns.id.not_in(_values(session, columns.id, excluded_ids)))
            if after:
                # Joined once: as a condition of each row, both databases would search it row by row.
                earlier = self.messages.alias().c
                skipped = select(earlier.ordered_by).where(earlier.id <= after).distinct().subquery()
                wanted = wanted.outerjoin(skipped, skipped.c.ordered_by == columns.ordered_by)
                wanted = wanted.where(columns.id > after, skipped.c.ordered_by.is_(None))
            return [read_row(row) for row in (await session.execute(wanted)).mappings()]

    async def delete(self, ids: Sequence[int]) -> None:
        """Delete the messages with these ids, which the relay has published."""
        from sqlalchemy import delete

        async with self.sessions.begin() as session:
            await open_connection(session)
            await session.execute(delete(self.messages).where(self.messages.c.id.in_(ids)))

    async def oldest_ms(self) -> int | None:
        """Return the time at which the oldest waiting message was added, in milliseconds since the epoch; None if no
        message waits."""
        from sqlalchemy import select

        columns = self.messages.c
        async with self.sessions() as session:
            await open_connection(session)
            found = await session.execute(select(columns.added_ms).order_by(columns.id).limit(1))
            oldest: int | None = found.scalar_one_or_none()
            return oldest

    async def take_lease(self, holder: str, lease_ms: int) -> bool:
        """Take the relay's lease for `holder`, and return whether the holder has it now. The database's clock is used,
        so that the machines' clocks need not agree.

        :param holder: id of the process.
        :param lease_ms: time in milliseconds after which the lease ends unless it is renewed.
        """
        columns = self.lease.c
        async with self.sessions.begin() as session:
            await open_connection(session)
            now = _database_time_ms(session)
            until = now + lease_ms
            claim = upsert(session, self.lease).values(id=LEASE_ROW_ID, holder=holder, until_ms=until)
            claim = claim.on_conflict_do_update(
                index_elements=[columns.id],
                set_={"holder": holder, "until_ms": until},
                where=(columns.holder == holder) | (columns.until_ms <= now),
            )
            return (await session.execute(claim.returning(columns.id))).first() is not None

    async def renew_lease(self, holder: str, lease_ms: int) -> bool:
        """Renew the relay's lease, and return whether `holder` has had it all the time since it took it.

        Unlike `take_lease`, this fails if another process had the lease meanwhile and has released it: what the holder
        has read from the table of messages is then out of date.

        :param holder: id of the process.
        :param lease_ms: time in milliseconds after which the lease ends unless it is renewed.
        """
        from sqlalchemy import update

        columns = self.lease.c
        async with self.sessions.begin() as session:
            await open_connection(session)
            until = _database_time_ms(session) + lease_ms
            renewal = update(self.lease).where(columns.holder == holder).values(until_ms=until)
            return (await session.execute(renewal.returning(columns.id))).first() is not None

    async def release_lease(self, holder: str) -> None:
        """Release the relay's lease if `holder` has it."""
        from sqlalchemy import update

        columns = self.lease.c
        async with self.sessions.begin() as session:
            await open_connection(session)
            await session.execute(update(self.lease).where(columns.holder == holder).values(until_ms=0))


def read_row(row: Any) -> OutboxRow:
    """Return a row of the table of messages, given as a mapping, with its message."""
    stored = json.loads(row["properties"])
    outgoing = Outgoing(
        row["exchange"],
        row["routing_key"],
        stored["properties"],
        stored["headers"],
        bytes(row["body"]),
        mandatory=stored.get("mandatory", True),
    )
    return OutboxRow(row["id"], row["ordered_by"], row["added_ms"], outgoing)


def _database_time_ms(session: AsyncSession) -> ColumnElement[int]:
    from sqlalchemy import BigInteger, literal_column

    if session.get_bind().dialect.name == "sqlite":
        expression = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    else:
        expression = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    return literal_column(expression, BigInteger)


def _values(session: AsyncSession, column: Column[Any], values: Collection[Any]) -> Select[tuple[Any]]:
    """Return a query with the values as its rows, for use with `IN`. All values are passed as one array (PostgreSQL) or
    JSON text (SQLite), because both databases limit the number of parameters of a statement.

    :param column: column with which the values are compared; its type is the element type of the array.
    """
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
        # SQLite generates ids only for an INTEGER column.
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


__all__ = ["OutboxRow", "OutboxTables", "read_row"]
