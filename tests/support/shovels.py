"""Shovels of a broker in the test's process: define them, and wait for their states."""

from __future__ import annotations

from typing import Any

from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from warren.broker.model.operator_errors import ObjectNotFound
from warren.broker.shovel.shovels import Shovel


class ShovelHost:
    """Shovels in the virtual host `/` of a broker."""

    def __init__(self, broker: InProcessBroker) -> None:
        self.broker = broker

    def define(self, name: str = "s", **definition: Any) -> None:
        """Define a shovel; `src_uri` is the key `src-uri`. Both URIs are `amqp://` unless given."""
        value = {"src-uri": "amqp://", "dest-uri": "amqp://"}
        value |= {key.replace("_", "-"): each for key, each in definition.items()}
        self.broker.call(lambda: self._parameters.set(b"/", "shovel", name, value))

    def delete(self, name: str = "s") -> None:
        self.broker.call(lambda: self._parameters.clear(b"/", "shovel", name))

    def is_defined(self, name: str = "s") -> bool:
        """Return whether the shovel has a definition; it deletes it itself when it has finished."""
        return self.broker.call(lambda: (b"/", "shovel", name) in self._parameters.stored)

    def status(self, name: str = "s") -> dict[str, Any]:
        """Return the status of a shovel."""

        def status() -> dict[str, Any]:
            shovel = self._shovel(name)
            if shovel is None:
                raise ObjectNotFound(name)
            return shovel.status()

        return self.broker.call(status)

    def reaches(self, state: str, name: str = "s") -> dict[str, Any]:
        """Wait until a shovel has a state; return its status."""
        wait_until(lambda: self.status(name)["state"] == state, f"the shovel is {state}")
        return self.status(name)

    def finishes(self, name: str = "s") -> None:
        """Wait until a shovel has moved all that it should, and has ended."""
        wait_until(lambda: not self.is_defined(name), "the shovel has finished")

    @property
    def _parameters(self) -> Any:
        return self._management.parameters

    @property
    def _management(self) -> Any:
        assert self.broker.broker is not None
        return self.broker.broker._management

    def _shovel(self, name: str) -> Shovel | None:
        found: Shovel | None = self._management.shovels.find(b"/", name)
        return found
