"""AMQP methods that declare an exchange, a queue or a binding, or check that one exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from aiormq import Channel
from aiormq.abc import AbstractChannel
from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal

from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue

Method = Callable[[AbstractChannel], Awaitable[Any]]


class MethodRunner(Protocol):
    """A runner of one synchronous method at a time; `ControlChannel` is one."""

    async def run(self, what: str, method: Method, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Declaration:
    """The fields of `exchange.declare` or `queue.declare` for one exchange or queue.

    :ivar properties: by their AMQP names: `type` of an exchange, `durable`, `auto_delete`, `internal`, `exclusive`.
    """

    kind: Literal["exchange", "queue"]
    name: str
    properties: Mapping[str, Any]
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, item: Exchange | Queue) -> Declaration:
        """Return the declaration of the item."""
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
        """Declare it; the broker does nothing if it exists with the same properties and arguments."""
        properties, arguments = dict(self.properties), dict(self.arguments)
        if self.kind == "queue":
            await _send(channel, commands.Queue.Declare(queue=self.name, **properties, arguments=arguments))
        elif self.name:
            properties["exchange_type"] = properties.pop("type")
            declare = commands.Exchange.Declare(exchange=self.name, **properties, arguments=arguments)
            await _send(channel, declare)

    async def check_exists(self, channel: AbstractChannel) -> None:
        """Check that it exists, with any properties (a passive declaration); the default exchange always exists."""
        if self.kind == "queue":
            await channel.queue_declare(self.name, passive=True)
        elif self.name:
            await channel.exchange_declare(self.name, passive=True)


def declare_method(item: Declarable) -> Method:
    """Return the method that declares the item; for a binding, the method that binds."""
    if not isinstance(item, Binding):
        return Declaration.of(item).declare

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
    """Send a method that has arguments, and await its reply.

    :raises ValueError: if the arguments cannot be encoded, or the method does not fit into one frame, as it must (AMQP
        0-9-1 section 4.2.3). The broker would close the connection over such a frame, and again after each reconnect.
    """
    assert isinstance(channel, Channel)
    try:
        size = len(marshal(method, channel.number))
    except TypeError as error:
        raise ValueError(f"its arguments cannot be encoded: {error}") from error
    largest = channel.connection.connection_tune.frame_max
    if 0 < largest < size:
        raise ValueError(
            f"with its arguments it takes {size} bytes, and a frame of this broker holds at most {largest}"
        )
    await channel.rpc(method)
