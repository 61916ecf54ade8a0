"""Schema of the definitions database: its tables, and the migrations from each version to the next."""

from __future__ import annotations

import sqlite3
from typing import Final

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
"""SQL scripts that make each schema version from the one before, and the first one from an empty database.

Append new ones; never change one, because databases exist that it has migrated.
"""
VERSION: Final = len(MIGRATIONS)
"""Schema version of the databases that this broker writes."""


def migrate(database: sqlite3.Connection, path: str) -> None:
    """Configure the database, create it if it is empty, and bring it to the current version in one transaction.

    :param path: the database's path, for errors.
    :raises StoreError: the database is of an unknown version.
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
                f"{path} has version {found}, but this broker reads versions up to {VERSION}; "
                "start it with the version of Warren that wrote it"
            )
        version = row[0]
    if version < VERSION:
        steps = "".join(MIGRATIONS[version:])
        database.executescript(
            f"BEGIN IMMEDIATE; {steps} UPDATE meta SET value = {VERSION} WHERE name = 'version'; COMMIT;"
        )


__all__ = ["MIGRATIONS", "VERSION", "migrate"]
