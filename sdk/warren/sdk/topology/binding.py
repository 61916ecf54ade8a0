"""`Binding`: the declaration of a binding as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from warren.sdk.errors import ConfigError
from warren.sdk.topology.queue_arguments import check_name


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding from an exchange to a queue, or to another exchange.

    :param source: name of the exchange.
    :param destination: name of the queue; of an exchange if `to_exchange` is true.
    :param key: routing key of the binding; a pattern if the source is a topic exchange.
    :param arguments: the headers that a `headers` exchange compares, and `x-match`.
    :raises ConfigError: for the default exchange, which binds every queue by its name and accepts no other binding.
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
