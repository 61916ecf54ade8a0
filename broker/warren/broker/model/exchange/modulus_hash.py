"""`x-modulus-hash`: the hash of the routing key modulo the number of destinations, which are ordered by name.

https://github.com/rabbitmq/rabbitmq-server/tree/main/deps/rabbitmq_sharding
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.model.exchange.binding_selector import hash_bytes

if TYPE_CHECKING:
    from warren.broker.model.exchange.binding_selector import Destination
    from warren.broker.model.exchange.exchange import Binding
    from warren.broker.model.message import Message
    from warren.wire.field_tables import Field


class ModulusHash:
    """Binding selector of an `x-modulus-hash` exchange: orders the destinations by name and takes one by its position.

    The position is the hash of the routing key modulo the number of destinations. A destination that is bound several
    times counts once.
    """

    inspects_message = False

    def __init__(self) -> None:
        self._counts: dict[Destination, int] = {}
        """Number of bindings of each destination."""
        self._order: list[Destination] | None = []
        """Destinations by name; None after a change, until the next message."""

    def add(self, binding: Binding) -> None:
        self._counts[binding.destination] = self._counts.get(binding.destination, 0) + 1
        self._order = None

    def remove(self, binding: Binding) -> None:
        left = self._counts.pop(binding.destination) - 1
        if left:
            self._counts[binding.destination] = left
        self._order = None

    def remove_destination(self, destination: Destination) -> None:
        del self._counts[destination]
        self._order = None

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        order = self._order
        if order is None:
            order = self._order = sorted(self._counts, key=lambda destination: destination.name)
        return [order[hash_bytes(key) % len(order)]] if order else []
