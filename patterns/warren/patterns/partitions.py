"""Partitions: messages with one key are handled in the order in which they were published, different keys side by side, over
any number of processes.

The keys are divided over a fixed number of queues, each with a single active consumer (RabbitMQ, "Consumers", Single Active
Consumer) that handles one message at a time; when the process that is active on a queue is gone, another goes on there.

Guarantees: for each key, one message at a time, in the order in which the broker got them; after a crash or a lost
acknowledgement a message may come again, before what follows it. When a process loses its connection, the handler that runs
there runs to its end, while another process handles the same message again and goes on: for that long, two messages of a
key are handled at a time. A handler that fails is tried again at once, in its place;
when it has failed for good, its message is dead-lettered and the next one's turn comes. Several publishers have no order
between them, and a publisher keeps its own only if it awaits one publish before the next; where that is not enough,
messages need numbers (`Resequencer`).

Costs: one queue a partition; one handler at a time in each. Of several processes the one that came first to a queue works on
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, ParamSpec, cast

from warren.sdk import App, Binding, ConfigError, Event, Exchange, Message, Queue

MOST: Final = 1024

Parameters = ParamSpec("Parameters")


class Partitions:
    """`orders = Partitions("orders", 8, key=lambda change: change.order_id)`, and Events of its exchange:
    `class OrderChanged(Event, exchange=orders.exchange)`. `app.include(orders)` in publishers and handlers.

    :param name: of the exchange `<name>.<count>` and the queues `<name>.<count>.<number>`. Another count is another set of
        queues, so that nobody mixes them; what waits in the old ones is handled by a process that still has them.
    :param count: how many partitions: how many messages are handled side by side, over all processes.
    :param key: from the message to what has an order of its own.
    :param by: who divides the keys. `publisher`, the default: Warren's `publish` does, over a direct exchange, on every
        broker. `broker`: an `x-consistent-hash` exchange does, by the routing key, also for publishers that are not
        Warren's; in RabbitMQ the plugin `rabbitmq_consistent_hash_exchange` has to be enabled, in Warren's broker nothing.
    :raises ConfigError: the count is out of range, or the name empty.
    """

    def __init__(
        self,
        name: str,
        count: int,
        *,
        key: Callable[[Any], str],
        by: Literal["publisher", "broker"] = "publisher",
    ) -> None:
        if not name or not 1 <= count <= MOST:
            raise ConfigError(
                f"Partitions {name!r}: there are {count}; a name, and from 1 to {MOST} are needed"
            )
        kind = "direct" if by == "publisher" else "x-consistent-hash"
        self.exchange: Exchange = Exchange(f"{name}.{count}", type=kind)
        self.queues: Sequence[Queue] = tuple(
            Queue(f"{name}.{count}.{number}", single_active_consumer=True) for number in range(count)
        )
        self._key = key
        self._by_broker = by == "broker"
        self._handlers: list[tuple[type[Event], Callable[..., Awaitable[None]], dict[str, Any]]] = []
        self._app: App | None = None

    def partition(self, key: str) -> int:
        """The number of the partition of a key, the same in every process and version (BLAKE2b, RFC 7693)."""
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % len(self.queues)

    def handle(
        self, message: type[Event], **options: Any
    ) -> Callable[[Callable[Parameters, Awaitable[None]]], Callable[Parameters, Awaitable[None]]]:
        """Decorate the handler of a message, as `app.handle` does.

        :param options: `retry=`, `once=` and the like, as for `app.handle`; a retry that is delayed gives up the order.
        """

        def register(
            function: Callable[Parameters, Awaitable[None]],
        ) -> Callable[Parameters, Awaitable[None]]:
            self._handlers.append((message, function, options))
            return function

        return register

    async def publish(self, message: Message, **options: Any) -> None:
        """`app.publish` into the partition of the message's key; parameters and errors as there.

        :raises ConfigError: its class is not one of this exchange.
        """
        app = self._included()
        if type(message).wire_exchange != self.exchange.name:
            raise ConfigError(
                f"{type(message).__name__} is not published through these partitions: class {type(message).__name__}(Event,"
                f" exchange=...) with the exchange {self.exchange.name!r}"
            )
        key = self._key(message)
        routing_key = key if self._by_broker else str(self.partition(key))
        await app.publish(message, key=routing_key, **options)

    def register(self, app: App) -> None:
        self._app = app
        app.declare(self.exchange, *self.queues)
        for number, queue in enumerate(self.queues):
            # At a consistent-hash exchange the binding key is the queue's weight.
            key = "1" if self._by_broker else str(number)
            app.declare(Binding(self.exchange.name, queue.name, key))
            for message, function, options in self._handlers:
                handling = cast("Callable[..., Any]", function)
                app.handle(message, queue=queue, keys=[key], concurrency=1, **options)(handling)

    async def on_start(self) -> None:
        """Nothing to begin: the broker chooses who is active."""

    async def on_stop(self) -> None:
        """Nothing to end."""

    def _included(self) -> App:
        if self._app is None:
            raise ConfigError("these Partitions belong to no App: app.include(partitions)")
        return self._app


__all__ = ["Partitions"]
