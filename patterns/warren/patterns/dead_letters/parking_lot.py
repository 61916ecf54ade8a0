"""Parking lot: reader of a dead letter queue that leaves every message in the queue unless it is removed explicitly."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Final

from warren.patterns.dead_letters.parked_message import ParkedMessage
from warren.sdk import Delivery, TopologyMismatch, TransportUnavailable
from warren.sdk.extend import DataChannel, Session, translate_errors

log: logging.Logger = logging.getLogger("warren.patterns")

PAGE: Final = 500
"""Prefetch count of a consumer. When it has that many unacknowledged messages, it is cancelled and a new consumer is
opened on the same channel, which may receive as many again."""
ANSWER_SECONDS: Final = 10.0
"""Longest wait for an answer of the broker, for a leader of the queue, and for the return of unacknowledged messages to
the queue after their channel was closed."""
IDLE_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.05

Frames = tuple[bytes, bytes, bytes]
"""Payloads of a message's frames: method, header, body."""


class ParkingLot:
    """Reader of a queue of dead letters: `async with ParkingLot(url, "billing.dead") as lot: async for message in lot:
    ...`.

    Messages that were read stay unacknowledged until the end of the block, so no other consumer gets them meanwhile. At
    the end of the block they return to their positions in the queue. A quorum queue of RabbitMQ changes their order if
    there are more than 500. RabbitMQ 4.3 also puts the first message behind the others if the leader of the queue
    answered late when the block was entered. On RabbitMQ's quorum queues each reading also counts as a delivery. The
    dead letter queues that Warren declares have no delivery limit, because the default limit of 20 would delete
    messages.

    :raises TopologyMismatch: the queue does not exist, or is exclusive to another connection.
    :raises TransportUnavailable: there is no connection, or it was lost; all unacknowledged messages are back in the
        queue then. Also raised if the queue has no leader for 10 s, so that nobody knows whether it is empty, and at
        the end of the block if the connection was lost before the broker had confirmed the removals.
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
        self._own_consumers = 0
        """Largest number of consumers of this channel that the broker may count: a quorum queue also counts a cancelled
        consumer, and a `basic.get`, until their messages are settled."""
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
        session = await Session.open(self._url, "warren dead letters", lambda reason: None)
        try:
            await self._open(session)
        except BaseException:
            await session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        try:
            await self._close(self._session)
        except TopologyMismatch:
            pass  # The queue was deleted meanwhile with all its messages.
        except TransportUnavailable as lost:
            if kind is None and self._removed_any:
                raise TransportUnavailable(
                    "the connection was lost, or the queue had no leader, before the broker had acknowledged the removals"
                    f" from queue {self.queue!r}; removed messages may still be in it"
                ) from lost
            if kind is None and self._unacknowledged > 0:
                _warn_not_requeued(self.queue, lost)
        finally:
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
                if await self._is_empty():
                    return None
        return self._received.popleft()

    async def _is_empty(self) -> bool:
        """Return True if the queue has no ready message, and none is on its way to this client."""
        for _ in range(2):
            # A delivery may follow the answer that no longer counts it, but it precedes the next answer.
            ready, _ = await self._counts(or_arrival=True)
            if ready or self._received:
                return False
        return True

    async def _counts_after_deliveries(self) -> tuple[int, int]:
        """Return the number of ready messages and of consumers, when all messages that were delivered before have been
        received."""
        await self._counts()
        return await self._counts()

    async def _counts(self, *, or_arrival: bool = False) -> tuple[int, int]:
        """Return the number of ready messages of the queue and of its consumers, one of which is this lot.

        RabbitMQ reports 0 of both for a quorum queue whose leader does not answer within 250 ms. This lot consumes the
        queue, so 0 consumers prove that the report is such a one, and the broker is asked again.

        :param or_arrival: true to return whatever the broker reports as soon as a message has been received.
        :raises TransportUnavailable: the broker has reported 0 consumers for `ANSWER_SECONDS`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_SECONDS
        while True:
            ready, consumers = await declare_passively(self._usable(), self.queue)
            if consumers or (or_arrival and self._received):
                return ready, consumers
            if loop.time() >= deadline:
                raise TransportUnavailable(
                    f"cannot read queue {self.queue!r}: the broker has reported no consumer of it for"
                    f" {ANSWER_SECONDS:g} s, although this program consumes it: its leader does not answer; try again"
                    " when it does"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _open(self, session: Session, *, reported_empty: bool = False) -> None:
        """Count the messages of the queue, and consume them if there are any.

        :param reported_empty: true if the broker has reported 0 messages and 0 consumers, which is to be verified.
        """
        self._session = session
        channel = await self._open_channel(session)
        ready, consumers = (0, 0) if reported_empty else await declare_passively(channel, self.queue)
        if ready or consumers:
            self.size = ready
        elif (counted := await _count_by_get(channel, self.queue)) is not None:
            self.size, got = counted
            if got is not None:
                self._own_consumers += 1
                self._deliver(*got)
        else:
            await self._open_channel(session)
            await self._consume()
            ready, _ = await self._counts_after_deliveries()
            self.size = ready + len(self._received)
        if self.size and not self._consumer:
            await self._consume()

    async def _close(self, session: Session) -> None:
        """Close the channel, and wait until the messages that were received but not removed are back in the queue."""
        ready = consumers = 0
        if self._consumer:
            # The answer arrives after the removals; closing alone would not report a loss.
            ready, consumers = await self._counts_after_deliveries()
        # Before the close, during which counted messages may still be delivered.
        held = self._unacknowledged
        with translate_errors("cannot close the channel"):
            await self._usable().close(timeout=ANSWER_SECONDS)
        # Another consumer may receive the messages at once.
        if held > 0 and consumers <= self._own_consumers:
            await _wait_until_requeued(session, self.queue, ready + held)

    async def _open_channel(self, session: Session) -> DataChannel:
        self._channel = channel = await session.channel()
        channel.on_delivery = self._deliver
        channel.ended.add_done_callback(lambda ended: self._arrived.set())
        return channel

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
                self._own_consumers += 1
                self._consumer = await channel.consume(self.queue, prefetch=PAGE)

    def _usable(self) -> DataChannel:
        channel = self._channel
        if channel is None or not channel.usable:
            raise TransportUnavailable(
                f"the connection was lost while queue {self.queue!r} was read; messages that were not removed are in it"
            )
        return channel


async def declare_passively(channel: DataChannel, queue: str) -> tuple[int, int]:
    """Declare an existing queue passively, and return its number of ready messages and its number of consumers."""
    with translate_errors(f"cannot read queue {queue!r}"):
        async with asyncio.timeout(ANSWER_SECONDS):
            return await channel.topology().check_queue(queue)


async def _count_by_get(channel: DataChannel, queue: str) -> tuple[int, Frames | None] | None:
    """Return the number of ready messages of a queue, and one of them, unacknowledged, if there is any.

    RabbitMQ reports 0 messages and 0 consumers for a quorum queue whose leader does not answer within 250 ms. Only the
    leader answers a `basic.get`, and its answer contains the number of the remaining messages.

    :returns: None if the queue has a single active consumer: the broker refuses the `basic.get` and closes the channel.
    :raises TransportUnavailable: there was no answer, or the connection was lost.
    """
    try:
        with translate_errors(f"cannot read queue {queue!r}"):
            got = await _get(channel, queue)
    except TopologyMismatch as error:
        if error.reply_code != 405:
            raise
        return None
    # The number is the last field of basic.get-ok.
    own, remaining = (0, 0) if got is None else (1, int.from_bytes(got[0][-4:]))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_SECONDS
    while True:
        # A leader that answers again first answers the clients that gave up meanwhile, and hands messages out to them.
        # A quorum queue of RabbitMQ counts these as consumers until it finds them gone and requeues their messages.
        ready, consumers = await declare_passively(channel, queue)
        remaining = max(remaining, ready)
        if consumers <= own or loop.time() >= deadline:
            return own + remaining, got
        await asyncio.sleep(POLL_SECONDS)


async def _get(channel: DataChannel, queue: str) -> Frames | None:
    try:
        return await channel.get(queue, ANSWER_SECONDS)
    except OSError as error:
        raise channel.close_error or error from error


async def _wait_until_requeued(session: Session, queue: str, expected: int) -> None:
    """Wait until the broker reports `expected` messages of a queue as ready; log a warning if it does not.

    RabbitMQ requeues the messages of a quorum queue some time after it has closed their channel. Another command that
    comes before would find fewer.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_SECONDS
    try:
        channel = await session.channel()
        while (ready := (await declare_passively(channel, queue))[0]) < expected:
            if loop.time() >= deadline:
                raise TransportUnavailable(
                    f"{ready} of {expected} messages are ready after {ANSWER_SECONDS:g} s"
                )
            await asyncio.sleep(POLL_SECONDS)
    except TransportUnavailable as error:
        _warn_not_requeued(queue, error)


def _warn_not_requeued(queue: str, error: TransportUnavailable) -> None:
    log.warning("event=dead_letters.requeue_unconfirmed queue=%s error=%s", queue, error)


async def count_messages(url: str, queues: Iterable[str]) -> dict[str, int | None]:
    """Return the number of ready messages of each queue, or None for a queue that does not exist.

    A count of 0 is verified with a `basic.get`, for which the user needs the permission to read the queue.

    :param url: AMQP URL of the broker.
    :raises TransportUnavailable: there is no connection, it was lost, or a queue has no leader that answers.
    """
    session = await Session.open(url, "warren dead letters", lambda reason: None)
    try:
        return {queue: await _ready(session, url, queue) for queue in queues}
    finally:
        await session.close()


async def count_queues(url: str, queues: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of ready messages and of consumers of each queue that exists, as the broker reports them.

    :param url: AMQP URL of the broker.
    :raises TransportUnavailable: there is no connection, or it was lost.
    """
    session = await Session.open(url, "warren dead letters", lambda reason: None)
    found = {}
    try:
        for queue in queues:
            # A separate channel: the broker closes the channel if the queue does not exist.
            channel = await session.channel()
            try:
                found[queue] = await declare_passively(channel, queue)
                with translate_errors(f"cannot read queue {queue!r}"):
                    await channel.close(timeout=ANSWER_SECONDS)
            except TopologyMismatch as error:
                if error.reply_code not in (403, 404, 405):
                    raise
    finally:
        await session.close()
    return found


async def _ready(session: Session, url: str, queue: str) -> int | None:
    # A separate channel: the broker closes the channel if the queue does not exist.
    channel = await session.channel()
    try:
        ready, consumers = await declare_passively(channel, queue)
        with translate_errors(f"cannot read queue {queue!r}"):
            await channel.close(timeout=ANSWER_SECONDS)
        if ready or consumers:
            return ready
        # The lot verifies the 0. If it fetches a message it reads a page of them before it requeues them, because
        # RabbitMQ would return a single one to the end of the queue.
        lot = ParkingLot(url, queue)
        await lot._open(session, reported_empty=True)
        await lot._close(session)
    except TopologyMismatch as error:
        if error.reply_code != 404:
            raise
        return None
    return lot.size


__all__ = ["ParkingLot", "count_messages", "count_queues", "declare_passively"]
