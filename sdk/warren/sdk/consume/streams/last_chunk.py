"""Last chunk of a stream: it shows at which offset the stream ends, which AMQP 0-9-1 has no method for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from warren.sdk.consume.delivery import Delivery
from warren.sdk.transport.error_translation import translate_errors
from warren.sdk.transport.session import Session

ANSWER_SECONDS = 30.0
WHOLE_CHUNK: Final = 65_535
"""Prefetch count to get the last chunk in one piece; it is the largest one."""


@dataclass(frozen=True, slots=True)
class LastChunk:
    """The last group of messages that were written together.

    :ivar first: its first message.
    :ivar last: its last message, which is the last one of the stream.
    """

    first: Delivery
    last: Delivery


async def read_last_chunk(session: Session, stream: str, empty_seconds: float) -> LastChunk | None:
    """Return the last chunk of a stream, or None if it is empty. Messages that are published meanwhile may belong to it.

    A consumer that begins at `last` gets the last chunk. All its messages have arrived when the answer to its
    cancellation does, because a broker sends them together.

    :param empty_seconds: seconds to wait for a message if the stream has none by its count, which RabbitMQ updates every
        few seconds only.
    :raises TopologyMismatch: if there is no such stream.
    :raises TransportUnavailable: if the connection is lost, or the stream is deleted meanwhile.
    """
    channel = await session.channel()
    arrived: list[Delivery] = []
    any_arrived = asyncio.Event()

    def deliver(method: bytes, header: bytes, body: bytes) -> None:
        arrived[1:] = [Delivery.from_frames(method, header, body, stream)[1]]
        any_arrived.set()

    channel.on_delivery = deliver
    waiting = asyncio.ensure_future(any_arrived.wait())
    try:
        with translate_errors(f"cannot read stream {stream!r}"):
            ready, _ = await channel.run(channel.topology(ANSWER_SECONDS).check_queue(stream))
            tag = await channel.run(
                channel.consume(
                    stream,
                    prefetch=WHOLE_CHUNK,
                    stream=True,
                    arguments={"x-stream-offset": "last"},
                    timeout=ANSWER_SECONDS,
                )
            )
            seconds = None if ready else empty_seconds
            await asyncio.wait(
                (waiting, channel.consumer_ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            await channel.run(channel.cancel(tag, ANSWER_SECONDS))
            if channel.consumer_ended.done():
                raise channel.consumer_error(f"cannot read stream {stream!r}")
    finally:
        waiting.cancel()
        channel.close_in_background()
    return LastChunk(arrived[0], arrived[-1]) if arrived else None


__all__ = ["LastChunk", "read_last_chunk"]
