"""Delay strategies: the protocol that `Delay` uses to make messages wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from warren.sdk import Declarable


class EntryPoint(NamedTuple):
    """Address and headers with which a message is published so that it waits."""

    exchange: str
    key: str
    headers: Mapping[str, Any]


class DelayStrategy(Protocol):
    """Mechanism that makes messages wait.

    :ivar longest: the longest delay.
    :ivar ignores_returns: the broker returns messages published here although it will deliver them later, so a return
        is no error.
    """

    longest: timedelta
    ignores_returns: bool

    def topology(self, name: str) -> Iterable[Declarable]:
        """Return what must exist as long as the App does; all names begin with `name`."""
        ...

    def target_topology(self, name: str, exchange: str, key: str) -> Iterable[Declarable]:
        """Return what must exist so that delayed messages get to this exchange and key, or, with `exchange=""`, to the
        queue `key`.

        :raises ConfigError: messages to this address cannot be delayed.
        """
        ...

    def entry(self, name: str, exchange: str, key: str, delay: timedelta) -> EntryPoint:
        """Return where to publish a message that shall arrive after `delay`, which is above 0 and at most `longest`."""
        ...


__all__ = ["DelayStrategy", "EntryPoint"]
