"""Partitions: messages with one key are handled in publishing order, different keys concurrently, over any number of
processes.

The keys are divided over a fixed number of queues, each with a single active consumer (RabbitMQ, "Consumers", Single
Active Consumer) that handles one message at a time; when the active process of a queue is gone, another continues.

Guarantees: for each key, one message at a time, in the order in which the broker received them; after a crash or a lost
acknowledgement a message may be delivered again, before the following ones. When a process loses its connection, its
running handler runs to its end, while another process handles the same message again and continues: for that long, two
messages of a key are handled at a time. A failing handler is retried at once, before the next message; when all retries
have failed, its message is dead-lettered and the next one follows. There is no order between several publishers, and
the order of one publisher is kept only if it awaits each publish before the next; if that is not enough, number the
messages (`Resequencer`).

Costs: one queue per partition, with one handler at a time. Of several processes, the first that consumes from a queue
handles all of its messages, so the partitions may be spread unevenly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, ParamSpec

from warren.sdk import App, Binding, ConfigError, Event, Exchange, Message, Queue
from warren.sdk.extend import IncludedComponent, check_decorated, check_whole_number

MAX_PARTITIONS: Final = 1024

Parameters = ParamSpec("Parameters")


class Partitions(IncludedComponent):
    """Partitioned exchange with per-key order: `orders = Partitions("orders", 8, key=lambda change: change.order_id)`.

    Declare the Events on its exchange, `class OrderChanged(Event, exchange=orders.exchange)`, and call
    `app.include(orders)` in processes that publish or handle them.

    :param name: prefix of the exchange `<name>.<count>` and the queues `<name>.<count>.<number>`. A different count
        means different queues, so all processes must use the same count; messages in the old queues are only handled by
        processes that still use the old count.
    :param count: number of partitions, and so of messages handled concurrently, over all processes.
    :param key: returns the ordering key of a message.
    :param by: side that assigns keys to partitions. `publisher`, the default: Warren's `publish` does, over a direct
        exchange, on every broker. `broker`: an `x-consistent-hash` exchange does, by the routing key, also for
        publishers other than Warren's; RabbitMQ needs the plugin `rabbitmq_consistent_hash_exchange`, Warren's broker
        nothing.
    :raises ConfigError: the count is out of range, or the name is empty.
    """

    def __init__(
        self,
        name: str,
        count: int,
        *,
        key: Callable[[Any], str],
        by: Literal["publisher", "broker"] = "publisher",
    ) -> None:
        if not name:
            raise ConfigError("Partitions need a name, because their exchange and queues contain it")
        check_whole_number(f"Partitions {name!r}: count", count, 1, MAX_PARTITIONS)
        kind = "direct" if by == "publisher" else "x-consistent-hash"
        self.exchange: Exchange = Exchange(f"{name}.{count}", type=kind)
        self.queues: Sequence[Queue] = tuple(
            Queue(f"{name}.{count}.{number}", single_active_consumer=True) for number in range(count)
        )
        self._key = key
        self._by_broker = by == "broker"
        self._handlers: list[tuple[type[Event], Callable[..., Awaitable[None]], dict[str, Any]]] = []
        super().__init__()

    def partition(self, key: str) -> int:
        """Return the partition number of a key, the same in every process and version (BLAKE2b, RFC 7693)."""
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % len(self.queues)

    def handle(
        self, message: type[Event], **options: Any
    ) -> Callable[[Callable[Parameters, Awaitable[None]]], Callable[Parameters, Awaitable[None]]]:
        """Decorate the handler of a message class, as `app.handle` does, for all partitions, before or after
        `app.include`.

        :param options: `retry=`, `once=` and the like, as for `app.handle`; with a delay before a retry, the next
            message is handled first, so the order is lost.
        """

        check_decorated("Partitions.handle", message, example="partitions.handle")

        def register(
            function: Callable[Parameters, Awaitable[None]],
        ) -> Callable[Parameters, Awaitable[None]]:
            if self._app is not None:
                self._register_handler(self._app, message, function, options)
            self._handlers.append((message, function, options))
            return function

        return register

    async def publish(self, message: Message, **options: Any) -> None:
        """Publish into the partition of the message's key.

        :param options: `message_id=`, `headers=` and the like, as for `app.publish`.
        :raises ConfigError: the message's class does not use this exchange, or the message has no key.
        :raises PublishError: the broker did not confirm the message, because it was refused or unroutable, or no
            confirm arrived in time.
        """
        app = self.included_in()
        if type(message).wire_exchange != self.exchange.name:
            raise ConfigError(
                f"{type(message).__name__} does not use the exchange {self.exchange.name!r} of these partitions: declare"
                f" class {type(message).__name__}(Event, exchange=partitions.exchange)"
            )
        key = self._key(message)
        if not isinstance(key, str):
            raise ConfigError(
                f"{type(message).__name__}: the key function of these partitions returned {key!r}, and must return a text"
            )
        routing_key = key if self._by_broker else str(self.partition(key))
        await app.publish(message, exchange=self.exchange.name, key=routing_key, **options)

    @property
    def inclusion_title(self) -> str:
        return f"Partitions {self.exchange.name}"

    @property
    def lost_without_app(self) -> str:
        return "its messages are not handled" if self._handlers else ""

    def register(self, app: App) -> None:
        super().register(app)
        app.declare(self.exchange, *self.queues)
        for number, queue in enumerate(self.queues):
            app.declare(Binding(self.exchange.name, queue.name, self._binding_key(number)))
        for message, function, options in self._handlers:
            self._register_handler(app, message, function, options)

    async def on_start(self) -> None:
        """Do nothing when the App starts: the App's own consumers read the partitions' queues, and the broker chooses
        the active one of each queue."""

    async def on_stop(self) -> None:
        """Do nothing when the App stops: there is no connection, file or task to close."""

    def _binding_key(self, number: int) -> str:
        # At a consistent-hash exchange the binding key is the queue's weight.
        return "1" if self._by_broker else str(number)

    def _register_handler(
        self, app: App, message: type[Event], function: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        """Register the handler of a message class for the queue of each partition.

        :raises ConfigError: the App is running, or an option does not fit.
        """
        for number, queue in enumerate(self.queues):
            key = self._binding_key(number)
            app.handle(message, queue=queue, keys=[key], concurrency=1, **options)(function)


__all__ = ["Partitions"]
