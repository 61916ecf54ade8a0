"""Database tables of the outbox (waiting messages, and the relay's lease), and the SQL statements on them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from warren.patterns.sql_connections import own_transaction
from warren.patterns.sql_tables import CreatedTables, is_among, upsert, value_rows
from warren.sdk import ConfigError, Outgoing

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Select, Table
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

LEASE_ROW_ID = 1
"""Id of the only row in the table of the relay's lease."""
SCAN_ROWS: Final = 50_000
"""Largest number of rows that one statement reads in search of messages that may be published, or in order to count."""


class OutboxRow(NamedTuple):
    """Row of a message that waits to be published by the relay."""

    id: int
    ordered_by: str | None
    added_ms: int
    outgoing: Outgoing


class PendingMessages(NamedTuple):
    """Result of a search for messages that may be published.

    :ivar rows: the messages, in the order in which they were added.
    :ivar searched_up_to: id up to which messages were searched; None if the search reached its end.
    :ivar held_back_up_to: the same id if some messages up to it wait for earlier ones, otherwise None.
    """

    rows: list[OutboxRow]
    searched_up_to: int | None = None
    held_back_up_to: int | None = None


class OutboxTables:
    """Access to the tables of messages and of the relay's lease, which are created on first use if they are missing."""

    def __init__(self, sessions: async_sessionmaker[AsyncSession], name: str) -> None:
        self.messages: Table = _messages(name)
        self.lease: Table = _lease(name)
        self.sessions: async_sessionmaker[AsyncSession] = sessions
        self._created = CreatedTables(sessions, self.messages, self.lease)

    async def create(self) -> None:
        """Create the tables if they are missing, unless this object knows that they exist."""
        await self._created.create()

    def forget_created(self) -> None:
        """Check at the next use whether the tables exist."""
        self._created.forget()

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
        await self._created.execute(
            session,
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

    async def pending(
        self,
        limit: int,
        *,
        excluded_keys: Collection[str] = (),
        excluded_ids: Collection[int] = (),
        after: int = 0,
        up_to: int | None = None,
    ) -> PendingMessages:
        """Return the oldest committed messages that are not excluded, for the relay to publish. A statement reads at most
        `SCAN_ROWS` rows, so that many excluded messages cost many short statements.

        :param limit: largest number of messages.
        :param excluded_keys: ordering keys whose messages wait for a retry.
        :param excluded_ids: ids of messages without an ordering key that wait for a retry.
        :param after: return only messages with a higher id. Messages of an ordering key that has a message with an id
            up to `after` are left out, because that message must be published first.
        :param up_to: return only messages up to this id. With this or `after`, only the first `limit` messages, or the
            first `SCAN_ROWS` rows, are searched; the result says up to which id.
        """
        from sqlalchemy import func, or_, select

        columns = self.messages.c
        wanted = select(self.messages).order_by(columns.id)
        async with own_transaction(self.sessions) as session:
            if excluded_keys:
                keys = value_rows(session, columns.ordered_by, excluded_keys)
                wanted = wanted.where(or_(columns.ordered_by.is_(None), columns.ordered_by.not_in(keys)))
            if excluded_ids:
                wanted = wanted.where(columns.id.not_in(value_rows(session, columns.id, excluded_ids)))
            if not (excluded_keys or excluded_ids or after or up_to):
                return PendingMessages(await _read_rows(session, wanted.limit(limit)))
            # Later messages are not considered: an earlier one with the same ordering key may have been committed since the
            # search passed its id.
            last = up_to or (await session.execute(select(func.max(columns.id)))).scalar_one()
            rows: list[OutboxRow] = []
            low = after
            while last is not None and len(rows) < limit:
                high = await self._piece_end(session, low, last)
                piece = wanted.where(columns.id > low, columns.id <= high).limit(limit - len(rows))
                found = await _read_rows(session, piece)
                if after or up_to:
                    end = found[-1].id if len(found) == limit else high
                    return await self._without_held_back(session, found, after, end, last)
                rows += found
                if high == last:
                    break
                low = high
            return PendingMessages(rows)

    async def _piece_end(self, session: AsyncSession, low: int, last: int) -> int:
        """Return the id of the last of the `SCAN_ROWS` rows after the id `low`, but at most `last`."""
        from sqlalchemy import select

        columns = self.messages.c
        end = select(columns.id).where(columns.id > low).order_by(columns.id).offset(SCAN_ROWS - 1).limit(1)
        found: int | None = (await session.execute(end)).scalar_one_or_none()
        return last if found is None else min(found, last)

    async def _without_held_back(
        self, session: AsyncSession, found: list[OutboxRow], after: int, end: int, last: int
    ) -> PendingMessages:
        """Return those of the found messages whose ordering key has no message with an id up to `after`.

        :param end: id up to which messages were searched.
        :param last: id at which the search ends.
        """
        from sqlalchemy import select

        columns = self.messages.c
        open_keys = {row.ordered_by for row in found if row.ordered_by is not None}
        held_back: set[str | None] = set()
        low = 0
        while open_keys and low < after:
            high = await self._piece_end(session, low, after)
            keys = value_rows(session, columns.ordered_by, open_keys)
            earlier = select(columns.ordered_by).where(columns.id > low, columns.id <= high)
            earlier = earlier.where(columns.ordered_by.in_(keys)).distinct()
            held_back.update((await session.execute(earlier)).scalars())
            open_keys -= held_back
            low = high
        rows = [row for row in found if row.ordered_by not in held_back]
        if end >= last:
            return PendingMessages(rows)
        return PendingMessages(rows, end, end if held_back or not found else None)

    async def count(self) -> int:
        """Return the number of waiting messages."""
        from sqlalchemy import func, select

        columns = self.messages.c
        total, low = 0, 0
        while True:
            piece = (
                select(columns.id).where(columns.id > low).order_by(columns.id).limit(SCAN_ROWS).subquery()
            )
            async with own_transaction(self.sessions) as session:
                counted = await session.execute(select(func.count(), func.max(piece.c.id)).select_from(piece))
                number, highest = counted.one()
            total += int(number)
            if number < SCAN_ROWS:
                return total
            low = int(highest)

    async def delete(self, ids: Sequence[int]) -> None:
        """Delete the messages with these ids, which the relay has published."""
        from sqlalchemy import delete

        async with own_transaction(self.sessions) as session:
            await session.execute(delete(self.messages).where(is_among(session, self.messages.c.id, ids)))

    async def oldest_ms(self) -> int | None:
        """Return the time at which the oldest waiting message was added, in milliseconds since the epoch; None if no
        message waits."""
        from sqlalchemy import select

        columns = self.messages.c
        async with own_transaction(self.sessions) as session:
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
        async with own_transaction(self.sessions) as session:
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
        async with own_transaction(self.sessions) as session:
            until = _database_time_ms(session) + lease_ms
            renewal = update(self.lease).where(columns.holder == holder).values(until_ms=until)
            return (await session.execute(renewal.returning(columns.id))).first() is not None

    async def release_lease(self, holder: str) -> None:
        """Release the relay's lease if `holder` has it."""
        from sqlalchemy import update

        columns = self.lease.c
        async with own_transaction(self.sessions) as session:
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


async def _read_rows(session: AsyncSession, wanted: Select[Any]) -> list[OutboxRow]:
    return [read_row(row) for row in (await session.execute(wanted)).mappings()]


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


__all__ = ["OutboxRow", "OutboxTables", "PendingMessages", "read_row"]
