"""AMQP methods that declare an exchange, a queue or a binding, or check that one exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange
from warren.sdk.topology.queue import Queue
from warren.sdk.transport.topology_methods import TopologyMethods

Method = Callable[[TopologyMethods], Awaitable[Any]]


class MethodRunner(Protocol):
    """Interface that calls a function with the topology methods of a channel, one function at a time.

    `ControlChannel` implements it.
    """

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
        """Return the declaration of this exchange or queue."""
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

    async def declare(self, methods: TopologyMethods) -> None:
        """Declare the exchange or queue; the broker does nothing if it exists
        with the same properties and arguments.
        """
        if self.kind == "queue":
            await methods.declare_queue(self.name, self.properties, self.arguments)
        elif self.name:
            await methods.declare_exchange(self.name, self.properties, self.arguments)

    async def check_exists(self, methods: TopologyMethods) -> None:
        """Check that the exchange or queue exists, with any properties (a passive
        declaration); the default exchange always exists.
        """
        if self.kind == "queue":
            await methods.check_queue(self.name)
        elif self.name:
            await methods.check_exchange(self.name)


def declare_method(item: Declarable) -> Method:
    """Return a function that sends the declaration of an exchange or queue, or the bind of a binding."""
    if not isinstance(item, Binding):
        return Declaration.of(item).declare

    async def bind(methods: TopologyMethods) -> None:
        if item.to_exchange:
            await methods.bind_exchange(item.destination, item.source, item.key, item.arguments)
        else:
            await methods.bind_queue(item.destination, item.source, item.key, item.arguments)

    return bind
