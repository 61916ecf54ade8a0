"""Claim check: store large bodies in a blob store; their messages carry only a reference, the claim.

Guarantees: the body is durable in the store before its message is published, and cannot be confused with another: it is
identified by its SHA-256, which is checked when it is fetched. A message whose body is missing or was changed becomes a
dead letter with the reason. If the store does not answer, the handler fails, and its retry policy applies.

A body is kept for `keep` after it was last published; a message that waits longer, in a queue or as a dead letter,
loses its content. Nothing deletes a body earlier, because the number of queues with the message is unknown.

Costs: for a message above the threshold, one put when it is published and one get for each attempt to handle it, and
the whole body in memory at both ends; nothing for other messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import BaseModel, Field

from warren.patterns.argument_checks import check_object
from warren.patterns.claim_check.blob_store import BlobStore, BlobStoreUnavailable
from warren.sdk import App, Clock, ConfigError, DeadLetter, Delivery, Outgoing, SystemClock
from warren.sdk.extend import Duration, IncludedComponent, check_whole_number, duration, optional_duration

log: logging.Logger = logging.getLogger("warren.patterns")

HEADER: Final = "warren-claim"
ENCODING: Final = "claim-check"
KIB: Final = 1024
BLOB_STORES: Final = "FolderBlobStore('FOLDER') or S3BlobStore('BUCKET')"
"""Remedy of the error for a missing blob store."""
DIGEST: Final = re.compile("[0-9a-f]{64}")


class BlobClaim(BaseModel, frozen=True):
    """Reference to a stored body: its SHA-256 in hexadecimal digits and its size in bytes. It may be a field of a
    message."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)


@dataclass(slots=True)
class ClaimCheckStatistics:
    """Counters of one `ClaimCheck` in this process."""

    checked: int = 0
    """Bodies that this process put into the blob store."""
    claimed: int = 0
    """Bodies that this process fetched from the blob store and found unchanged."""
    lost: int = 0
    """Bodies that were missing in the blob store or had been changed; their messages became dead letters."""
    cleaned: int = 0
    """Bodies that this process deleted because they were older than `keep`."""


