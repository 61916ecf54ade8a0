"""The default delay backend: the one place where the SDK reaches for the patterns, lazily and behind a Protocol."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warren.sdk.errors import ConfigError
from warren.sdk.protocols import DelayBackend

if TYPE_CHECKING:
    from warren.sdk.app.app import App


class DefaultDelay:
    """The backend of one App: the one that it was given, else, when a message is to be delayed, a queue a delay."""

    def __init__(self, app: App, backend: DelayBackend | None) -> None:
        self._app = app
        self._backend = backend

    def __call__(self) -> DelayBackend:
        """:raises ConfigError: if there is none, and `warren.patterns` is not installed."""
        if self._backend is None:
            try:
                module: Any = import_module("warren.patterns.delay")
            except ImportError as error:
                raise ConfigError(
                    "nothing brings delayed messages back: App(delay=...), or install warren.patterns"
                ) from error
            backend = module.WaitQueues()
            backend.register(self._app)
            self._backend = backend
        return self._backend
