"""Definitions of exchanges, queues, users and policies in SQLite."""
