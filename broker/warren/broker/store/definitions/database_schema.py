"""The definitions' database: its tables, their versions, and what SQL a row becomes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import Final

from warren.broker.store.definitions.definition_rows import TABLES, Row, Snapshot
from warren.broker.store.errors import StoreError

_FIRST: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE exchanges (vhost BLOB NOT NULL, name BLOB NOT NULL, type BLOB NOT NULL,
    auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (vhost, name)) WITHOUT ROWID;
CREATE TABLE queues (vhost BLOB NOT NULL, name BLOB NOT NULL, incarnation INTEGER NOT NULL UNIQUE,
    auto_delete INTEGER NOT NULL, arguments BLOB NOT NULL, PRIMARY KEY (vhost, name)) WITHOUT ROWID;
CREATE TABLE bindings (vhost BLOB NOT NULL, source BLOB NOT NULL, destination BLOB NOT NULL,
    to_exchange INTEGER NOT NULL, routing_key BLOB NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (vhost, source, destination, to_exchange, routing_key, arguments)) WITHOUT ROWID;
CREATE INDEX bindings_by_destination ON bindings (vhost, destination, to_exchange);
INSERT INTO meta VALUES ('version', 1), ('next_incarnation', 1);
"""

_ACCESS: Final = """
CREATE TABLE virtual_hosts (name TEXT PRIMARY KEY, description TEXT NOT NULL, tags TEXT NOT NULL,
    default_queue_type TEXT NOT NULL, protected INTEGER NOT NULL, max_connections INTEGER, max_queues INTEGER) WITHOUT ROWID;
CREATE TABLE users (name TEXT PRIMARY KEY, password BLOB NOT NULL, algorithm TEXT NOT NULL, tags TEXT NOT NULL,
    max_connections INTEGER, max_channels INTEGER) WITHOUT ROWID;
CREATE TABLE permissions (user TEXT NOT NULL, vhost TEXT NOT NULL, configure TEXT NOT NULL, write TEXT NOT NULL,
    read TEXT NOT NULL, PRIMARY KEY (user, vhost)) WITHOUT ROWID;
CREATE TABLE topic_permissions (user TEXT NOT NULL, vhost TEXT NOT NULL, exchange TEXT NOT NULL, write TEXT NOT NULL,
    read TEXT NOT NULL, PRIMARY KEY (user, vhost, exchange)) WITHOUT ROWID;
INSERT INTO meta VALUES ('seeded', 0);
"""

_PARAMETERS: Final = """
CREATE TABLE parameters (vhost BLOB NOT NULL, component TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (vhost, component, name)) WITHOUT ROWID;
CREATE TABLE global_parameters (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

MIGRATIONS: Final = (_FIRST, _ACCESS, _PARAMETERS)
"""What makes each version of the one before, the first that of an empty database. They are added to, never changed."""
VERSION: Final = len(MIGRATIONS)

Statement = tuple[str, tuple[object, ...]]


def prepare(database: sqlite3.Connection, path: str) -> None:
    """Set the database up, and bring it from whatever version it has to the current one, in one transaction.

    :raises StoreError: if it is of a version that is not known.
    """
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    version = 0
    if database.execute("SELECT 1 FROM sqlite_master").fetchone():
        row = database.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
        if row is None or not 1 <= row[0] <= VERSION:
            found = row[0] if row else "none"
            raise StoreError(
                f"{path} has version {found}, this broker knows {VERSION}: "
                "start it with the version of Warren that wrote it"
            )
        version = row[0]
    if version < VERSION:
        steps = "".join(MIGRATIONS[version:])
        database.executescript(
            f"BEGIN IMMEDIATE; {steps} UPDATE meta SET value = {VERSION} WHERE name = 'version'; COMMIT;"
        )


def load(database: sqlite3.Connection) -> Snapshot:
    """All definitions."""
    return Snapshot(*(_rows(database, kind) for kind in TABLES))  # type: ignore[arg-type]


def _rows(database: sqlite3.Connection, kind: type[Row]) -> tuple[Row, ...]:
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


def put(row: Row) -> Statement:
    """Insert a row, in the place of the one that has its key."""
    values = astuple(row)
    marks = ", ".join("?" * len(values))
    return f"INSERT OR REPLACE INTO {TABLES[type(row)][0]} VALUES ({marks})", values


def remove(kind: type[Row], *key: object) -> Statement:
    """Remove the rows whose key begins with these fields."""
    where = " AND ".join(f"{column.name} = ?" for column, _ in zip(fields(kind), key, strict=False))
    return f"DELETE FROM {TABLES[kind][0]} WHERE {where}", key
