"""Clients of the load: each works until its connection ends, and records all that it sends and receives."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pamqp import frame
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx
from pamqp.common import FieldTable
from pamqp.header import ContentHeader

from tests.faults.chaos.history import EventType, History
from tests.faults.chaos.load_connection import ConnectionEnded, LoadConnection
from tests.faults.chaos.topology import DEFINED, stores_all_messages
from tests.support.frames import body_frames

SIZES = (0, 0, 0, 0, 10, 200, 200, 3000, 5000, 70_000)
"""Bytes added to a message's name: below and above the size that is stored apart, and more than a block of the log."""
MOSTLY_SMALL = (*SIZES[:-3] * 8, *SIZES[-3:])
"""The same sizes with few large ones."""
SMALL = (0, 0, 10, 200)
"""Bytes added to the names of messages that stay in their queue."""


@dataclass(frozen=True)
class Volume:
    """Amount of data of a load."""

    sizes: tuple[int, ...] = SIZES
    """Bytes added to the names of messages, one of them at random."""
    windows: tuple[int, ...] = (1, 20, 400)
    """Unconfirmed messages of a publisher, one of them at random."""


FULL_VOLUME = Volume()
LOW_VOLUME = Volume(MOSTLY_SMALL, (1, 20, 60))
"""Little data waits for the disk: what compaction copies is then on the disk soon."""


def body_of(message: str, size: int) -> bytes:
    """Return a body that contains the message's name and a filling that shows damage."""
    name = message.encode()
    return name + b" " + bytes([name[-1]]) * size + b" %d" % size


def message_of(body: bytes) -> str:
    """Return the name of the message with this body; a name that no message has if the body is damaged."""
    name, filling, size = body.split(b" ")
    whole = filling == bytes([name[-1]]) * int(size)
    return name.decode() if whole else f"damaged {name.decode()}"


class Client:
    """A connection with a unique name, a source of randomness, and the history that it writes to."""

    def __init__(
        self,
        name: str,
        connection: LoadConnection,
        history: History,
        random: Random,
        volume: Volume = FULL_VOLUME,
    ) -> None:
        self.name = name
        self.sizes = volume.sizes
        """Bytes added to the names of its messages, one of them at random."""
        self.window = random.choice(volume.windows)
        """Messages that it publishes without a confirm, if it publishes all the time."""
        self.connection = connection
        self.random = random
        self._history = history
        self._numbers = itertools.count(1)
        self._sequence = 0
        self._unconfirmed: dict[int, str] = {}
        self.room = asyncio.Event()
        self.room.set()
        connection.on_confirm = self._confirm

    def note(self, event_type: EventType, message: str = "", *queues: str, **more: object) -> None:
        """Append an event of this client to the history."""
        self._history.note(event_type, self.name, message, *queues, **more)  # type: ignore[arg-type]

    async def pause(self, seconds: float) -> None:
        """Sleep.

        :raises ConnectionEnded: the connection ended meanwhile.
        """
        await asyncio.wait([self.connection.lost], timeout=seconds)
        if self.connection.lost.done():
            raise ConnectionEnded

    # Publishing

    def publish(
        self,
        exchange: str,
        key: str,
        queues: tuple[str, ...],
        *,
        transaction: str = "",
        levels: int = 0,
        mandatory: bool = False,
    ) -> None:
        """Publish a message that is routed to these queues, and has a delivery mode with which they all store it."""
        message = f"{self.name}:{next(self._numbers)}"
        priority = self.random.randint(0, levels)
        body = body_of(message, self.random.choice(self.sizes))
        self.note(EventType.PUBLISH, message, *queues, transaction=transaction, priority=priority)
        if not transaction:
            self._sequence += 1
            self._unconfirmed[self._sequence] = message
        mode = self.random.choice((None, 1, 2)) if stores_all_messages(queues) else 2
        properties = Basic.Properties(delivery_mode=mode, priority=priority if levels else None)
        head = ContentHeader(body_size=len(body), properties=properties)
        self.connection.send(
            frame.marshal(Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory), 1)
            + frame.marshal(head, 1)
            + body_frames(1, body, 131072)
        )

    def _confirm(self, found: Basic.Ack | Basic.Nack) -> None:
        tag = found.delivery_tag or 0
        low = next(iter(self._unconfirmed)) if found.multiple else tag
        event_type = EventType.CONFIRMED if isinstance(found, Basic.Ack) else EventType.REFUSED
        for number in range(low, tag + 1):
            self.note(event_type, self._unconfirmed.pop(number))
        self.room.set()

    async def confirms(self) -> None:
        """Turn publisher confirms on."""
        await self.connection.call(Confirm.Select(), Confirm.SelectOk)

    async def until_confirmed(self, unconfirmed: int) -> None:
        """Wait until at most so many publishes are unconfirmed.

        :raises ConnectionEnded: the connection ended first.
        """
        while len(self._unconfirmed) > unconfirmed:
            self.room.clear()
            await self.connection.or_lost(self.room.wait())

    async def fence(self) -> None:
        """Wait until the broker has processed all that was sent."""
        self.note(EventType.FENCE)
        await self.connection.call(Basic.Qos(prefetch_count=self.random.randint(1, 200)), Basic.QosOk)
        self.note(EventType.FENCED)

    async def returned(self, queues: tuple[str, ...]) -> set[str]:
        """Return the queues that do not exist: mandatory messages to them are returned."""
        found: set[str] = set()
        self.connection.on_return = lambda carrier: found.add(str(carrier.routing_key))
        for queue in queues:
            self.publish("", queue, (), mandatory=True)
        await self.until_confirmed(0)
        return found

    async def close(self) -> None:
        """Close the connection."""
        await self.connection.close()
        self.note(EventType.CLOSED)


