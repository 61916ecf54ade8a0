"""Continuous reading of a classic queue through a spool: files on shared storage to which each message is written
before it is acknowledged.
"""
