"""The clients of the load: each does its part until its connection ends, and notes all that it does and sees."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random

from pamqp import frame
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx
from pamqp.common import FieldTable
from pamqp.header import ContentHeader

from tests.faults.chaos.history import History, What
from tests.faults.chaos.talk import Lost, Talk
from tests.faults.chaos.topology import DEFINED
from tests.support.frames import body_frames

SIZES = (0, 0, 0, 0, 10, 200, 200, 3000, 5000, 70_000)
"""What is added to a message's name, in bytes: below and above what is stored apart, and more than a block of the log."""


def body_of(message: str, size: int) -> bytes:
    """A body that says what it is, and what it should look like."""
    name = message.encode()
    return name + b" " + bytes([name[-1]]) * size + b" %d" % size


def message_of(body: bytes) -> str:
    """The name of the message with this body; what was damaged has none that anybody knows."""
    name, filling, size = body.split(b" ")
    whole = filling == bytes([name[-1]]) * int(size)
    return name.decode() if whole else f"damaged {name.decode()}"


class Client:
    """What all have: a connection, a name that is used once, chance, and the history."""

    def __init__(self, name: str, talk: Talk, history: History, random: Random) -> None:
        self.name = name
        self.talk = talk
        self.random = random
        self._history = history
        self._numbers = itertools.count(1)
        self._sequence = 0
        self._unconfirmed: dict[int, str] = {}
        self.room = asyncio.Event()
        self.room.set()
        talk.on_confirm = self._confirm

    def note(self, what: What, message: str = "", *queues: str, **more: object) -> None:
        self._history.note(what, self.name, message, *queues, **more)  # type: ignore[arg-type]

    async def pause(self, seconds: float) -> None:
        """
        :raises Lost: if the connection ends meanwhile.
        """
        await asyncio.wait([self.talk.lost], timeout=seconds)
        if self.talk.lost.done():
            raise Lost

    # -- publishing

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
        """A persistent message that reaches these queues."""
        message = f"{self.name}:{next(self._numbers)}"
        priority = self.random.randint(0, levels)
        body = body_of(message, self.random.choice(SIZES))
        self.note(What.PUBLISH, message, *queues, transaction=transaction, priority=priority)
        if not transaction:
            self._sequence += 1
            self._unconfirmed[self._sequence] = message
        properties = Basic.Properties(delivery_mode=2, priority=priority if levels else None)
        head = ContentHeader(body_size=len(body), properties=properties)
        self.talk.send(
            frame.marshal(Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory), 1)
            + frame.marshal(head, 1)
            + body_frames(1, body, 131072)
        )

    def _confirm(self, found: Basic.Ack | Basic.Nack) -> None:
        tag = found.delivery_tag or 0
        low = next(iter(self._unconfirmed)) if found.multiple else tag
        what = What.CONFIRMED if isinstance(found, Basic.Ack) else What.REFUSED
        for number in range(low, tag + 1):
            self.note(what, self._unconfirmed.pop(number))
        self.room.set()

    async def confirms(self) -> None:
        await self.talk.call(Confirm.Select(), Confirm.SelectOk)

    async def until_confirmed(self, unconfirmed: int) -> None:
        """Wait until at most so many are unconfirmed.

        :raises Lost: if the connection ends first.
        """
        while len(self._unconfirmed) > unconfirmed:
            self.room.clear()
            await self.talk.or_lost(self.room.wait())

    async def fence(self) -> None:
        """Learn that all that was sent has been worked off."""
        self.note(What.FENCE)
        await self.talk.call(Basic.Qos(prefetch_count=self.random.randint(1, 200)), Basic.QosOk)
        self.note(What.FENCED)

    async def returned(self, queues: tuple[str, ...]) -> set[str]:
        """Those to which nothing can be published, because they are not there."""
        found: set[str] = set()
        self.talk.on_return = lambda carrier: found.add(str(carrier.routing_key))
        for queue in queues:
            self.publish("", queue, (), mandatory=True)
        await self.until_confirmed(0)
        return found

    async def close(self) -> None:
        await self.talk.close()
        self.note(What.CLOSED)


async def publish(
    client: Client, exchange: str, key: str, queues: tuple[str, ...], *, levels: int = 0
) -> None:
    """Publish in bursts, with a window of unconfirmed ones, until the connection ends."""
    await client.confirms()
    window = client.random.choice((1, 20, 400))
    while True:
        for _ in range(client.random.randint(1, 40)):
            client.publish(exchange, key, queues, levels=levels)
        await client.until_confirmed(window)
        await client.pause(client.random.uniform(0, 0.03))


