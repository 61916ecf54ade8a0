"""Claim check: what is large is kept in a blob store, and its message carries the claim to it.

Guarantees: the body is safe in the store before its message is published, and is taken for nothing else: it is known by its
SHA-256, which is checked when it is fetched. A body that is gone or was changed ends its message as a dead letter with the
reason; a store that does not answer fails the handler, for its retry policy.

A body lives for `keep` after it was last published; a message that waits longer, in a queue or among the dead letters, has
lost its content. Nobody deletes it earlier, because nobody knows how many queues have the message.

Costs: for a message above the threshold, one put when it is published and one get for each attempt to handle it, and the
whole body in memory at both ends; nothing for the others.
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

from warren.patterns.claim_check.blob_store import BlobStore, BlobStoreUnavailable
from warren.sdk import App, Clock, ConfigError, DeadLetter, Delivery, Outgoing, SystemClock

log: logging.Logger = logging.getLogger("warren.patterns")

HEADER: Final = "warren-claim"
ENCODING: Final = "claim-check"
KIB: Final = 1024
DIGEST: Final = re.compile("[0-9a-f]{64}")


class Claim(BaseModel, frozen=True):
    """What stands for a body: its SHA-256 in hexadecimal digits and its size in bytes. May be a field of a message."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)


@dataclass(slots=True)
class ClaimCheckStatistics:
    """What this process has done."""

    checked: int = 0
    """Bodies that were put."""
    claimed: int = 0
    """Bodies that were fetched."""
    lost: int = 0
    """Claims whose body was gone or had been changed."""
    cleaned: int = 0
    """Bodies that were deleted because they were too old."""


class ClaimCheck:
    """`app.include(ClaimCheck(FolderBlobStore("/srv/blobs")))` stores large bodies outside the broker.

    Included after `Encryption`, what it keeps is encrypted. `put` and `get` do the same by hand, also without an App.

    :param blobs: `FolderBlobStore`, or `S3BlobStore`.
    :param above: bodies of more bytes than that are kept there. Default 256 KiB.
    :param most: bodies of more bytes are refused, when they are published and when they are claimed. Default 256 MiB.
    :param keep: how long a body is kept after it was last published; longer than any message may wait. Default 30 days.
    :param clean_every: how often this process deletes what is older; None never does. Default 1 hour.
    :raises ConfigError: `above` is negative or more than `most`, or a duration is not positive.
    """

    def __init__(
        self,
        blobs: BlobStore,
        *,
        above: int = 256 * KIB,
        most: int = 256 * KIB * KIB,
        keep: timedelta = timedelta(days=30),
        clean_every: timedelta | None = timedelta(hours=1),
    ) -> None:
        if not 0 <= above <= most:
            raise ConfigError(f"ClaimCheck: above is {above}, it must be from 0 to most ({most})")
        if min(keep, clean_every or keep) <= timedelta(0):
            raise ConfigError(f"ClaimCheck: keep ({keep}) and clean_every ({clean_every}) must be positive")
        self.statistics: ClaimCheckStatistics = ClaimCheckStatistics()
        self._blobs = blobs
        self._above = above
        self._most = most
        self._keep = keep
        self._clean_every = clean_every
        self._clock: Clock = SystemClock()
        self._cleaner: asyncio.Task[None] | None = None
        self._cleaning = False

    @property
    def busy(self) -> str:
        """What it is working on in the background; empty if it waits."""
        return "cleaning up large bodies" if self._cleaning else ""

    async def put(self, body: bytes) -> Claim:
        """Keep a body; it is safe when this returns. The same body again makes it young again.

        :raises ConfigError: it is larger than `most`.
        :raises BlobsUnavailable: put it again.
        """
        if len(body) > self._most:
            raise ConfigError(f"a body of {len(body)} bytes is too large: ClaimCheck(most={self._most})")
        claim = Claim(sha256=hashlib.sha256(body).hexdigest(), size=len(body))
        await self._blobs.put(claim.sha256, body)
        self.statistics.checked += 1
        return claim

    async def get(self, claim: Claim) -> bytes:
        """The body of a claim.

        :raises DeadLetter: it is gone, was changed, or is larger than `most`.
        :raises BlobsUnavailable: try again.
        """
        if claim.size > self._most:
            raise DeadLetter(f"its content has {claim.size} bytes, more than ClaimCheck(most={self._most})")
        body = await self._blobs.get(claim.sha256)
        if body is None:
            self.statistics.lost += 1
            raise DeadLetter(f"its content {claim.sha256} is gone: contents are kept for {self._keep}")
        if len(body) != claim.size or hashlib.sha256(body).hexdigest() != claim.sha256:
            self.statistics.lost += 1
            raise DeadLetter(f"its content {claim.sha256} was changed where it was kept")
        self.statistics.claimed += 1
        return body

    async def clean(self) -> int:
        """Delete what is older than `keep`; how many that were.

        :raises BlobsUnavailable: some may be deleted; the rest goes the next time.
        """
        cleaned = await self._blobs.clean(datetime.fromtimestamp(self._clock.now(), UTC) - self._keep)
        self.statistics.cleaned += cleaned
        return cleaned

    def register(self, app: App) -> None:
        self._clock = app.clock
        app.middleware(publish=self._check, handle=self._claim)

    async def on_start(self) -> None:
        """Begin to clean up, in the background."""
        if self._clean_every is not None:
            every = self._clean_every.total_seconds()
            # A context of its own: what cleans belongs to no delivery.
            self._cleaner = asyncio.create_task(self._clean_up(every), name="claim check", context=Context())

    async def on_stop(self) -> None:
        """Stop cleaning, and release connections."""
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is not None:
            cleaner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cleaner
        await self._blobs.close()

    async def _check(self, outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        if len(outgoing.body) > self._above:
            claim = await self.put(outgoing.body)
            inner = outgoing.properties.get("content_encoding")
            outgoing.set_body(claim.model_dump_json().encode())
            outgoing.set("content_encoding", f"{inner}, {ENCODING}" if inner else ENCODING)
            outgoing.set_header(HEADER, f"{claim.sha256};{claim.size}")
        await call_next(outgoing)

    async def _claim(self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
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
                log.warning("claim_check.not_cleaned error=%s", error)
            finally:
                self._cleaning = False
            await self._clock.sleep(every)


def _read(text: object) -> Claim:
    """A claim names nothing but a digest, whoever wrote it."""
    digest, _, size = text.partition(";") if isinstance(text, str) else ("", "", "")
    if not DIGEST.fullmatch(digest) or not (size.isascii() and size.isdecimal() and len(size) < 20):
        raise DeadLetter("its claim is not one that Warren writes")
    return Claim(sha256=digest, size=int(size))


__all__ = ["Claim", "ClaimCheck", "ClaimCheckStatistics"]
