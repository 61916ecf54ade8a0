"""Default delay backend: `WaitQueues` of `warren.patterns`, imported when the first message is delayed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warren.sdk.errors import ConfigError
from warren.sdk.protocols import DelayBackend

if TYPE_CHECKING:
    from warren.sdk.app.app import App


class DefaultDelay:
    """Source of an App's delay backend: the backend that the App was given, otherwise `WaitQueues`, created on first
    use.
    """

    def __init__(self, app: App, backend: DelayBackend | None) -> None:
        self._app = app
        self._backend = backend

    def __call__(self) -> DelayBackend:
        """Return the backend; create and register the default one on the first call.

        :raises ConfigError: if the App has no backend and `warren.patterns` is not installed.
        """
        if self._backend is None:
            try:
                module: Any = import_module("warren.patterns.delay")
            except ImportError as error:
                raise ConfigError(
                    "messages cannot be delayed without a delay backend: pass App(delay=...), or install warren.patterns"
                ) from error
            backend = module.WaitQueues()
            backend.register(self._app)
            self._backend = backend
        return self._backend
