"""Reader of a stream of captured events, from a time on to the end that the stream has now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from warren.core.capture_events import MESSAGE_TYPE
from warren.sdk import Delivery, TransportUnavailable
from warren.sdk.extend import DataChannel, Session, translate_errors

PREFETCH: Final = 200
ANSWER_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 1.0
"""Seconds without a batch after which a stream is at its end. A stream that is written to all the time is read to the time
at which the reading began."""


@dataclass(frozen=True, slots=True)
class CapturedEvent:
    """A captured event.

    :ivar at: microseconds since 1970, by the clock of its source.
    :ivar application: name of the App, or of the broker, that recorded it.
    :ivar by: `sdk` or `broker`.
    """

    name: str
    at: int
    message_id: str
    application: str
    by: str
    source: str
    fields: dict[str, Any]

    def text(self, key: str) -> str:
        """Return a field as text; empty if it is missing."""
        value = self.fields.get(key)
        return "" if value is None else str(value)


@dataclass(slots=True)
class ReadReport:
    """Extent of a reading of the stream: numbers of batches and events, gaps, and times.

    :ivar first: time of the earliest event that was read.
    :ivar last: time of the latest one.
    :ivar missing: events that their sources recorded, but that are not in the stream between others that are.
    """

    batches: int = 0
    events: int = 0
    missing: int = 0
    latest: tuple[str, int] | None = None
    """Source and sequence number of the batch that was read last."""
    first: datetime | None = None
    last: datetime | None = None
    _next: dict[str, int] = field(default_factory=dict)

    def add(self, source: str, sequence: int, events: list[dict[str, Any]]) -> bool:
        """Count a batch; return False if it was read before."""
        expected = self._next.get(source)
        if expected is not None and sequence < expected:
            return False
        self.missing += 0 if expected is None else sequence - expected
        self._next[source] = sequence + len(events)
        self.batches += 1
        self.latest = source, sequence
        self.events += len(events)
        for event in events:
            at = datetime.fromtimestamp(event["at"] / 1_000_000, UTC)
            self.first = at if self.first is None or at < self.first else self.first
            self.last = at if self.last is None or at > self.last else self.last
        return True


async def read_events(
    url: str,
    stream: str,
    since: datetime | None,
    report: ReadReport,
    *,
    until: tuple[str, int] | None = None,
) -> AsyncIterator[CapturedEvent]:
    """Yield the events of a stream from `since` on, up to those that were captured when this function was called.

    The broker begins with the chunk that contains that time, so that some earlier events come first.

    :param url: AMQP URL of the broker.
    :param since: None for the beginning of the stream.
    :param report: counts what is read.
    :param until: source and sequence number of the last batch to read, as an earlier report has it; None for the end.
    :raises TopologyMismatch: the stream does not exist.
    :raises TransportUnavailable: there is no connection, or it was lost.
    """
    began = datetime.now(UTC).timestamp() * 1_000_000
    session = await Session.open(url, "warren trace", lambda reason: None)
    arrived: asyncio.Queue[tuple[int, Delivery]] = asyncio.Queue()
    try:
        channel = await session.channel()
        channel.on_delivery = lambda method, header, body: arrived.put_nowait(
            Delivery.from_frames(method, header, body, stream)
        )
        await _consume(channel, stream, since)
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    tag, delivery = await arrived.get()
            except TimeoutError:
                if not channel.usable:
                    raise TransportUnavailable(
                        f"the connection was lost while stream {stream!r} was read"
                    ) from None
                # The answer to a method comes after all deliveries that were sent before it.
                await _declare_passively(channel, stream)
                if arrived.empty():
                    return
                continue
            channel.acknowledge(tag)
            if delivery.type != MESSAGE_TYPE:
                continue
            events = json.loads(delivery.body)
            source, by = str(delivery.headers["source"]), str(delivery.headers["by"])
            if not report.add(source, int(delivery.headers["sequence"]), events):
                continue
            application = str(delivery.properties.get("app_id") or "")
            for event in events:
                fields = {k: v for k, v in event.items() if k not in ("event", "at", "message_id")}
                yield CapturedEvent(
                    event["event"], event["at"], event.get("message_id", ""), application, by, source, fields
                )
            if report.latest == until or events[0]["at"] > began + IDLE_SECONDS * 1_000_000:
                return
    finally:
        await session.close()


async def _consume(channel: DataChannel, stream: str, since: datetime | None) -> None:
    with translate_errors(f"cannot read stream {stream!r}"):
        async with asyncio.timeout(ANSWER_SECONDS):
            await channel.methods.queue_declare(stream, passive=True)
            await channel.methods.basic_qos(prefetch_count=PREFETCH)
            await channel.methods.basic_consume(
                stream, _unused, arguments={"x-stream-offset": "first" if since is None else since}
            )


async def _declare_passively(channel: DataChannel, stream: str) -> None:
    with translate_errors(f"cannot read stream {stream!r}"):
        async with asyncio.timeout(ANSWER_SECONDS):
            await channel.methods.queue_declare(stream, passive=True)


async def _unused(message: object) -> None:
    """Take a delivery of aiormq; deliveries go to `on_delivery` instead."""
