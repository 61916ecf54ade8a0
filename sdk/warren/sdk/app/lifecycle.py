"""The life of an App: from `start` to `stop` there is a run, and before and after there is none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from warren.sdk.app.middleware import Middlewares
from warren.sdk.app.runtime import Runtime
from warren.sdk.app.state import Health, State, StateListeners
from warren.sdk.capture import Capture
from warren.sdk.consume.handlers.registration import HandlerRegistry
from warren.sdk.errors import ConfigError, TransportUnavailable, Unroutable
from warren.sdk.protocols import Component
from warren.sdk.rpc.caller import ReplyMode
from warren.sdk.telemetry import Telemetry
from warren.sdk.topology.registry import TopologyRegistry
from warren.sdk.transport.host_failover import Hosts


@dataclass(slots=True)
class Settings:
    """How an App connects and ends; times in seconds. Without hosts, the broker is one in this process."""

    hosts: Hosts | None
    name: str
    window: int
    replies: ReplyMode
    telemetry: Telemetry
    capture: Capture | None
    connect_timeout: float
    grace: float
    first_retry: float
    longest_retry: float


class Lifecycle:
    """Makes the runs, and keeps what outlives them: components, and who wants to hear of returns and states."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.components: list[Component] = []
        self.on_return: list[Callable[[Unroutable], object]] = []
        self.listeners: StateListeners = StateListeners()
        self._runtime: Runtime | None = None

    async def start(
        self, registry: TopologyRegistry, handlers: HandlerRegistry, middlewares: Middlewares
    ) -> None:
        """See `App.start`."""
        self.not_running("start")
        settings = self.settings
        runtime = self._runtime = Runtime(
            settings.hosts,
            settings.name,
            registry=registry,
            endpoints=handlers.endpoints,
            components=self.components,
            middlewares=middlewares,
            clock=handlers.clock,
            window=settings.window,
            replies=settings.replies,
            telemetry=settings.telemetry,
            capture=settings.capture,
            on_return=self._returned,
            on_state=self.listeners.notify,
            first_retry=settings.first_retry,
            longest_retry=settings.longest_retry,
        )
        try:
            await runtime.start(settings.connect_timeout)
        except BaseException:
            try:
                await runtime.stop(0.0)
            finally:
                self._runtime = None
            raise

    async def stop(self) -> None:
        """See `App.stop`."""
        runtime = self._runtime
        if runtime is not None:
            try:
                await runtime.stop(self.settings.grace)
            finally:
                self._runtime = None

    @property
    def state(self) -> State:
        return State.CLOSED if self._runtime is None else self._runtime.state

    def health(self) -> Health:
        return Health(State.CLOSED) if self._runtime is None else self._runtime.health()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the run, if there is one."""
        return None if self._runtime is None else self._runtime.loop

    @property
    def url(self) -> str | None:
        hosts = self.settings.hosts if self._runtime is None else self._runtime.hosts
        return None if hosts is None else hosts.current

    def running(self) -> Runtime:
        """:raises TransportUnavailable: if there is no run. :raises ConfigError: on another event loop."""
        if self._runtime is None:
            raise TransportUnavailable("the App does not run: async with app: ...", retryable=False)
        self._runtime.check_loop()
        return self._runtime

    def not_running(self, what: str) -> None:
        """:raises ConfigError: if there is a run, which is too late for `what`."""
        if self._runtime is not None:
            raise ConfigError(f"the App runs already: {what} before it starts")

    def _returned(self, error: Unroutable) -> None:
        for callback in self.on_return:
            with contextlib.suppress(Exception):
                callback(error)
