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

_GENERATION: Final = """
INSERT INTO meta VALUES ('generation', 0);
"""

MIGRATIONS: Final = (_FIRST, _ACCESS, _PARAMETERS, _GENERATION)
"""SQL scripts that make each schema version from the one before, and the first one from an empty database.

Append new ones; never change one, because databases exist that it has migrated.
"""
VERSION: Final = len(MIGRATIONS)
"""Schema version of the databases that this broker writes."""


def configure(database: sqlite3.Connection) -> None:
    """Configure the database for one process: write-ahead log, each commit synced."""
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")


def is_empty(database: sqlite3.Connection) -> bool:
    """Return whether the database has no tables."""
    return database.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def migrate(database: sqlite3.Connection, path: str) -> None:
    """Create the tables if the database is empty, and bring it to the current version in one transaction.

    :param path: the database's path, for errors.
    :raises StoreError: the database is of an unknown version.
    """
    version = 0
    if not is_empty(database):
        row = database.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
        version = row[0] if row else 0
        if not isinstance(version, int) or not 1 <= version <= VERSION:
            raise unknown_version(path, version or "none")
    if version < VERSION:
        run_migrations(database, version, VERSION)


def run_migrations(database: sqlite3.Connection, version: int, target: int) -> None:
    """Bring a database from one schema version to a later one in one transaction; 0 is an empty database."""
    steps = "".join(MIGRATIONS[version:target])
    database.executescript(
        f"BEGIN IMMEDIATE; {steps} UPDATE meta SET value = {target} WHERE name = 'version'; COMMIT;"
    )


def unknown_version(path: str, version: object) -> StoreError:
    """Return the error for definitions that another version of Warren wrote."""
    return StoreError(
        f"{path} has version {version}, but this broker reads versions up to {VERSION}; "
        "start it with the version of Warren that wrote it"
    )


__all__ = ["MIGRATIONS", "VERSION", "configure", "is_empty", "migrate", "run_migrations", "unknown_version"]
