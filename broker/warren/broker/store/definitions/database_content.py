"""Content of the definitions database as plain rows: to compare two copies, and to write one from the other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import fields
from typing import Final, NamedTuple

from warren.broker.store.definitions.definition_rows import TABLES, QueueRow, Row
from warren.broker.store.definitions.row_statements import Statement

_META: Final = ("generation", "next_incarnation", "seeded", "version")
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "bytes": (bytes,),
    "str": (str,),
    "int": (int,),
    "bool": (int,),
    "int | None": (int, type(None)),
}
"""Python types of the values of a column, by the annotation of its field."""


class DatabaseContent(NamedTuple):
    """All rows of the definitions database, ordered by key."""

    meta: dict[str, int]
    rows: dict[type[Row], list[tuple[object, ...]]]

    @property
    def generation(self) -> int:
        """Number of transactions that led to this content."""
        return self.meta["generation"]

    @property
    def next_incarnation(self) -> int:
        """First incarnation that was never reserved: no queue has had it or a higher one."""
        return self.meta["next_incarnation"]

    @property
    def incarnations(self) -> set[int]:
        """Incarnations of the queues."""
        column = [field.name for field in fields(QueueRow)].index("incarnation")
        return {value for row in self.rows[QueueRow] if isinstance(value := row[column], int)}

    def count(self, kind: type[Row]) -> int:
        """Return the number of rows of one kind."""
        return len(self.rows[kind])

    def invalid_value(self) -> str:
        """Return a description of a value that has another type than its column; an empty text if there is none."""
        if sorted(self.meta) != sorted(_META) or not all(
            isinstance(value, int) for value in self.meta.values()
        ):
            return "its table meta is damaged"
        for kind, rows in self.rows.items():
            types = [_TYPES[str(column.type)] for column in fields(kind)]
            for row in rows:
                if not all(isinstance(value, found) for value, found in zip(row, types, strict=True)):
                    return f"a row of its table {TABLES[kind][0]} is damaged"
        return ""


def read_content(database: sqlite3.Connection) -> DatabaseContent:
    """Read all rows of the database."""
    meta = dict(database.execute("SELECT name, value FROM meta").fetchall())
    rows = {
        kind: database.execute(
            f"SELECT {_columns(kind)} FROM {table} ORDER BY {_columns(kind, keys)}"
        ).fetchall()
        for kind, (table, keys) in TABLES.items()
    }
    return DatabaseContent(meta, rows)


def snapshot_statements(database: sqlite3.Connection) -> Iterator[Statement]:
    """Yield the statements that insert all rows into another database that has the same tables and no rows."""
    for row in database.execute("SELECT name, value FROM meta"):
        yield "INSERT OR REPLACE INTO meta VALUES (?, ?)", row
    for kind, (table, _) in TABLES.items():
        columns = _columns(kind)
        marks = ", ".join("?" * len(fields(kind)))
        for row in database.execute(f"SELECT {columns} FROM {table}"):
            yield f"INSERT INTO {table} ({columns}) VALUES ({marks})", row


def _columns(kind: type[Row], count: int | None = None) -> str:
    return ", ".join(field.name for field in fields(kind)[:count])


__all__ = ["DatabaseContent", "read_content", "snapshot_statements"]
