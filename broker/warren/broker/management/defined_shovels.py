"""Shovels of a broker: they run as their definitions, which are runtime parameters, say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.connection.broker_node import BrokerNode
from warren.broker.management.items.queue_items import NODE
from warren.broker.model.clock import Clock
from warren.broker.model.policy.runtime_parameters import SHOVEL, RuntimeParameters

if TYPE_CHECKING:
    from warren.broker.shovel.shovels import Shovel, Shovels


class DefinedShovels:
    """Shovels that are defined by the runtime parameters of a broker.

    :ivar running: the running shovels; None until the first one is defined, as only then their code is imported.
    """

    def __init__(self, node: BrokerNode, parameters: RuntimeParameters, clock: Clock) -> None:
        self.running: Shovels | None = None
        self._node = node
        self._parameters = parameters
        self._clock = clock

    def start(self) -> None:
        """Start the shovels that are defined, and follow later changes of their definitions."""
        self._parameters.on_changed.append(self._on_parameter_changed)
        for vhost, component, name in list(self._parameters.stored):
            self._on_parameter_changed(vhost, component, name)

    def all(self) -> list[Shovel]:
        """Return all shovels, by virtual host and name."""
        return [] if self.running is None else self.running.all()

    def find(self, vhost: bytes, name: str) -> Shovel | None:
        """Return a shovel; None if there is none."""
        return None if self.running is None else self.running.find(vhost, name)

    async def stop(self) -> None:
        """Stop all shovels, and follow changes of their definitions no more."""
        if self._on_parameter_changed in self._parameters.on_changed:
            self._parameters.on_changed.remove(self._on_parameter_changed)
        if self.running is not None:
            await self.running.stop()

    def _on_parameter_changed(self, vhost: bytes, component: str, name: str) -> None:
        if component != SHOVEL:
            return
        if self.running is None:
            from warren.broker.shovel.shovels import Shovels

            self.running = Shovels(self._node, self._parameters, self._clock, NODE)
        self.running.apply(vhost, name)