async def publish(
    client: Client, exchange: str, key: str, queues: tuple[str, ...], *, levels: int = 0
) -> None:
    """Publish in bursts, with a bounded number of unconfirmed messages, until the connection ends."""
    await client.confirms()
    while True:
        for _ in range(client.random.randint(1, 40)):
            client.publish(exchange, key, queues, levels=levels)
        await client.until_confirmed(client.window)
        await client.pause(client.random.uniform(0, 0.03))


class UnsettledMessages:
    """The unsettled deliveries of a client, in the order of delivery tags. Its consumer tags are the names of the queues."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.messages: dict[int, tuple[str, str]] = {}
        """Message and queue by delivery tag."""
        self.on_more: Callable[[], None] = lambda: None
        client.connection.on_deliver = self._deliver

    async def consume(self, queue: str) -> None:
        """Start a consumer."""
        await self.client.connection.call(Basic.Consume(queue=queue, consumer_tag=queue), Basic.ConsumeOk)

    def _deliver(self, carrier: Basic.Deliver, properties: Basic.Properties, body: bytes) -> None:
        message, queue = message_of(body), carrier.consumer_tag or ""
        self.messages[carrier.delivery_tag or 0] = message, queue
        self.client.note(EventType.DELIVERED, message, queue, redelivered=bool(carrier.redelivered))
        self.on_more()

    def acknowledge(
        self, tag: int, *, multiple: bool = False, transaction: str = ""
    ) -> dict[int, tuple[str, str]]:
        """Acknowledge one delivery, or with `multiple` all up to it; return message and queue of each."""
        tags = [held for held in self.messages if held <= tag] if multiple else [tag]
        for held in tags:
            self.client.note(EventType.ACK, *self.messages[held], transaction=transaction)
        self.client.connection.method(Basic.Ack(tag, multiple))
        return {held: self.messages.pop(held) for held in tags}

    def reject(self, tag: int) -> None:
        """Reject a delivery without requeue."""
        self.client.note(EventType.REJECT, *self.messages.pop(tag))
        self.client.connection.method(Basic.Reject(tag, False))

    def requeue(self, tag: int) -> None:
        """Return a delivery to its queue."""
        self.client.note(EventType.REQUEUE, *self.messages.pop(tag))
        self.client.connection.method(Basic.Nack(tag, False, True))


async def consume(client: Client, queue: str, *, rejects: float = 0.0) -> None:
    """Consume; acknowledge at once or later, singly or several at once; reject, requeue and keep some."""
    chance = client.random
    held = UnsettledMessages(client)
    capacity = chance.choice((1, 10, 100))

    def settle() -> None:
        if len(held.messages) < capacity:
            return
        while len(held.messages) > capacity // 2:
            tag = next(iter(held.messages))
            draw = chance.random()
            if draw < rejects:
                held.reject(tag)
            elif draw < rejects + 0.02:
                held.requeue(tag)
            elif draw < rejects + 0.1:
                held.acknowledge(chance.choice(list(held.messages)[:20]), multiple=True)
            else:
                held.acknowledge(tag)

    held.on_more = settle
    await client.confirms()
    # At least as many as the client holds without settling any, or it would wait for ever.
    await client.connection.call(Basic.Qos(prefetch_count=capacity + chance.randint(0, 100)), Basic.QosOk)
    await held.consume(queue)
    while True:
        await client.pause(chance.uniform(0, 0.2))
        if chance.random() < 0.5:
            await client.fence()
        else:
            client.publish("", "echo", ("echo",))
        if chance.random() < 0.1 and held.messages:
            held.acknowledge(list(held.messages)[-1], multiple=True)


async def read(client: Client, stream: str, offset: object, *, whole: bool = False) -> None:
    """Read a stream.

    :param offset: the `x-stream-offset` to begin at.
    :param whole: publishing has ended, and this client reads the whole stream.
    """

    def deliver(carrier: Basic.Deliver, properties: Basic.Properties, body: bytes) -> None:
        offset = (properties.headers or {})["x-stream-offset"]
        assert isinstance(offset, int)
        client.note(EventType.READ, message_of(body), stream, offset=offset)
        client.connection.method(Basic.Ack(carrier.delivery_tag or 0, False))

    client.connection.on_deliver = deliver
    if whole:
        client.note(EventType.DRAIN_STARTED, "", stream)
    await client.connection.call(Basic.Qos(prefetch_count=client.random.randint(1, 200)), Basic.QosOk)
    arguments: FieldTable = {"x-stream-offset": offset}  # type: ignore[dict-item]
    await client.connection.call(
        Basic.Consume(queue=stream, consumer_tag=stream, arguments=arguments), Basic.ConsumeOk
    )


async def follow(client: Client, stream: str, offset: object) -> None:
    """Read a stream from an offset on until the connection ends."""
    await read(client, stream, offset)
    await client.connection.lost
    raise ConnectionEnded


async def transact(client: Client) -> None:
    """Consume, publish and acknowledge in transactions; roll some back."""
    chance = client.random
    held = UnsettledMessages(client)
    await client.connection.call(Tx.Select(), Tx.SelectOk)
    await client.connection.call(Basic.Qos(prefetch_count=50), Basic.QosOk)
    await held.consume("tx-in")
    for number in itertools.count(1):
        transaction = f"{client.name}/{number}"
        taken: dict[int, tuple[str, str]] = {}
        for _ in range(chance.randint(1, 8)):
            queue = chance.choice(("tx-1", "tx-2"))
            client.publish("", queue, (queue,), transaction=transaction, levels=4)
        for _ in range(min(len(held.messages), chance.randint(0, 5))):
            tag = chance.choice(list(held.messages))
            taken |= held.acknowledge(tag, multiple=chance.random() < 0.2, transaction=transaction)
            if not held.messages:
                break
        if chance.random() < 0.15:
            client.note(EventType.ROLLBACK, transaction=transaction)
            await client.connection.call(Tx.Rollback(), Tx.RollbackOk)
            held.messages = dict(sorted((taken | held.messages).items()))
        else:
            client.note(EventType.COMMIT, transaction=transaction)
            await client.connection.call(Tx.Commit(), Tx.CommitOk)
            client.note(EventType.COMMITTED, transaction=transaction)
        await client.pause(chance.uniform(0, 0.01))


DEFINITIONS = tuple(f"defined-{number}" for number in range(8))


async def define(client: Client) -> None:
    """Declare, bind and delete durable queues until the connection ends."""
    chance = client.random
    while True:
        name = chance.choice(DEFINITIONS)
        if chance.random() < 0.6:
            client.note(EventType.DECLARE, name)
            await client.connection.call(Queue.Declare(queue=name, durable=True), Queue.DeclareOk)
            client.note(EventType.DECLARED, name)
            await client.connection.call(
                Queue.Bind(queue=name, exchange=DEFINED, routing_key=chance.choice("abc")), Queue.BindOk
            )
        else:
            await delete(client, name)
        await client.pause(chance.uniform(0, 0.05))


async def delete(client: Client, queue: str) -> None:
    """Delete a queue."""
    client.note(EventType.DELETE, queue)
    await client.connection.call(Queue.Delete(queue=queue), Queue.DeleteOk)
    client.note(EventType.DELETED, queue)


async def declare(client: Client, queue: str, arguments: dict[str, object], fan: str) -> None:
    """Declare a durable queue, and bind it to the exchange `fan` unless that is empty."""
    await client.connection.call(
        Queue.Declare(queue=queue, durable=True, arguments=arguments),  # type: ignore[arg-type]
        Queue.DeclareOk,
    )
    if fan:
        await client.connection.call(Queue.Bind(queue=queue, exchange=fan), Queue.BindOk)


async def declare_exchange(client: Client, name: str, kind: str) -> None:
    """Declare a durable exchange of a type."""
    await client.connection.call(
        Exchange.Declare(exchange=name, exchange_type=kind, durable=True), Exchange.DeclareOk
    )
