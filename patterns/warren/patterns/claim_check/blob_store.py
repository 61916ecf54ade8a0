"""What the claim check asks of a place for large bodies."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from warren.sdk import WarrenError
from warren.sdk.extend import Outcome


class BlobStoreUnavailable(WarrenError):
    """The place for large bodies did not answer, or cannot be written; worth trying again."""

    retryable: bool = True
    outcome: Outcome = "not_sent"


class BlobStore(Protocol):
    """A place for large bodies. Names are made of hexadecimal digits; what a name stands for never changes."""

    async def put(self, name: str, body: bytes) -> None:
        """Keep it; it is safe when this returns, and as young as if it were new if it was there already.

        :raises BlobsUnavailable: it may be there or not; put it again.
        """
        ...

    async def get(self, name: str) -> bytes | None:
        """The body; None if there is none.

        :raises BlobsUnavailable: it is not known.
        """
        ...

    async def clean(self, before: datetime) -> int:
        """Delete what was put before, and say how many that were.

        :raises BlobsUnavailable: some may be deleted.
        """
        ...

    async def close(self) -> None:
        """Release connections. Idempotent; the next use opens them again."""
        ...


__all__ = ["BlobStore", "BlobStoreUnavailable"]
