"""Definitions of exchanges, queues, users and policies in SQLite: rows, database, journal, recovery, schema migrations."""
