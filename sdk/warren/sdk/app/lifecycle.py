"""Lifecycle of an App across its runs: one `Runtime` from each start to the next stop, and no runtime otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from warren.sdk.app.inclusion import log_not_included
from warren.sdk.app.lifespan import Hooks
from warren.sdk.app.middleware import Middlewares
from warren.sdk.app.runtime import Runtime
from warren.sdk.app.settings import Settings
from warren.sdk.app.state import Health, State, StateListeners
from warren.sdk.consume.handlers.registration import HandlerRegistry
from warren.sdk.errors import ConfigError, TransportUnavailable, Unroutable
from warren.sdk.protocols import Component
from warren.sdk.topology.registry import TopologyRegistry
from warren.sdk.transport.host_failover import Hosts


class Lifecycle:
    """Start and stop of an App, with everything that outlives a single run: settings, components, callbacks."""

    def __init__(self, settings: Settings, hooks: Hooks) -> None:
        self.settings = settings
        self.hooks = hooks
        self.components: list[Component] = []
        self.return_callbacks: list[Callable[[Unroutable], object]] = []
        self.listeners: StateListeners = StateListeners()
        self._runtime: Runtime | None = None
        self._of_parent: Runtime | None = None
        self._process = os.getpid()
        """The process that the runtime belongs to."""
        self._has_started = False

    async def start(
        self, registry: TopologyRegistry, handlers: HandlerRegistry, middlewares: Middlewares
    ) -> None:
        """Create a `Runtime`, one run of the App, and start it; if that fails, stop it again."""
        self.not_running("start")
        log_not_included()
        runtime = self._runtime = Runtime(
            self.settings,
            registry=registry,
            handlers=handlers,
            middlewares=middlewares,
            components=self.components,
            hooks=self.hooks,
            on_return=self._call_back_return,
            on_state=self.listeners.notify,
        )
        self._process = os.getpid()
        self._has_started = True
        try:
            await runtime.start()
        except BaseException:
            try:
                await runtime.stop(0.0)
            finally:
                self._runtime = None
            raise

    async def stop(self) -> None:
        """Stop the current run of the App gracefully and discard its `Runtime`; do nothing if the App does not run."""
        runtime = self._runtime
        if runtime is not None:
            runtime.check_stop()
            try:
                await runtime.stop(self.settings.grace)
            finally:
                self._runtime = None

    @property
    def state(self) -> State:
        return State.CLOSED if self._runtime is None else self._runtime.state

    def health(self) -> Health:
        """Return the health of the current runtime; without a runtime, its state is `CLOSED`."""
        return Health(State.CLOSED) if self._runtime is None else self._runtime.health()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the App runs; None while it does not run.

        :raises ConfigError: if the App was started before this process was forked: the loop runs in the parent only.
        """
        if self._runs_in_parent:
            raise ConfigError("the App was started before this process was forked: start it in each process")
        return None if self._runtime is None else self._runtime.loop

    def leave_parent(self) -> None:
        """Let the App start anew in a process that was forked while it ran; do nothing in the process that started it."""
        if self._runs_in_parent:
            # Kept: its end would close what belongs to the event loop of the parent.
            self._of_parent = self._runtime
            self._runtime = None

    @property
    def _runs_in_parent(self) -> bool:
        return self._runtime is not None and self._process != os.getpid()

    @property
    def url(self) -> str | None:
        """The URL of the current or next connection attempt; None for an embedded broker that does not run."""
        broker = self.settings.broker if self._runtime is None else self._runtime.hosts
        return broker.current if isinstance(broker, Hosts) else None

    def running(self) -> Runtime:
        """Return the current runtime, for an operation that needs a running App.

        :raises TransportUnavailable: if the App has stopped.
        :raises ConfigError: if the App has not started, or the caller runs on another event loop than the App.
        """
        if self._runtime is None:
            if self._has_started:
                raise TransportUnavailable("the App does not run: it has stopped", retryable=False)
            raise ConfigError(
                "the App does not run: it has not started yet; publish and call in the block of `async with app:`, in a"
                " handler, or in a function with @app.on_start"
            )
        self._runtime.check_loop()
        return self._runtime

    def not_running(self, action: str) -> None:
        """Raise an error if the App runs, because `action` is allowed only before its start.

        :param action: the refused action for the error text, such as `include a component`.
        :raises ConfigError: if the App runs.
        """
        self.leave_parent()
        if self._runtime is not None:
            raise ConfigError(f"the App runs already: {action} before it starts")

    def _call_back_return(self, error: Unroutable) -> None:
        for callback in self.return_callbacks:
            with contextlib.suppress(Exception):
                callback(error)
