"""Topology recovery: what an App has declared, and somebody has deleted since, is declared again when a publish needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from warren.sdk.errors import TransportUnavailable
from warren.sdk.logger import log
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.exchange import Exchange

Address = tuple[str, str]
Resume = Callable[[Exception | None], None]
"""Function that is called once when the declaration has ended, with its error or None."""
NOTHING: Final[Sequence[Declarable]] = ()
PAUSE_SECONDS: Final = 10.0


class TopologyRecovery:
    """Declares exchanges, queues and bindings again while the App runs.

    Publishes that need the same exchange, or the same queue of the default exchange, share the declaration. If a message
    finds no queue after it either, the address is left alone for `PAUSE_SECONDS`: an App may publish many messages that no
    queue takes.

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
        self._waiting: dict[Address, list[Resume]] = {}
        self._paused_until: dict[Address, float] = {}
        """Times of the event loop, by address."""
        self._tasks: set[asyncio.Task[None]] = set()

    def after_return(self, exchange: str, key: str) -> Sequence[Declarable]:
        """Return the items to declare after the broker has returned a message as unroutable: none if no queue of this
        App would take it, or the declaration did not help a moment ago.
        """
        paused_until = self._paused_until.get(_address(exchange, key))
        if paused_until is not None and asyncio.get_running_loop().time() < paused_until:
            return NOTHING
        items = self._route(exchange, key)
        return NOTHING if all(isinstance(item, Exchange) for item in items) else items

    def after_refusal(self, exchange: str, key: str) -> Sequence[Declarable]:
        """Return the items to declare after the broker has refused a message because its exchange does not exist: none if
        this App does not declare the exchange.
        """
        items = self._route(exchange, key)
        declared = any(isinstance(item, Exchange) and item.name == exchange for item in items)
        return items if declared else NOTHING

    def note_failure(self, exchange: str, key: str) -> None:
        """Note that a message was returned again after its route had been declared."""
        self._paused_until[_address(exchange, key)] = asyncio.get_running_loop().time() + PAUSE_SECONDS

    def declare(self, exchange: str, key: str, items: Sequence[Declarable], resume: Resume) -> None:
        """Declare the items through which messages with this address pass, then call `resume`."""
        address = _address(exchange, key)
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting.append(resume)
            return
        self._waiting[address] = [resume]
        task = asyncio.ensure_future(self._declare_now(address, items))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop declaring, and call the functions that wait for it with an error."""
        for task in self._tasks:
            task.cancel()
        for address in list(self._waiting):
            self._resume(address, TransportUnavailable("the App stopped"))

    async def _declare_now(self, address: Address, items: Sequence[Declarable]) -> None:
        exchange, key = address
        failure: Exception | None = None
        try:
            await self._declare(items)
        except Exception as error:
            failure = error
            log.warning("event=topology.recovery_failed exchange=%s key=%s error=%s", exchange, key, error)
        else:
            log.warning("event=topology.recovered exchange=%s key=%s", exchange, key)
        self._resume(address, failure)

    def _resume(self, address: Address, failure: Exception | None) -> None:
        for resume in self._waiting.pop(address, ()):
            resume(failure)


def _address(exchange: str, key: str) -> Address:
    """Return what determines the route of a message: its exchange, or its queue if that is the default exchange."""
    return (exchange, "") if exchange else ("", key)


__all__ = ["TopologyRecovery"]
