"""Reader of a stream of captured events, from a time on to the end that the stream has now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from warren.core.capture_events import MESSAGE_TYPE
from warren.core.message_story import CapturedEvent
from warren.sdk import Delivery, TransportUnavailable
from warren.sdk.extend import DataChannel, Session, read_last_chunk, translate_errors

PREFETCH: Final = 200
ANSWER_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 1.0
"""Seconds without a batch after which the reader asks whether the stream still exists."""
EMPTY_SECONDS: Final = 5.0
"""Seconds to wait for the last batch of a stream that has none by its count; RabbitMQ updates it every few seconds."""


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
    end: int | None = None
    """Offset up to which the stream is read; None before the reading, and for an empty stream."""
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
    until: int | None = None,
) -> AsyncIterator[CapturedEvent]:
    """Yield the events of a stream from `since` on, up to the one that is the last when this function is called.

    The end is an offset, so that neither the clocks of the sources nor a broker that stands still change it. The broker
    begins with the chunk that contains `since`, so that some earlier events come first.

    :param url: AMQP URL of the broker.
    :param since: None for the beginning of the stream.
    :param report: counts what is read.
    :param until: offset of the last message to read, as an earlier report has it; None for the end.
    :raises TopologyMismatch: the stream does not exist.
    :raises TransportUnavailable: there is no connection, or it was lost.
    """
    session = await Session.open(url, "warren trace", lambda reason: None)
    arrived: asyncio.Queue[tuple[int, Delivery]] = asyncio.Queue()
    try:
        report.end = await _last_offset(session, stream) if until is None else until
        if report.end is None:
            return
        channel = await session.channel()
        channel.on_delivery = lambda method, header, body: arrived.put_nowait(
            Delivery.from_frames(method, header, body, stream)
        )
        await _consume(channel, stream, since)
        position: int | None = None
        while position is None or position < report.end:
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
                if position is None and since is not None and arrived.empty():
                    return  # Nothing was written since then.
                continue
            channel.acknowledge(tag)
            position = delivery.offset
            if position is None or position > report.end:
                return
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
    finally:
        await session.close()


async def _last_offset(session: Session, stream: str) -> int | None:
    chunk = await read_last_chunk(session, stream, EMPTY_SECONDS)
    return None if chunk is None else chunk.last.offset


async def _consume(channel: DataChannel, stream: str, since: datetime | None) -> None:
    with translate_errors(f"cannot read stream {stream!r}"):
        async with asyncio.timeout(ANSWER_SECONDS):
            await channel.topology().check_queue(stream)
            start = "first" if since is None else since
            await channel.consume(
                stream, prefetch=PREFETCH, stream=True, arguments={"x-stream-offset": start}
            )


async def _declare_passively(channel: DataChannel, stream: str) -> None:
    with translate_errors(f"cannot read stream {stream!r}"):
        async with asyncio.timeout(ANSWER_SECONDS):
            await channel.topology().check_queue(stream)
