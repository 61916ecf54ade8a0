"""`Exchange`: the declaration of an exchange as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warren.sdk.errors import ConfigError
from warren.sdk.topology.queue_arguments import check_name

EXCHANGE_TYPES = ("topic", "direct", "fanout", "headers")


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange.

    :param name: at most 255 bytes of UTF-8; `""` is the default exchange, which every broker has.
    :param type: `topic`, `direct`, `fanout` or `headers`; or an `x-...` type of a plugin.
    :param durable: the exchange survives a restart of the broker.
    :param auto_delete: the broker deletes the exchange when its last binding is removed.
    :param alternate_exchange: the exchange for messages that this one cannot route. Use a fanout exchange, which accepts
        every routing key.
    :param internal: clients cannot publish to it; only bindings and alternate exchanges lead to it.
    :param arguments: further arguments of `exchange.declare`, sent unchanged.
    :raises ConfigError: for a name or a type that every broker refuses.
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
        """Return the arguments of `exchange.declare`, by their AMQP names."""
        alternate = {"alternate-exchange": self.alternate_exchange} if self.alternate_exchange else {}
        return {**alternate, **self.arguments}
