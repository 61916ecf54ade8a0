"""Masking of passwords in store URLs."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def mask_url(url: str) -> str:
    """Return the URL with its password masked. redis-py and asyncpg accept a password before the host or in the query,
    so the whole query is masked too."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if ":" in user:
        user = f"{user.partition(':')[0]}:***"
    query = "***" if parts.query else ""
    return urlunsplit(parts._replace(netloc=f"{user}{at}{host}", query=query))


__all__ = ["mask_url"]
