"""Rehearsal of a migration: publishers, consumers, delays and kills, and a check of what has arrived."""
