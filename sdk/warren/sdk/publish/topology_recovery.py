"""Topology recovery: what an App has declared, and somebody has deleted since, is declared again when a publish needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from warren.sdk.errors import TransportUnavailable, WarrenError
from warren.sdk.logger import log
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange

Resume = Callable[[WarrenError | None], None]
"""Function that is called once when the declaration has ended, with its error or None."""
NOTHING: Final[Sequence[Declarable]] = ()


class TopologyRecovery:
    """Declares exchanges, queues and bindings again while the App runs.

    Publishes that need the same address while it is being declared share the declaration.

    :param route: returns the registered items through which a message with this exchange and routing key passes.
    :param declare: declares items on the broker.
    """

    def __init__(
        self,
        route: Callable[[str, str], Sequence[Declarable]],
        declare: Callable[[Sequence[Declarable]], Awaitable[None]],
    ) -> None:
        self._route = route
        self._declare = declare
        self._waiting: dict[tuple[str, str], list[Resume]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def after_return(self, exchange: str, key: str) -> Sequence[Declarable]:
        """Return the items to declare after the broker has returned a message as unroutable: none if no queue of this
        App would take it.
        """
        items = self._route(exchange, key)
        return NOTHING if all(isinstance(item, Exchange) for item in items) else items

    def after_refusal(self, exchange: str, key: str) -> Sequence[Declarable]:
        """Return the items to declare after the broker has refused a message because its exchange does not exist: none if
        this App does not declare the exchange.
        """
        items = self._route(exchange, key)
        declared = any(isinstance(item, Exchange) and item.name == exchange for item in items)
        return items if declared else NOTHING

    def declare(self, exchange: str, key: str, items: Sequence[Declarable], resume: Resume) -> None:
        """Declare the items through which messages with this address pass, then call `resume`."""
        waiting = self._waiting.get((exchange, key))
        if waiting is not None:
            waiting.append(resume)
            return
        self._waiting[exchange, key] = [resume]
        task = asyncio.ensure_future(self._declare_now(exchange, key, items))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop declaring, and call the functions that wait for it with an error."""
        for task in self._tasks:
            task.cancel()
        for address in list(self._waiting):
            self._resume(address, TransportUnavailable("the App stopped"))

    async def _declare_now(self, exchange: str, key: str, items: Sequence[Declarable]) -> None:
        failure: WarrenError | None = None
        try:
            await self._declare(items)
        except WarrenError as error:
            failure = error
            log.warning("event=topology.recovery_failed exchange=%s key=%s error=%s", exchange, key, error)
        else:
            log.warning("event=topology.recovered exchange=%s key=%s", exchange, key)
        self._resume((exchange, key), failure)

    def _resume(self, address: tuple[str, str], failure: WarrenError | None) -> None:
        for resume in self._waiting.pop(address, ()):
            resume(failure)


__all__ = ["TopologyRecovery"]
