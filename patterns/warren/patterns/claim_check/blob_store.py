"""Blob store protocol: the place where a claim check stores large bodies."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from warren.sdk import WarrenError
from warren.sdk.extend import Outcome


class BlobStoreUnavailable(WarrenError):
    """The blob store did not answer, or cannot be written. Retryable."""

    retryable: bool = True
    outcome: Outcome = "not_sent"


class BlobStore(Protocol):
    """Place for large bodies. Names consist of hexadecimal digits; the body of a name never changes."""

    async def put(self, name: str, body: bytes) -> None:
        """Store a body. It is durable on return, and its age counts anew if it was stored already.

        :raises BlobStoreUnavailable: it may be stored or not; put it again.
        """
        ...

    async def get(self, name: str) -> bytes | None:
        """Return the body, or None if there is none.

        :raises BlobStoreUnavailable: it is unknown whether there is one.
        """
        ...

    async def clean(self, before: datetime) -> int:
        """Delete the bodies that were put before `before`, and return their number.

        :raises BlobStoreUnavailable: some may be deleted.
        """
        ...

    async def close(self) -> None:
        """Release connections. Idempotent; the next use opens them again."""
        ...


__all__ = ["BlobStore", "BlobStoreUnavailable"]
