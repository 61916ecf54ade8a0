"""Replay of a range of a stream to the handlers of a reader, whose position stays as it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.settlement import Settlement
from warren.sdk.consume.streams.last_chunk import read_last_chunk
from warren.sdk.consume.streams.reader_options import StreamOffset, check_offset, offset_argument
from warren.sdk.consume.streams.stream_endpoint import StreamEndpoint
from warren.sdk.errors import ConfigError, ReplayStopped
from warren.sdk.protocols import Clock
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session

ANSWER_SECONDS = 30.0
EMPTY_SECONDS = 5.0
"""Seconds to wait for the last message of a stream that has none by its count; RabbitMQ updates it every few seconds."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Result of `app.replay_stream`.

    :ivar delivered: messages that were passed to the handlers.
    :ivar first: offset of the first of them, or None.
    :ivar last: offset of the last of them, or None.
    """

    delivered: int
    first: int | None
    last: int | None


async def replay(
    session: Session,
    endpoint: StreamEndpoint,
    *,
    start: StreamOffset,
    end: int | datetime | None,
    clock: Clock,
) -> ReplayReport:
    """Pass the messages of a range to the handlers of a reader, one after the other; see `App.replay_stream`.

    :raises ReplayStopped: if the connection is lost, the stream is deleted, or `on_error="stop"` applies.
    """
    if start == "next":
        raise ConfigError("start='next' replays nothing: write 'first', 'last', an offset or a time")
    check_offset("start", start)
    if end is not None:
        check_offset("end", end)
    stream = endpoint.reader.stream
    chunk = await read_last_chunk(session, stream, EMPTY_SECONDS)
    if chunk is None or chunk.last.offset is None:
        return ReplayReport(0, None, None)
    newest = chunk.last
    last = chunk.last.offset
    if isinstance(end, int):
        last = min(last, end - 1)
    since = _time(start, clock.now())
    if (isinstance(start, int) and start > last) or _is_before(newest, since):
        return ReplayReport(0, None, None)
    until = end if isinstance(end, datetime) else None
    channel = await session.channel()
    arrived: asyncio.Queue[tuple[int, Delivery]] = asyncio.Queue()

    def deliver(method: bytes, header: bytes, body: bytes) -> None:
        arrived.put_nowait(Delivery.from_frames(method, header, body, stream))

    channel.on_delivery = deliver
    delivered, first, latest = 0, None, None
    following = start if isinstance(start, int) else None
    try:
        await _consume(channel, stream, endpoint.options.prefetch, start, clock.now())
        while following is None or following <= last:
            tag, delivery = await _next(channel, arrived, stream, following)
            offset = delivery.offset
            if offset is None or offset > last:
                break
            if following is not None and offset < following:
                channel.acknowledge(tag)
                continue
            left_out = _is_before(delivery, since) or (until is not None and not _is_before(delivery, until))
            if not left_out and endpoint.reader.accepts(delivery.readable_headers):
                delivery.replayed = True
                settlement = await endpoint.process_apart(delivery, tag)
                if settlement is not Settlement.ACK:
                    raise ReplayStopped(f"the handler failed at offset {offset} of stream {stream!r}", offset)
                delivered += 1
                first, latest = offset if first is None else first, offset
            channel.acknowledge(tag)
            following = offset + 1
    finally:
        channel.close_in_background()
    return ReplayReport(delivered, first, latest)


async def _consume(channel: DataChannel, stream: str, prefetch: int, start: StreamOffset, now: float) -> None:
    with translate_errors(f"cannot read stream {stream!r}"):
        await channel.run(
            channel.consume(
                stream,
                prefetch=prefetch,
                stream=True,
                arguments={"x-stream-offset": offset_argument(start, now)},
                timeout=ANSWER_SECONDS,
            )
        )


async def _next(
    channel: DataChannel, arrived: asyncio.Queue[tuple[int, Delivery]], stream: str, following: int | None
) -> tuple[int, Delivery]:
    """Return the next message with its delivery tag.

    :param following: offset at which another replay would continue; None if it is not known yet.
    :raises ReplayStopped: if the channel ends before, or the stream is deleted.
    """
    getting = asyncio.ensure_future(arrived.get())
    try:
        await asyncio.wait((getting, channel.consumer_ended), return_when=asyncio.FIRST_COMPLETED)
        if not getting.done() or not channel.usable:
            error = channel.consumer_error(f"the replay of stream {stream!r} was interrupted")
            raise ReplayStopped(str(error), following, retryable=True)
        return getting.result()
    finally:
        getting.cancel()


def _time(start: StreamOffset, now: float) -> datetime | None:
    if isinstance(start, timedelta):
        return datetime.fromtimestamp(now, UTC) - start
    return start if isinstance(start, datetime) else None


def _is_before(delivery: Delivery, time: datetime | None) -> bool:
    """Return whether a message was first published before a time; False if either is unknown."""
    published = delivery.first_published
    return time is not None and published is not None and published < time