class ClaimCheck(IncludedComponent):
    """Middleware that stores large bodies when messages are published, and fetches them before messages are handled:
    `ClaimCheck(FolderBlobStore("/srv/blobs"))`.

    Include it after `Encryption` to store encrypted bodies. `put` and `get` store and fetch single bodies explicitly,
    also without an App.

    :param blobs: `FolderBlobStore` or `S3BlobStore`.
    :param threshold_bytes: bodies above this size are stored. Default 256 KiB.
    :param max_bytes: bodies above this size are refused, on publishing and on fetching. Default 256 MiB.
    :param keep: how long a body is kept after it was last published; longer than any message may wait. Default 30 days.
    :param clean_every: interval at which this process deletes bodies older than `keep`; None disables it. Default 1
        hour.
    :raises ConfigError: `threshold_bytes` is negative or above `max_bytes`, or a duration is not positive.
    """

    def __init__(
        self,
        blobs: BlobStore,
        *,
        threshold_bytes: int = 256 * KIB,
        max_bytes: int = 256 * KIB * KIB,
        keep: Duration = timedelta(days=30),
        clean_every: Duration | None = timedelta(hours=1),
    ) -> None:
        check_object("ClaimCheck", blobs, "a blob store", ("put", "get", "clean"), BLOB_STORES)
        check_whole_number("ClaimCheck: threshold_bytes", threshold_bytes, 0)
        check_whole_number("ClaimCheck: max_bytes", max_bytes, 0)
        if not 0 <= threshold_bytes <= max_bytes:
            raise ConfigError(
                f"ClaimCheck: threshold_bytes is {threshold_bytes}, it must be from 0 to max_bytes ({max_bytes})"
            )
        keep = duration(keep, "ClaimCheck: keep")
        clean_every = optional_duration(clean_every, "ClaimCheck: clean_every")
        if min(keep, keep if clean_every is None else clean_every) <= timedelta(0):
            raise ConfigError(f"ClaimCheck: keep ({keep}) and clean_every ({clean_every}) must be positive")
        self.statistics: ClaimCheckStatistics = ClaimCheckStatistics()
        """Counters of what this object has done in this process."""
        self._blobs = blobs
        self._threshold_bytes = threshold_bytes
        self._max_bytes = max_bytes
        self._keep = keep
        self._clean_every = clean_every
        self._clock: Clock = SystemClock()
        self._cleaner: asyncio.Task[None] | None = None
        self._cleaning = False
        super().__init__()

    @property
    def busy(self) -> str:
        """Name of the background work in progress, such as "deleting old bodies"; empty if there is none. A test on a
        virtual clock advances the time only while this is empty."""
        return "deleting old bodies" if self._cleaning else ""

    async def put(self, body: bytes) -> BlobClaim:
        """Store a body and return its claim. The body is durable on return. If it was stored already, its age counts
        from now.

        :raises ConfigError: the body is larger than `max_bytes`.
        :raises BlobStoreUnavailable: the body may or may not be stored; put it again.
        """
        if len(body) > self._max_bytes:
            raise ConfigError(
                f"a body of {len(body)} bytes is too large: ClaimCheck(max_bytes={self._max_bytes})"
            )
        claim = BlobClaim(sha256=hashlib.sha256(body).hexdigest(), size=len(body))
        await self._blobs.put(claim.sha256, body)
        self.statistics.checked += 1
        return claim

    async def get(self, claim: BlobClaim) -> bytes:
        """Return the body to which a claim refers.

        :raises DeadLetter: the body is missing, was changed, or is larger than `max_bytes`.
        :raises BlobStoreUnavailable: the store did not answer; try again.
        """
        if claim.size > self._max_bytes:
            raise DeadLetter(
                f"the body has {claim.size} bytes, more than ClaimCheck(max_bytes={self._max_bytes})"
            )
        body = await self._blobs.get(claim.sha256)
        if body is None:
            self.statistics.lost += 1
            raise DeadLetter(f"the body {claim.sha256} is missing: bodies are kept for {self._keep}")
        if len(body) != claim.size or hashlib.sha256(body).hexdigest() != claim.sha256:
            self.statistics.lost += 1
            raise DeadLetter(f"the body {claim.sha256} was changed in the blob store")
        self.statistics.claimed += 1
        return body

    async def clean(self) -> int:
        """Delete the bodies that are older than `keep`, and return the number of deleted bodies.

        :raises BlobStoreUnavailable: some of the bodies may have been deleted; the next call deletes the rest.
        """
        cleaned = await self._blobs.clean(datetime.fromtimestamp(self._clock.now(), UTC) - self._keep)
        self.statistics.cleaned += cleaned
        return cleaned

    def register(self, app: App) -> None:
        super().register(app)
        self._clock = app.clock
        app.middleware(publish=self._store_body, handle=self._fetch_body)

    async def on_start(self) -> None:
        """Start the periodic deletion of bodies that are older than `keep`."""
        if self._clean_every is not None:
            every = self._clean_every.total_seconds()
            # A separate context: the task belongs to no delivery.
            self._cleaner = asyncio.create_task(self._clean_up(every), name="claim check", context=Context())

    async def on_stop(self) -> None:
        """Stop the periodic deletion, and close the connections of the blob store."""
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is not None:
            cleaner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cleaner
        await self._blobs.close()

    async def _store_body(self, outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        if len(outgoing.body) > self._threshold_bytes:
            claim = await self.put(outgoing.body)
            inner = outgoing.properties.get("content_encoding")
            outgoing.set_body(claim.model_dump_json().encode())
            outgoing.set("content_encoding", f"{inner}, {ENCODING}" if inner else ENCODING)
            outgoing.set_header(HEADER, f"{claim.sha256};{claim.size}")
        await call_next(outgoing)

    async def _fetch_body(self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        encodings = str(delivery.properties.get("content_encoding") or "").split(", ")
        if encodings[-1] != ENCODING:
            await call_next(delivery)
            return
        body = await self.get(_read(delivery.headers.get(HEADER)))
        properties = {
            name: value for name, value in delivery.properties.items() if name != "content_encoding"
        }
        if encodings[:-1]:
            properties["content_encoding"] = ", ".join(encodings[:-1])
        headers = {name: value for name, value in delivery.headers.items() if name != HEADER}
        await call_next(delivery.replace(body=body, headers=headers, properties=properties))

    async def _clean_up(self, every: float) -> None:
        while True:
            self._cleaning = True
            try:
                await self.clean()
            except BlobStoreUnavailable as error:
                log.warning("event=claim_check.cleaning_failed error=%s", error)
            finally:
                self._cleaning = False
            await self._clock.sleep(every)


def _read(text: object) -> BlobClaim:
    """Return the claim from a message's header, or raise `DeadLetter` if the header is not a valid claim. Anybody may
    have written the header, so only a digest and a size are accepted."""
    digest, _, size = text.partition(";") if isinstance(text, str) else ("", "", "")
    if not DIGEST.fullmatch(digest) or not (size.isascii() and size.isdecimal() and len(size) < 20):
        raise DeadLetter("the claim in its header is not in the form that Warren writes")
    return BlobClaim(sha256=digest, size=int(size))


__all__ = ["BlobClaim", "ClaimCheck", "ClaimCheckStatistics"]
