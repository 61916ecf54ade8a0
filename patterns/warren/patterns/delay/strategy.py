"""Delay strategies: the protocol that `Delay` uses to make messages wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from warren.sdk import Declarable


class EntryPoint(NamedTuple):
    """Exchange, routing key and headers with which a message is published so that the broker delays it."""

    exchange: str
    key: str
    headers: Mapping[str, Any]


class DelayStrategy(Protocol):
    """Mechanism by which the broker delays messages, such as queues with a TTL or an x-delayed-message exchange.

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

        :param name: name of the `Delay`, with which the names of the strategy's exchanges and queues begin.
        :raises ConfigError: messages to this address cannot be delayed.
        """
        ...

    def entry(self, name: str, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        """Return the exchange, routing key and headers with which to publish a message, so that it arrives at its
        target after `delay`.

        :param name: name of the `Delay`, with which the names of the strategy's exchanges and queues begin.
        :param exchange: target exchange, with the routing key `key`; empty for the queue `key`.
        :param delay: above 0 and at most `longest`.
        """
        ...


__all__ = ["DelayStrategy", "EntryPoint"]