class Held:
    """What a client was delivered and has not settled, in the order of the delivery tags. Its consumers are called as their
    queues."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.messages: dict[int, tuple[str, str]] = {}
        """Message and queue."""
        self.on_more: Callable[[], None] = lambda: None
        client.talk.on_deliver = self._deliver

    async def consume(self, queue: str) -> None:
        await self.client.talk.call(Basic.Consume(queue=queue, consumer_tag=queue), Basic.ConsumeOk)

    def _deliver(self, carrier: Basic.Deliver, properties: Basic.Properties, body: bytes) -> None:
        message, queue = message_of(body), carrier.consumer_tag or ""
        self.messages[carrier.delivery_tag or 0] = message, queue
        self.client.note(What.DELIVERED, message, queue, redelivered=bool(carrier.redelivered))
        self.on_more()

    def acknowledge(
        self, tag: int, *, multiple: bool = False, transaction: str = ""
    ) -> dict[int, tuple[str, str]]:
        """One, or with `multiple` all up to this one; returns them."""
        tags = [held for held in self.messages if held <= tag] if multiple else [tag]
        for held in tags:
            self.client.note(What.ACK, *self.messages[held], transaction=transaction)
        self.client.talk.method(Basic.Ack(tag, multiple))
        return {held: self.messages.pop(held) for held in tags}

    def reject(self, tag: int) -> None:
        self.client.note(What.REJECT, *self.messages.pop(tag))
        self.client.talk.method(Basic.Reject(tag, False))

    def requeue(self, tag: int) -> None:
        self.client.note(What.REQUEUE, *self.messages.pop(tag))
        self.client.talk.method(Basic.Nack(tag, False, True))


async def consume(client: Client, queue: str, *, rejects: float = 0.0) -> None:
    """Take, and acknowledge now or later, one by one or several at once; reject some, give some back, keep some."""
    chance = client.random
    held = Held(client)
    greed = chance.choice((1, 10, 100))

    def settle() -> None:
        if len(held.messages) < greed:
            return
        while len(held.messages) > greed // 2:
            tag = next(iter(held.messages))
            throw = chance.random()
            if throw < rejects:
                held.reject(tag)
            elif throw < rejects + 0.02:
                held.requeue(tag)
            elif throw < rejects + 0.1:
                held.acknowledge(chance.choice(list(held.messages)[:20]), multiple=True)
            else:
                held.acknowledge(tag)

    held.on_more = settle
    await client.confirms()
    # As many as the client is willing to hold without settling any, or it would wait for ever.
    await client.talk.call(Basic.Qos(prefetch_count=greed + chance.randint(0, 100)), Basic.QosOk)
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
    """Read a stream from somewhere on.

    :param whole: nobody publishes any more, and this reads all
    """

    def deliver(carrier: Basic.Deliver, properties: Basic.Properties, body: bytes) -> None:
        offset = (properties.headers or {})["x-stream-offset"]
        assert isinstance(offset, int)
        client.note(What.READ, message_of(body), stream, offset=offset)
        client.talk.method(Basic.Ack(carrier.delivery_tag or 0, False))

    client.talk.on_deliver = deliver
    if whole:
        client.note(What.ALONE, "", stream)
    await client.talk.call(Basic.Qos(prefetch_count=client.random.randint(1, 200)), Basic.QosOk)
    arguments: FieldTable = {"x-stream-offset": offset}  # type: ignore[dict-item]
    await client.talk.call(
        Basic.Consume(queue=stream, consumer_tag=stream, arguments=arguments), Basic.ConsumeOk
    )


async def follow(client: Client, stream: str, offset: object) -> None:
    """Read a stream from somewhere on until the connection ends."""
    await read(client, stream, offset)
    await client.talk.lost
    raise Lost


async def transact(client: Client) -> None:
    """Take, publish and acknowledge in transactions; some are rolled back."""
    chance = client.random
    held = Held(client)
    await client.talk.call(Tx.Select(), Tx.SelectOk)
    await client.talk.call(Basic.Qos(prefetch_count=50), Basic.QosOk)
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
            client.note(What.ROLLBACK, transaction=transaction)
            await client.talk.call(Tx.Rollback(), Tx.RollbackOk)
            held.messages = dict(sorted((taken | held.messages).items()))
        else:
            client.note(What.COMMIT, transaction=transaction)
            await client.talk.call(Tx.Commit(), Tx.CommitOk)
            client.note(What.COMMITTED, transaction=transaction)
        await client.pause(chance.uniform(0, 0.01))


DEFINITIONS = tuple(f"defined-{number}" for number in range(8))


async def define(client: Client) -> None:
    """Declare and bind durable queues, and delete them."""
    chance = client.random
    while True:
        name = chance.choice(DEFINITIONS)
        if chance.random() < 0.6:
            client.note(What.DECLARE, name)
            await client.talk.call(Queue.Declare(queue=name, durable=True), Queue.DeclareOk)
            client.note(What.DECLARED, name)
            await client.talk.call(
                Queue.Bind(queue=name, exchange=DEFINED, routing_key=chance.choice("abc")), Queue.BindOk
            )
        else:
            await delete(client, name)
        await client.pause(chance.uniform(0, 0.05))


async def delete(client: Client, queue: str) -> None:
    client.note(What.DELETE, queue)
    await client.talk.call(Queue.Delete(queue=queue), Queue.DeleteOk)
    client.note(What.DELETED, queue)


async def declare(client: Client, queue: str, arguments: dict[str, object], fan: str) -> None:
    """A durable queue, bound to the exchange `fan` unless that is empty."""
    await client.talk.call(
        Queue.Declare(queue=queue, durable=True, arguments=arguments),  # type: ignore[arg-type]
        Queue.DeclareOk,
    )
    if fan:
        await client.talk.call(Queue.Bind(queue=queue, exchange=fan), Queue.BindOk)


async def declare_exchange(client: Client, name: str, kind: str) -> None:
    await client.talk.call(
        Exchange.Declare(exchange=name, exchange_type=kind, durable=True), Exchange.DeclareOk
    )
