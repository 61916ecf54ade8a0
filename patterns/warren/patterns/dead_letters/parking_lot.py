"""A parking lot that is looked through: each letter is delivered once, and stays where it is unless it is taken out."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Final

from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.sdk import Delivery, TopologyMismatch, TransportUnavailable
from warren.sdk.extend import DataChannel, Session, translate_errors

PAGE: Final = 500
SECONDS: Final = 10.0
QUIET_SECONDS: Final = 1.0
BACK_SECONDS: Final = 2.0
"""How long a broker may take to give back what was held, after it has answered that the channel is closed."""
LOOK_SECONDS: Final = 0.05
LOOKS: Final = 4
"""How often a queue has to say that it is empty: RabbitMQ says so as well of a quorum queue whose leader has not answered
within 250 ms."""


class ParkingLot:
    """A queue of dead letters: `async with ParkingLot(url, "billing.dead") as lot: async for letter in lot: ...`.

    What is read is held, unacknowledged, and given back at the end, to its place; a quorum queue of RabbitMQ's changes
    the order of more than 500. It is ready again when the block has ended. Nobody else sees the letters meanwhile. On a
    quorum queue of RabbitMQ's each look counts as a delivery: the dead letter queues that Warren declares are without the
    limit that would end them after 20.

    :raises TopologyMismatch: there is no such queue, or it is exclusive to another connection.
    :raises TransportUnavailable: there is no connection, or it is lost; all that was held is back in the queue then. Also
        at the end of the block, if it was lost before the broker had let go of what was taken out.
    """

    def __init__(self, url: str, queue: str) -> None:
        self.queue: str = queue
        self.size: int = 0
        """How many letters there were when it was entered; so many are read, not those that come meanwhile."""
        self._url = url
        self._session: Session | None = None
        self._channel: DataChannel | None = None
        self._consumer = ""
        self._waiting: deque[tuple[int, Delivery]] = deque()
        self._arrived = asyncio.Event()
        self._room = PAGE
        self._held = 0
        self._taken_out = False
        self._last_tag = 0
        self._held_before = 0
        """The last delivery tag before the present consumer: what has left of the earlier ones gives it no room."""

    async def __aenter__(self) -> ParkingLot:
        self._session = await Session.open(self._url, "warren dead letters", lambda reason: None)
        try:
            self._channel = await self._session.channel()
            self._channel.on_delivery = self._deliver
            self._channel.ended.add_done_callback(lambda ended: self._arrived.set())
            self.size = await _size(self._channel, self.queue)
            await self._consume()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Answered when what was taken out has left; closing says nothing of a loss.
            _, consumers = await _look(self._usable(), self.queue)
            with translate_errors("cannot close the channel"):
                await self._usable().close(timeout=SECONDS)
            if consumers <= 1:
                await self._given_back()
        except TopologyMismatch:
            pass  # The queue was deleted meanwhile, and all its letters with it.
        except TransportUnavailable as lost:
            if kind is None and self._taken_out:
                raise TransportUnavailable(
                    f"the connection was lost over queue {self.queue!r} before the broker had let go of what was taken out; "
                    "it may be in it still"
                ) from lost
        finally:
            if self._session is not None:
                await self._session.close()

    async def __aiter__(self) -> AsyncIterator[ParkedMessage]:
        for _ in range(self.size):
            taken = await self._next()
            if taken is None:
                return
            tag, delivery = taken
            yield ParkedMessage.of(delivery, tag)

    def take_out(self, letter: ParkedMessage) -> None:
        """Remove it from the queue (acknowledge it); it has left for certain when the `async with` block has."""
        self._usable().acknowledge(letter.delivery_tag)
        self._taken_out = True
        self._held -= 1
        if letter.delivery_tag > self._held_before:
            self._room += 1

    async def _next(self) -> tuple[int, Delivery] | None:
        """The next letter, or None if there is none left."""
        while not self._waiting:
            self._usable()
            self._arrived.clear()
            if self._room <= 0:
                # All that this consumer may hold is held: another one on the channel may hold as much again.
                await self._consume()
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                # Some may come before the answer that counts them no more.
                if not self._waiting and await _size(self._usable(), self.queue) == 0 and not self._waiting:
                    return None
        return self._waiting.popleft()

    def _deliver(self, method: bytes, header: bytes, body: bytes) -> None:
        self._room -= 1
        self._held += 1
        arrived = Delivery.from_frames(method, header, body, self.queue)
        self._waiting.append(arrived)
        self._last_tag, _ = arrived
        self._arrived.set()

    async def _consume(self) -> None:
        channel = self._usable()
        with translate_errors(f"cannot read queue {self.queue!r}"):
            async with asyncio.timeout(SECONDS):
                if self._consumer:
                    await channel.cancel(self._consumer)
                self._room, self._held_before = PAGE, self._last_tag
                self._consumer = await channel.consume(self.queue, prefetch=PAGE)

    async def _given_back(self) -> None:
        """Wait until what was held is ready: a quorum queue of RabbitMQ's writes it down after the channel was closed."""
        if self._session is None or self._held <= 0:
            return
        with contextlib.suppress(TimeoutError, TransportUnavailable, TopologyMismatch):
            async with asyncio.timeout(BACK_SECONDS):
                channel = await self._session.channel()
                while (await _look(channel, self.queue))[0] < self._held:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)

    def _usable(self) -> DataChannel:
        channel = self._channel
        if channel is None or not channel.usable:
            raise TransportUnavailable(
                f"the connection was lost over queue {self.queue!r}; what was not taken out is in it"
            )
        return channel


async def _look(channel: DataChannel, queue: str) -> tuple[int, int]:
    """How many messages are ready, and how many consumers there are."""
    with translate_errors(f"cannot read queue {queue!r}"):
        async with asyncio.timeout(SECONDS):
            ok = await channel.methods.queue_declare(queue, passive=True)
    return ok.message_count or 0, ok.consumer_count or 0


async def _size(channel: DataChannel, queue: str) -> int:
    """How many messages are ready, if any are."""
    for _ in range(LOOKS):
        ready, _ = await _look(channel, queue)
        if ready:
            return ready
        await asyncio.sleep(LOOK_SECONDS)
    return 0


async def count_messages(url: str, queues: Iterable[str]) -> dict[str, int | None]:
    """How many messages are ready in each queue; None where there is no such queue.

    :raises TransportUnavailable: there is no connection, or it is lost.
    """
    counts: dict[str, int | None] = {}
    session = await Session.open(url, "warren dead letters", lambda reason: None)
    try:
        asked = list(queues)
        for _ in range(LOOKS):
            for queue in asked:
                counts[queue] = await _ready(session, queue)
            asked = [queue for queue in asked if counts[queue] == 0]
            if not asked:
                break
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await session.close()
    return counts


async def _ready(session: Session, queue: str) -> int | None:
    # A channel of its own: a queue that is not there costs its channel.
    channel = await session.channel()
    try:
        ready, _ = await _look(channel, queue)
        await channel.close(timeout=SECONDS)
    except TopologyMismatch as error:
        if error.reply_code != 404:
            raise
        return None
    return ready


__all__ = ["ParkingLot", "count_messages"]
