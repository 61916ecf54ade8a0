"""`x-random` and `x-local-random`: each message goes to a random binding, all with the same probability.

https://github.com/rabbitmq/rabbitmq-server/tree/main/deps/rabbitmq_random_exchange and, for x-local-random,
https://www.rabbitmq.com/docs/local-random-exchange.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from warren.broker.model.exchange.binding_selector import precondition_failed, printable

if TYPE_CHECKING:
    from warren.broker.model.exchange.binding_selector import Destination
    from warren.broker.model.exchange.exchange import Binding
    from warren.broker.model.message import Message
    from warren.wire.field_tables import Field


class RandomSelector:
    """Part of a random exchange that selects a random binding for each message.

    :param local: True for an `x-local-random` exchange, to which only classic queues can be bound, with an empty key.
    """

    inspects_message = True

    def __init__(self, local: bool = False) -> None:
        self._local = local
        self._bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        if self._local:
            if binding.routing_key:
                raise precondition_failed(
                    f"Non empty binding '{printable(binding.routing_key)}' key not permitted"
                )
            kind = binding.queue_type()
            if kind != "classic":
                reason = f"Queue type rabbit_{kind}_queue not valid for this exchange type"
                raise precondition_failed(reason if kind else "Destination not found")
        self._bindings.append(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def remove_destination(self, destination: Destination) -> None:
        self._bindings = [binding for binding in self._bindings if binding.destination is not destination]

    def select(self, key: bytes, headers: dict[str, Field], message: Message | None) -> list[Destination]:
        return [random.choice(self._bindings).destination] if self._bindings else []
