"""Parking lot: reader of a dead letter queue that leaves every message in the queue unless it is removed explicitly."""

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
"""Prefetch count of a consumer. When it has that many unacknowledged messages, it is cancelled and a new consumer is
opened on the same channel, which may receive as many again."""
ANSWER_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 1.0
REQUEUE_SECONDS: Final = 2.0
"""Seconds to wait until the broker has requeued the unacknowledged messages of a closed channel."""
POLL_SECONDS: Final = 0.05
EMPTY_ANSWERS: Final = 4
"""Number of consecutive reports of 0 messages after which a queue counts as empty: RabbitMQ also reports 0 for a quorum
queue whose leader has not answered within 250 ms."""


class ParkingLot:
    """Reader of a queue of dead letters: `async with ParkingLot(url, "billing.dead") as lot: async for message in lot:
    ...`.

    Messages that were read stay unacknowledged until the end of the block, so no other consumer gets them meanwhile. At
    the end of the block they return to their positions in the queue; a quorum queue of RabbitMQ changes their order if
    there are more than 500. On RabbitMQ's quorum queues each reading also counts as a delivery. The dead letter queues
    that Warren declares have no delivery limit, because the default limit of 20 would delete messages.

    :raises TopologyMismatch: the queue does not exist, or is exclusive to another connection.
    :raises TransportUnavailable: there is no connection, or it was lost; all unacknowledged messages are back in the
        queue then. Also raised at the end of the block if the connection was lost before the broker had confirmed the
        removals.
    """

    def __init__(self, url: str, queue: str) -> None:
        self.queue: str = queue
        self.size: int = 0
        """Number of messages in the queue when the block was entered. Iteration ends after so many, even if more have
        arrived."""
        self._url = url
        self._session: Session | None = None
        self._channel: DataChannel | None = None
        self._consumer = ""
        self._received: deque[tuple[int, Delivery]] = deque()
        self._arrived = asyncio.Event()
        self._capacity = PAGE
        self._unacknowledged = 0
        self._removed_any = False
        self._last_tag = 0
        self._previous_last_tag = 0
        """Last delivery tag of the consumer before the present one, on the same channel. Acknowledging a message up to
        this tag does not let the present consumer receive another, because the prefetch counts per consumer."""

    async def __aenter__(self) -> ParkingLot:
        self._session = await Session.open(self._url, "warren dead letters", lambda reason: None)
        try:
            self._channel = await self._session.channel()
            self._channel.on_delivery = self._deliver
            self._channel.ended.add_done_callback(lambda ended: self._arrived.set())
            self.size = await _ready_messages(self._channel, self.queue)
            await self._consume()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # The answer arrives after the removals; closing alone would not report a loss.
            _, consumers = await _declare_passively(self._usable(), self.queue)
            with translate_errors("cannot close the channel"):
                await self._usable().close(timeout=ANSWER_SECONDS)
            if consumers <= 1:
                await self._wait_until_requeued()
        except TopologyMismatch:
            pass  # The queue was deleted meanwhile with all its messages.
        except TransportUnavailable as lost:
            if kind is None and self._removed_any:
                raise TransportUnavailable(
                    f"the connection was lost before the broker had acknowledged the removals from queue {self.queue!r};"
                    " removed messages may still be in it"
                ) from lost
        finally:
            if self._session is not None:
                await self._session.close()

    async def __aiter__(self) -> AsyncIterator[ParkedMessage]:
        for _ in range(self.size):
            found = await self._next()
            if found is None:
                return
            tag, delivery = found
            yield ParkedMessage.of(delivery, tag)

    def remove(self, message: ParkedMessage) -> None:
        """Remove the message from the queue by acknowledging it. AMQP does not confirm an acknowledgement, so the
        removal is certain only when the `async with` block has ended without an error."""
        self._usable().acknowledge(message.delivery_tag)
        self._removed_any = True
        self._unacknowledged -= 1
        if message.delivery_tag > self._previous_last_tag:
            self._capacity += 1

    async def _next(self) -> tuple[int, Delivery] | None:
        """Return the delivery tag and the next message of the queue, or None if the queue is empty."""
        while not self._received:
            self._usable()
            self._arrived.clear()
            if self._capacity <= 0:
                # This consumer holds as many messages as it may: a new one on the channel may hold as many again.
                await self._consume()
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                # Deliveries may arrive before the answer that no longer counts them.
                if (
                    not self._received
                    and await _ready_messages(self._usable(), self.queue) == 0
                    and not self._received
                ):
                    return None
        return self._received.popleft()

    def _deliver(self, method: bytes, header: bytes, body: bytes) -> None:
        self._capacity -= 1
        self._unacknowledged += 1
        arrived = Delivery.from_frames(method, header, body, self.queue)
        self._received.append(arrived)
        self._last_tag, _ = arrived
        self._arrived.set()

    async def _consume(self) -> None:
        channel = self._usable()
        with translate_errors(f"cannot read queue {self.queue!r}"):
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._consumer:
                    await channel.cancel(self._consumer)
                self._capacity, self._previous_last_tag = PAGE, self._last_tag
                self._consumer = await channel.consume(self.queue, prefetch=PAGE)

    async def _wait_until_requeued(self) -> None:
        """Wait, for a few seconds at most, until the broker reports the messages that were read but not removed as
        ready again. RabbitMQ requeues those of a quorum queue only after it has closed their channel."""
        if self._session is None or self._unacknowledged <= 0:
            return
        with contextlib.suppress(TimeoutError, TransportUnavailable, TopologyMismatch):
            async with asyncio.timeout(REQUEUE_SECONDS):
                channel = await self._session.channel()
                while (await _declare_passively(channel, self.queue))[0] < self._unacknowledged:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)

    def _usable(self) -> DataChannel:
        channel = self._channel
        if channel is None or not channel.usable:
            raise TransportUnavailable(
                f"the connection was lost while queue {self.queue!r} was read; messages that were not removed are in it"
            )
        return channel


