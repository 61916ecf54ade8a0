"""Continuous reading of a classic queue by Spark through a spool: files on shared storage to which each message is
written before it is acknowledged, and which keep it until Spark has processed it.
"""
