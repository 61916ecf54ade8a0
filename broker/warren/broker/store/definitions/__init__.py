"""Definitions of exchanges, queues, users and policies in SQLite: rows, database, schema migrations."""