async def _declare_passively(channel: DataChannel, queue: str) -> tuple[int, int]:
    """Declare an existing queue passively, and return its number of ready messages and its number of consumers."""
    with translate_errors(f"cannot read queue {queue!r}"):
        async with asyncio.timeout(ANSWER_SECONDS):
            ok = await channel.methods.queue_declare(queue, passive=True)
    return ok.message_count or 0, ok.consumer_count or 0


async def _ready_messages(channel: DataChannel, queue: str) -> int:
    """Return the number of ready messages of a queue. Return 0 only after several reports of 0, because RabbitMQ also
    reports 0 for a quorum queue whose leader does not answer in time."""
    for _ in range(EMPTY_ANSWERS):
        ready, _ = await _declare_passively(channel, queue)
        if ready:
            return ready
        await asyncio.sleep(POLL_SECONDS)
    return 0


async def count_messages(url: str, queues: Iterable[str]) -> dict[str, int | None]:
    """Return the number of ready messages of each queue, or None for a queue that does not exist.

    :param url: AMQP URL of the broker.
    :raises TransportUnavailable: there is no connection, or it was lost.
    """
    counts: dict[str, int | None] = {}
    session = await Session.open(url, "warren dead letters", lambda reason: None)
    try:
        asked = list(queues)
        for _ in range(EMPTY_ANSWERS):
            for queue in asked:
                counts[queue] = await _ready(session, queue)
            asked = [queue for queue in asked if counts[queue] == 0]
            if not asked:
                break
            await asyncio.sleep(POLL_SECONDS)
    finally:
        await session.close()
    return counts


async def _ready(session: Session, queue: str) -> int | None:
    # A separate channel: the broker closes the channel if the queue does not exist.
    channel = await session.channel()
    try:
        ready, _ = await _declare_passively(channel, queue)
        await channel.close(timeout=ANSWER_SECONDS)
    except TopologyMismatch as error:
        if error.reply_code != 404:
            raise
        return None
    return ready


__all__ = ["ParkingLot", "count_messages"]
