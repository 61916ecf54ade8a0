"""Exchanges, queues and bindings as frozen values, and the safe arguments that a queue gets by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

DEAD_LETTER_EXCHANGE = "warren.dead"
"""The direct exchange that default queues dead-letter to; the routing key is the name of the queue."""

DELIVERY_LIMIT = 20
UNLIMITED = 2**31 - 1
"""The delivery limit of a dead letter queue: RabbitMQ 4.0 and later take 20 where none is said, and drop what was looked
at more often (RabbitMQ, "Quorum Queues", Poison Message Handling)."""

Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange.

    :param name: at most 255 bytes; `""` is the default exchange, which every broker has.
    :param type: `topic`, `direct`, `fanout` or `headers`.
    :param alternate_exchange: takes what this exchange cannot route.
    :param arguments: further arguments, as they go over the wire.
    """

    name: str
    type: str = "topic"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate_exchange: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", dict(self.arguments))

    def wire_arguments(self) -> dict[str, Any]:
        """The arguments of `exchange.declare`."""
        alternate = {"alternate-exchange": self.alternate_exchange} if self.alternate_exchange else {}
        return {**alternate, **self.arguments}


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue; by default durable, replicated (quorum), with a delivery limit and at-least-once dead-lettering.

    :param type: `quorum` or `classic`. A classic queue has no delivery limit and dead-letters at most once.
    :param delivery_limit: deliveries of one message before it is dead-lettered; quorum only; None leaves it out.
    :param dead_letter_exchange: by default `warren.dead`, whose queue `<name>.dead` is declared along; None for none.
    :param dead_letter_routing_key: by default the queue's name at `warren.dead`, else the message's own key.
    :param message_ttl: how long a message may wait (`x-message-ttl`; whole milliseconds).
    :param expires: the queue is deleted after so long without use (`x-expires`; whole milliseconds).
    :param max_length: messages that may wait; beyond it `overflow` rules.
    :param overflow: None chooses `reject-publish` where at-least-once dead-lettering needs it (RabbitMQ,
        "Quorum Queues", At-Least-Once Dead Lettering), else the broker's default.
    :param arguments: further arguments, as they go over the wire; they win.
    """

    name: str
    type: Literal["quorum", "classic"] = "quorum"
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    delivery_limit: int | None = DELIVERY_LIMIT
    dead_letter_exchange: str | None = DEAD_LETTER_EXCHANGE
    dead_letter_routing_key: str | None = None
    message_ttl: timedelta | None = None
    expires: timedelta | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow | None = None
    single_active_consumer: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", dict(self.arguments))

    @property
    def dead_letter_key(self) -> str | None:
        """The routing key that dead letters of this queue get; None keeps the message's own."""
        if self.dead_letter_routing_key is None and self.dead_letter_exchange == DEAD_LETTER_EXCHANGE:
            return self.name
        return self.dead_letter_routing_key

    @property
    def dead_letter_queue(self) -> Queue | None:
        """The queue `<name>.dead` of a queue that dead-letters to `warren.dead`."""
        if self.dead_letter_exchange != DEAD_LETTER_EXCHANGE:
            return None
        return Queue(
            dead_letter_queue_name(self.name),
            type=self.type,
            delivery_limit=UNLIMITED,
            dead_letter_exchange=None,
        )

    def wire_arguments(self) -> dict[str, Any]:
        """The arguments of `queue.declare`."""
        quorum = self.type == "quorum"
        overflow = self.overflow
        arguments: dict[str, Any] = {"x-queue-type": self.type}
        if quorum and self.delivery_limit is not None:
            arguments["x-delivery-limit"] = self.delivery_limit
        if self.dead_letter_exchange is not None:
            arguments["x-dead-letter-exchange"] = self.dead_letter_exchange
            if self.dead_letter_key is not None:
                arguments["x-dead-letter-routing-key"] = self.dead_letter_key
            if quorum and overflow in (None, "reject-publish"):
                arguments["x-dead-letter-strategy"] = "at-least-once"
                overflow = "reject-publish"
        optional = {
            "x-overflow": overflow,
            "x-message-ttl": milliseconds(self.message_ttl),
            "x-expires": milliseconds(self.expires),
            "x-max-length": self.max_length,
            "x-max-length-bytes": self.max_length_bytes,
            "x-single-active-consumer": self.single_active_consumer or None,
        }
        arguments.update({name: value for name, value in optional.items() if value is not None})
        return {**arguments, **self.arguments}


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding from an exchange to a queue, or to another exchange.

    :param source: the exchange's name.
    :param destination: the name of the queue, or of the exchange if `to_exchange`.
    """

    source: str
    destination: str
    key: str = ""
    to_exchange: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", dict(self.arguments))


Declarable = Exchange | Queue | Binding


def milliseconds(duration: timedelta | None) -> int | None:
    """A duration as the wire writes it; a part of a millisecond counts as a whole one."""
    return None if duration is None else -(-duration // timedelta(milliseconds=1))


def dead_letter_queue_name(queue: str) -> str:
    return f"{queue}.dead"


def closure(items: Iterable[Declarable]) -> list[Declarable]:
    """The items with what they imply: a queue's dead letter exchange, dead letter queue and their binding."""
    found: list[Declarable] = []
    for item in items:
        if isinstance(item, Queue) and (dead := item.dead_letter_queue) is not None:
            found.append(Exchange(DEAD_LETTER_EXCHANGE, type="direct"))
            found.append(dead)
            found.append(Binding(DEAD_LETTER_EXCHANGE, dead.name, item.dead_letter_key or ""))
        found.append(item)
    return found
