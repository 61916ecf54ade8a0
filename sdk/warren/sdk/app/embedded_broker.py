"""Embedded broker: `warren.broker` in the process of an App, chosen by a URL of its own, or assumed without any URL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Protocol
from urllib.parse import unquote, urlsplit

from warren.core.default_data_folder import default_data_folder
from warren.sdk.errors import ConfigError
from warren.sdk.logger import log

CHOICES = (
    "set AMQP_URL=amqp://user:password@host/vhost for a broker, embedded:FOLDER for one in this process that keeps"
    " messages in a folder, or memory:// to accept the loss"
)
"""End of the texts about a broker in memory that nobody chose."""


class BrokerProcess(Protocol):
    """Protocol of the attributes and methods of `warren.broker.Broker` that the App uses."""

    @property
    def url(self) -> str: ...

    async def __aenter__(self) -> BrokerProcess: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Storage(Enum):
    """Storage of an embedded broker."""

    FOLDER = "folder"
    """A data folder: confirmed messages survive the end of the process."""
    MEMORY = "memory"
    """Memory, which the program chose: messages are lost when the App stops."""
    ASSUMED = "assumed"
    """Memory, because neither the program nor the environment names a broker."""


@dataclass(frozen=True, slots=True)
class EmbeddedBroker:
    """Choice of a broker that runs in the process of the App, on a free port of the loopback interface.

    Each run of an App has a broker of its own, which no other process knows.

    :ivar data_dir: folder that keeps the messages; None unless `storage` is `Storage.FOLDER`.
    """

    storage: Storage
    data_dir: Path | None = None

    @classmethod
    def parse(cls, url: str | Sequence[str]) -> EmbeddedBroker | None:
        """Return the embedded broker that a URL chooses; None if the URL has another scheme.

        `memory://` keeps messages in memory. `embedded:FOLDER` keeps them in a folder, percent-encoded, absolute or
        relative to the working folder; `embedded:` uses the default data folder of the user.

        :raises ConfigError: if a URL with one of these schemes has another form.
        """
        if not isinstance(url, str):
            return None
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        if parts.scheme == "memory":
            if url.strip() not in ("memory://", "memory:"):
                raise ConfigError("the URL of a broker in memory has no host and no path: write memory://")
            return cls(Storage.MEMORY)
        if parts.scheme != "embedded":
            return None
        if parts.netloc or parts.query or parts.fragment:
            raise ConfigError(
                "the URL of an embedded broker has a folder and nothing else: write embedded:FOLDER"
            )
        folder = Path(unquote(parts.path)).expanduser() if parts.path else default_data_folder()
        return cls(Storage.FOLDER, folder)

    async def start(self) -> BrokerProcess:
        """Start the broker, and log how it stores messages.

        :raises ConfigError: if `warren.broker` is not installed, or cannot use the folder.
        """
        try:
            module = import_module("warren.broker")
        except ImportError as error:
            raise ConfigError(
                "no AMQP_URL is set and warren.broker is not installed: App('amqp://...')"
            ) from error
        broker: BrokerProcess = module.Broker(data_dir=self.data_dir)
        try:
            await broker.__aenter__()
        except module.StoreError as error:
            raise ConfigError(f"the embedded broker did not start: {error}") from error
        if self.storage is Storage.ASSUMED:
            log.warning(
                "event=embedded_broker.assumed consequence=%s",
                "no broker is named, so this process has its own, in memory: messages are lost when this process ends,"
                f" and no other process receives them; {CHOICES}",
            )
        else:
            log.info(
                "event=embedded_broker.started url=%s data_dir=%s",
                f"amqp://{broker.url.rpartition('@')[2]}",
                self.data_dir,
            )
        return broker

    def check_durability(self, components: Iterable[object]) -> None:
        """Refuse components that need a durable broker if this one is in memory and nobody chose that.

        :raises ConfigError: with the names of the classes of these components, and the choices.
        """
        if self.storage is not Storage.ASSUMED:
            return
        names = [
            type(each).__name__ for each in components if getattr(each, "requires_durable_broker", False)
        ]
        if names:
            raise ConfigError(
                f"{' and '.join(dict.fromkeys(names))} would lose messages: no broker is named, so this process has"
                f" its own, in memory; {CHOICES}"
            )
