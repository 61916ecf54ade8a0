"""SQL statements that load, store and remove the rows of the definitions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import astuple, fields
from typing import Final

from warren.broker.store.definitions.definition_rows import TABLES, Row, Snapshot

Statement = tuple[str, tuple[object, ...]]
"""SQL text and its parameters."""
LARGEST_INTEGER: Final = 2**63 - 1
"""Largest integer that a column holds; the smallest is `-LARGEST_INTEGER - 1`."""


def load_snapshot(database: sqlite3.Connection) -> Snapshot:
    """Read all rows of the definitions database."""
    return Snapshot(*(_load_rows(database, kind) for kind in TABLES))  # type: ignore[arg-type]


def _load_rows(database: sqlite3.Connection, kind: type[Row]) -> tuple[Row, ...]:
    table, keys = TABLES[kind]
    columns = fields(kind)
    names = [column.name for column in columns]
    flags = {index for index, column in enumerate(columns) if column.type == "bool"}
    found = database.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {', '.join(names[:keys])}")
    make: Callable[..., Row] = kind
    return tuple(
        make(*(bool(value) if index in flags else value for index, value in enumerate(values)))
        for values in found
    )


def put_statement(row: Row) -> Statement:
    """Return the SQL text and parameters that store a row and replace the one with the same key."""
    values = astuple(row)
    marks = ", ".join("?" * len(values))
    return f"INSERT OR REPLACE INTO {TABLES[type(row)][0]} VALUES ({marks})", values


def check_statement(statement: Statement) -> None:
    """Check that the database can hold the parameters of a statement.

    :raises ValueError: an integer has more than 64 bits, or a text has half of a surrogate pair.
    """
    for value in statement[1]:
        if isinstance(value, int) and not -LARGEST_INTEGER - 1 <= value <= LARGEST_INTEGER:
            raise ValueError(f"the definitions cannot hold the integer {value}: it has more than 64 bits")
        if isinstance(value, str):
            value.encode()


def remove_statement(kind: type[Row], *key: object) -> Statement:
    """Return the SQL text and parameters that remove the rows whose first key fields have the values `key`.

    :param kind: the class of the rows, which decides the table.
    """
    where = " AND ".join(f"{column.name} = ?" for column, _ in zip(fields(kind), key, strict=False))
    return f"DELETE FROM {TABLES[kind][0]} WHERE {where}", key


def exchange_removals(vhost: bytes, names: Iterable[bytes]) -> list[Statement]:
    """Return the SQL texts and parameters that remove exchanges with the bindings from and to them."""
    return [(sql, (vhost, name)) for name in names for sql in _EXCHANGE_REMOVAL]


_EXCHANGE_REMOVAL = (
    "DELETE FROM exchanges WHERE vhost = ? AND name = ?",
    "DELETE FROM bindings WHERE vhost = ? AND source = ?",
    "DELETE FROM bindings WHERE vhost = ? AND destination = ? AND to_exchange = 1",
)

__all__ = [
    "LARGEST_INTEGER",
    "Statement",
    "check_statement",
    "exchange_removals",
    "load_snapshot",
    "put_statement",
    "remove_statement",
]
