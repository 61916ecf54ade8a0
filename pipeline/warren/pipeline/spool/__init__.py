"""Continuous reading of a classic queue through a spool: each message is on shared storage before it is acknowledged."""
