"""Queues: consumers, backing queues, paging, expiry, arguments."""
