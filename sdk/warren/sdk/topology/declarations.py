"""Exchanges, queues and bindings as the methods that declare them, or look whether they are there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from aiormq import Channel
from aiormq.abc import AbstractChannel
from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal

from warren.sdk.topology.exchange import Binding, Declarable, Exchange, Queue

Method = Callable[[AbstractChannel], Awaitable[Any]]


class Runner(Protocol):
    """Runs one synchronous method; `Control` does."""

    async def run(self, what: str, method: Method, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Form:
    """An exchange or a queue as the method that declares it says it.

    :ivar properties: by their names in AMQP: `type` of an exchange, `durable`, `auto_delete`, `internal`.
    """

    kind: Literal["exchange", "queue"]
    name: str
    properties: Mapping[str, Any]
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, item: Exchange | Queue) -> Form:
        if isinstance(item, Exchange):
            properties: dict[str, Any] = {
                "type": item.type,
                "durable": item.durable,
                "auto_delete": item.auto_delete,
                "internal": item.internal,
            }
            return cls("exchange", item.name, properties, item.wire_arguments())
        properties = {
            "durable": item.durable,
            "exclusive": item.exclusive,
            "auto_delete": item.auto_delete,
        }
        return cls("queue", item.name, properties, item.wire_arguments())

    async def declare(self, channel: AbstractChannel) -> None:
        """Make it; if it is there already with the same properties and arguments, nothing happens."""
        properties, arguments = dict(self.properties), dict(self.arguments)
        if self.kind == "queue":
            await _send(channel, commands.Queue.Declare(queue=self.name, **properties, arguments=arguments))
        elif self.name:
            properties["exchange_type"] = properties.pop("type")
            declare = commands.Exchange.Declare(exchange=self.name, **properties, arguments=arguments)
            await _send(channel, declare)

    async def look(self, channel: AbstractChannel) -> None:
        """Nothing happens if it is there, however it is; the default exchange always is."""
        if self.kind == "queue":
            await channel.queue_declare(self.name, passive=True)
        elif self.name:
            await channel.exchange_declare(self.name, passive=True)


def identity(item: Declarable) -> object:
    """What two values share that mean the same thing."""
    match item:
        case Exchange():
            return ("exchange", item.name)
        case Queue():
            return ("queue", item.name)
        case Binding():
            return (
                "binding",
                item.source,
                item.destination,
                item.key,
                item.to_exchange,
                repr(item.arguments),
            )


def rank(item: Declarable) -> int:
    """The order in which values are declared: what a binding needs comes before it."""
    return (Exchange, Queue, Binding).index(type(item))


def label(item: Declarable) -> str:
    """How texts name the value."""
    match item:
        case Exchange():
            return f"exchange {item.name!r}"
        case Queue():
            return f"queue {item.name!r}"
        case Binding():
            kind = "exchange" if item.to_exchange else "queue"
            return f"the binding of {kind} {item.destination!r} to exchange {item.source!r} with key {item.key!r}"


def declaration(item: Declarable) -> Method:
    """The method that makes it."""
    if not isinstance(item, Binding):
        return Form.of(item).declare

    async def bind(channel: AbstractChannel) -> None:
        source, key, arguments = item.source, item.key, dict(item.arguments)
        if item.to_exchange:
            to_exchange = commands.Exchange.Bind(
                destination=item.destination, source=source, routing_key=key, arguments=arguments
            )
            await _send(channel, to_exchange)
        else:
            to_queue = commands.Queue.Bind(
                queue=item.destination, exchange=source, routing_key=key, arguments=arguments
            )
            await _send(channel, to_queue)

    return bind


async def _send(channel: AbstractChannel, method: Frame) -> None:
    """Send a method with arguments, and wait for its answer.

    :raises ValueError: if its arguments cannot be written, or if it does not fit in one frame, as a method has to (AMQP
        0-9-1 section 4.2.3). Sent nevertheless, the broker would close the connection over it, and the next one again.
    """
    assert isinstance(channel, Channel)
    try:
        size = len(marshal(method, channel.number))
    except TypeError as error:
        raise ValueError(f"its arguments cannot be written: {error}") from error
    largest = channel.connection.connection_tune.frame_max
    if 0 < largest < size:
        raise ValueError(f"with its arguments it takes {size} bytes, and a frame of this broker {largest}")
    await channel.rpc(method)
