"""Blob store protocol: the storage in which a claim check keeps large bodies."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Protocol

from warren.sdk import WarrenError
from warren.sdk.extend import MessageOutcome


class BlobStoreUnavailable(WarrenError):
    """Error of a blob store that did not answer or cannot be written. The operation can be retried."""

    help_section: ClassVar[str] = "patterns"
    retryable: bool = True
    outcome: MessageOutcome = "not_sent"


class BlobStore(Protocol):
    """Storage for large message bodies. The name of a body consists of hexadecimal digits; the body under a name never
    changes."""

    async def put(self, name: str, body: bytes) -> None:
        """Store `body` under `name`. The body is durable on return. If it was stored already, its age counts from now.

        :raises BlobStoreUnavailable: the body may or may not be stored; put it again.
        """
        ...

    async def get(self, name: str) -> bytes | None:
        """Return the body that is stored under `name`, or None if there is none.

        :raises BlobStoreUnavailable: it is unknown whether the body exists.
        """
        ...

    async def clean(self, before: datetime) -> int:
        """Delete the bodies that were last put before the time `before`, and return the number of deleted bodies.

        :raises BlobStoreUnavailable: some of the bodies may have been deleted.
        """
        ...

    async def close(self) -> None:
        """Close the store's connections. Idempotent; the next use opens them again."""
        ...


__all__ = ["BlobStore", "BlobStoreUnavailable"]
