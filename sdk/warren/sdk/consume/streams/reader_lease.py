"""Lease of a stream reader: one process reads at a time, and the position that it stores cannot be overwritten by others.

Both are one queue with one message. The queue has a single active consumer, so that the broker delivers the message to
one process only, the active reader, which keeps it unacknowledged. To store a position, that process publishes a new
message on the same channel, and acknowledges the old one after the confirm. If its connection ends, the broker returns
the message to the queue and delivers it to the next process, which continues at the position in it.

A former reader that stood still cannot store an older position: it lost the lease with its channel, and it can store on
that channel only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import TransportUnavailable, WarrenError
from warren.sdk.logger import log
from warren.sdk.messages.message_properties import SHORT_STRING_BYTES
from warren.sdk.publish.outgoing import PERSISTENT, Outgoing
from warren.sdk.transport.data_channel import DataChannel
from warren.sdk.transport.error_translation import to_sdk_error, translate_errors
from warren.sdk.transport.session import Session

ANSWER_SECONDS = 30.0
CHECK_SECONDS: Final = 1.0
"""Seconds between two checks whether another process has the lease; made until either is certain."""

LARGEST_OFFSET: Final = 2**63 - 1
LATEST_TIME: Final = 253_402_300_799
"""End of the year 9999 in Unix seconds, the latest time of a datetime."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """Position of a reader: an offset; or, while no message was delivered to it yet, the time from which it reads.

    :ivar offset: the lowest offset that is not handled, or None.
    :ivar since: the time, or None.
    :ivar mark: the mark of the stream that the offset belongs to (see `stream_mark`); None if it has none.
    :ivar incarnation: number of times that the reader began again because its stream had been declared anew.
    """

    offset: int | None = None
    since: datetime | None = None
    mark: str | None = None
    incarnation: int = 0

    def encode(self) -> bytes:
        since = None if self.since is None else int(self.since.timestamp())
        content = {
            "offset": self.offset,
            "since": since,
            "mark": self.mark,
            "incarnation": self.incarnation,
        }
        return json.dumps(content).encode()

    @classmethod
    def decode(cls, body: bytes) -> StoredPosition:
        """Return the position in the body of a message.

        :raises ValueError: if the body has another form.
        """
        try:
            content = json.loads(body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        offset, since = content.get("offset"), content.get("since")
        mark, incarnation = content.get("mark"), content.get("incarnation")
        seconds = _number("since", since, LATEST_TIME)
        return cls(
            _number("offset", offset, LARGEST_OFFSET),
            None if seconds is None else datetime.fromtimestamp(seconds, UTC),
            mark if isinstance(mark, str) and len(mark.encode()) <= SHORT_STRING_BYTES else None,
            _number("incarnation", incarnation, LARGEST_OFFSET) or 0,
        )


class ReaderLease:
    """Lease of a reader on one channel, from `open` to the end of the channel.

    :ivar ended: done when the lease is lost or released, or was never granted and its channel has ended.
    :ivar position: the stored position.
    """

    def __init__(self, channel: DataChannel, queue: str) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.position: StoredPosition = StoredPosition()
        self._channel = channel
        self._queue = queue
        self._first = asyncio.Event()
        """Set with the first delivery: the broker has chosen this process."""
        self._held: list[tuple[int, StoredPosition]] = []
        """Delivery tags and positions of the messages that this process keeps."""
        self._granted = False
        self._own: dict[str, asyncio.Future[tuple[int, StoredPosition]]] = {}
        """Futures of the deliveries of messages that this process has published, by message id."""
        self._sequence = 0
        self._confirms: dict[int, asyncio.Future[None]] = {}
        self._lock = asyncio.Lock()
        channel.on_delivery = self._delivered
        channel.on_confirm = self._confirmed
        channel.on_return = self._returned
        channel.consumer_ended.add_done_callback(lambda done: self._end())

    @classmethod
    async def open(cls, session: Session, queue: str) -> ReaderLease:
        """Ask the broker for the lease: consume its queue. `acquire` waits until it is granted.

        :raises WarrenError: if the queue cannot be consumed.
        """
        channel = await session.channel(confirms=True)
        lease = cls(channel, queue)
        try:
            with translate_errors(f"cannot consume from queue {queue!r}"):
                await channel.run(channel.consume(queue, timeout=ANSWER_SECONDS))
        except BaseException:
            lease.release()
            raise
        return lease

    @property
    def chosen(self) -> bool:
        """True if the broker has chosen this process, which then loads the stored position."""
        return self._first.is_set()

    async def is_taken(self) -> bool:
        """Return whether another process waits for the lease or has it, and this one does not."""
        check = self._channel.topology(ANSWER_SECONDS).check_queue(self._queue)
        with translate_errors(f"cannot check queue {self._queue!r}"):
            _, consumers = await self._channel.run(check)
        return consumers > 1 and not self.chosen

    async def acquire(self) -> None:
        """Wait until this process is the active reader, and load the stored position.

        :raises TransportUnavailable: if the channel ends before.
        """
        await self._publish(StoredPosition(), delivered=False)
        await self._until(self._first.wait())
        # The queue is in order: when this message arrives, those of all former readers have arrived before it.
        await self._publish(StoredPosition())
        self.position = _latest(position for _, position in self._held)
        await self._replace()
        self._granted = True

    async def store(self, position: StoredPosition) -> None:
        """Store a position; return after the broker's confirm.

        :raises TransportUnavailable: if the lease is lost; the position may have been stored or not.
        """
        async with self._lock:
            self.position = position
            await self._replace()

    async def renew(self) -> None:
        """Store the position once more, so that no message is unacknowledged for longer than a broker permits (30 minutes
        in RabbitMQ, `consumer_timeout`).

        :raises TransportUnavailable: if the lease is lost.
        """
        await self.store(self.position)

    def release(self) -> None:
        """End the lease: the broker gives it to the next process."""
        self._channel.close_in_background()
        self._end()

    async def _replace(self) -> None:
        """Publish a message with the position, and acknowledge all older ones when it is stored."""
        tag, _ = await self._publish(self.position)
        older = [held for held in self._held if held[0] != tag]
        self._held = [held for held in self._held if held[0] == tag]
        for held, _ in older:
            self._channel.acknowledge(held)

    async def _publish(
        self, position: StoredPosition, *, delivered: bool = True
    ) -> tuple[int, StoredPosition]:
        """Publish a message; return after its confirm and, if `delivered`, its delivery to this process, with the delivery
        tag and the position.
        """
        loop = asyncio.get_running_loop()
        identity = uuid4().hex
        arrived = self._own[identity] = loop.create_future()
        confirmed: asyncio.Future[None] = loop.create_future()
        try:
            if not self._channel.usable:
                raise self._lost()
            self._sequence += 1
            self._confirms[self._sequence] = confirmed
            properties: dict[str, str | int] = {
                "content_type": "application/json",
                "delivery_mode": PERSISTENT,
                "message_id": identity,
            }
            self._channel.publish(Outgoing("", self._queue, properties, {}, position.encode()), True)
            await self._until(confirmed)
            if not delivered:
                return 0, position
            await self._until(arrived)
            tag, stored = arrived.result()
            return tag, stored
        finally:
            self._own.pop(identity, None)

    async def _until(self, wanted: Awaitable[object]) -> None:
        """Wait for `wanted`, or raise an error if the channel ends before."""
        task = asyncio.ensure_future(wanted)
        try:
            await asyncio.wait((task, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._lost()
            task.result()
        finally:
            task.cancel()

    def _lost(self) -> WarrenError:
        cause = self._channel.close_error
        what = f"the lease of queue {self._queue!r} is lost"
        return TransportUnavailable(what) if cause is None else to_sdk_error(what, cause)

    def _delivered(self, method: bytes, header: bytes, body: bytes) -> None:
        tag, delivery = Delivery.from_frames(method, header, body, self._queue)
        try:
            position = StoredPosition.decode(body)
        except ValueError as error:
            log.error("event=stream_reader.position_unreadable queue=%s error=%s", self._queue, error)
            position = StoredPosition()
        own = self._own.get(delivery.message_id or "")
        if own is not None or not self._granted:
            self._held.append((tag, position))
        else:
            # Another process asks for the lease. It gets the message that this one holds, when this one ends.
            self._channel.acknowledge(tag)
        self._first.set()
        if own is not None and not own.done():
            own.set_result((tag, position))

    def _confirmed(self, sequence: int, multiple: bool, ack: bool) -> None:
        last = sequence or self._sequence
        for number in [known for known in self._confirms if known == last or (multiple and known < last)]:
            confirm = self._confirms.pop(number)
            if confirm.done():
                continue
            if ack:
                confirm.set_result(None)
            else:
                confirm.set_exception(TransportUnavailable(f"the broker did not store in {self._queue!r}"))

    def _returned(self, method: bytes, header: bytes, body: bytes) -> None:
        """End the lease, because its queue has been deleted; a new one is declared."""
        self.release()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _number(name: str, value: object, largest: int) -> int | None:
    """Return a number of a stored position; None for a value that is none.

    :raises ValueError: if it is out of its range: any client can publish to the queue.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if not 0 <= value <= largest:
        raise ValueError(f"its {name} is out of its range")
    return value


def _latest(positions: Iterable[StoredPosition]) -> StoredPosition:
    """Return the position that is furthest in the latest stream: the highest offset, otherwise the earliest time."""
    known = list(positions)
    latest = max((position.incarnation for position in known), default=0)
    known = [position for position in known if position.incarnation == latest]
    offsets = [position for position in known if position.offset is not None]
    if offsets:
        return max(offsets, key=lambda position: position.offset or 0)
    times = [position for position in known if position.since is not None]
    if times:
        return min(times, key=lambda position: position.since or datetime.max)
    return _marked(known)


def _marked(positions: Iterable[StoredPosition]) -> StoredPosition:
    """Return a position with a mark, or an empty one: a process that asks for the lease publishes one without."""
    return next((position for position in positions if position.mark is not None), StoredPosition())


__all__ = ["CHECK_SECONDS", "ReaderLease", "StoredPosition"]
