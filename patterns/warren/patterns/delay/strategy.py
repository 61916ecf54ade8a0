"""What `Delay` asks of a way to let messages wait: queues of powers of two, or what a broker brings itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from warren.sdk import Declarable


class EntryPoint(NamedTuple):
    """Where a message is published so that it waits."""

    exchange: str
    key: str
    headers: Mapping[str, Any]


class DelayStrategy(Protocol):
    """How messages wait.

    :ivar longest: the longest delay.
    :ivar silent: the broker's returns say nothing about what is published here: whether it is routed shows later.
    """

    longest: timedelta
    silent: bool

    def topology(self, name: str) -> Iterable[Declarable]:
        """What stands as long as the App does; `name` begins all its names."""
        ...

    def reach(self, name: str, exchange: str, key: str) -> Iterable[Declarable]:
        """What must stand so that what has waited gets to this exchange and key, or with `""` to the queue `key`.

        :raises ConfigError: the address cannot be delayed.
        """
        ...

    def entry(self, name: str, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        """Where to publish what shall be there after `delay`; it is above 0 and at most `longest`."""
        ...


__all__ = ["DelayStrategy", "EntryPoint"]
