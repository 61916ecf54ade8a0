"""Exchanges, queues and bindings as frozen values, and what they imply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from warren.sdk.errors import ConfigError
from warren.sdk.topology import queue_arguments
from warren.sdk.topology.queue import DEAD_LETTER_EXCHANGE, UNLIMITED, Queue, dead_letter_queue_name
from warren.sdk.topology.queue_arguments import check_name

__all__ = [
    "DEAD_LETTER_EXCHANGE",
    "UNLIMITED",
    "Binding",
    "Declarable",
    "Exchange",
    "Queue",
    "closure",
    "dead_letter_queue_name",
    "milliseconds",
]

EXCHANGE_TYPES = ("topic", "direct", "fanout", "headers")


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange.

    :param name: at most 255 bytes; `""` is the default exchange, which every broker has.
    :param type: `topic`, `direct`, `fanout` or `headers`; or `x-...` of a plugin.
    :param alternate_exchange: takes what this exchange cannot route; fanout is the advisable type of it, so that it takes
        every key.
    :param internal: nobody can publish to it; only bindings and alternates lead there.
    :param arguments: further arguments, as they go over the wire.
    :raises ConfigError: for a name or a type that no broker takes.
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
        check_name("an exchange", self.name)
        if self.type not in EXCHANGE_TYPES and not self.type.startswith("x-"):
            raise ConfigError(
                f"exchange {self.name!r}: there is no type {self.type!r};"
                f" there are {', '.join(EXCHANGE_TYPES)}, and those of plugins, which begin with x-"
            )
        if self.alternate_exchange is not None:
            check_name(f"the alternate of exchange {self.name!r}", self.alternate_exchange)

    def wire_arguments(self) -> dict[str, Any]:
        """The arguments of `exchange.declare`."""
        alternate = {"alternate-exchange": self.alternate_exchange} if self.alternate_exchange else {}
        return {**alternate, **self.arguments}


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding from an exchange to a queue, or to another exchange.

    :param source: the exchange's name.
    :param destination: the name of the queue, or of the exchange if `to_exchange`.
    :param arguments: what a `headers` exchange compares, with its `x-match`.
    :raises ConfigError: for the default exchange, which binds every queue by its name and nothing else.
    """

    source: str
    destination: str
    key: str = ""
    to_exchange: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", dict(self.arguments))
        check_name("a binding's destination", self.destination)
        check_name("a binding's key", self.key)
        if not self.source or (self.to_exchange and not self.destination):
            raise ConfigError(
                f"the binding of {self.destination!r}: nothing is bound to the default exchange or from it"
            )


Declarable = Exchange | Queue | Binding


def milliseconds(duration: timedelta | None) -> int | None:
    """A duration as the wire writes it; a part of a millisecond counts as a whole one."""
    return None if duration is None else queue_arguments.milliseconds(duration)


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
