"""The broker inside this process: the one place where the SDK reaches for it, lazily and behind a Protocol."""

from __future__ import annotations

from importlib import import_module
from types import TracebackType
from typing import Protocol

from warren.sdk.errors import ConfigError


class EmbeddedBroker(Protocol):
    """What the App needs of `warren.broker.Broker`."""

    @property
    def url(self) -> str: ...

    async def __aenter__(self) -> EmbeddedBroker: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def embedded_broker() -> EmbeddedBroker:
    """A broker in memory, on any free port of loopback, not yet started."""
    try:
        module = import_module("warren.broker")
    except ImportError as error:
        raise ConfigError(
            "no AMQP_URL is set and warren.broker is not installed: App('amqp://...')"
        ) from error
    broker: EmbeddedBroker = module.Broker()
    return broker
