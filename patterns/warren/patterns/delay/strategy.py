"""Delay strategies: the protocol that `Delay` uses to make messages wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from warren.sdk import Declarable


class EntryPoint(NamedTuple):
    """Address and headers to publish a message with, so that it waits."""

    exchange: str
    key: str
    headers: Mapping[str, Any]


class DelayStrategy(Protocol):
    """Mechanism that makes messages wait.

    :ivar longest: the longest delay.
    :ivar ignores_returns: True if the broker returns a mandatory message as unroutable although it will deliver it
        later, so that returns must be ignored.
    """

    longest: timedelta
    ignores_returns: bool

    def topology(self, name: str) -> Iterable[Declarable]:
        """Return the exchanges and queues to declare when the App starts; all their names begin with `name`."""
        ...

    def target_topology(self, name: str, exchange: str, key: str) -> Iterable[Declarable]:
        """Return the exchanges, queues and bindings that lead delayed messages to this exchange and routing key, or,
        with `exchange=""`, to the queue `key`.

        :raises ConfigError: messages to this address cannot be delayed.
        """
        ...

    def entry(self, name: str, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        """Return the address and headers to publish a message with, so that it arrives at its target after `delay`,
        which is above 0 and at most `longest`."""
        ...


__all__ = ["DelayStrategy", "EntryPoint"]
