"""Embedded broker: `warren.broker` in this process, imported when an App without a URL starts."""

from __future__ import annotations

from importlib import import_module
from types import TracebackType
from typing import Protocol

from warren.sdk.errors import ConfigError


class EmbeddedBroker(Protocol):
    """Protocol of the attributes and methods of `warren.broker.Broker` that the App uses."""

    @property
    def url(self) -> str: ...

    async def __aenter__(self) -> EmbeddedBroker: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def embedded_broker() -> EmbeddedBroker:
    """Return a broker in memory, on a free port of the loopback interface, not yet started.

    :raises ConfigError: if `warren.broker` is not installed.
    """
    try:
        module = import_module("warren.broker")
    except ImportError as error:
        raise ConfigError(
            "no AMQP_URL is set and warren.broker is not installed: App('amqp://...')"
        ) from error
    broker: EmbeddedBroker = module.Broker()
    return broker
