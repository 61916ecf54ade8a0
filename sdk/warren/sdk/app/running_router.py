"""Include a router in a running App, and remove it again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from warren.sdk.app.inclusion import note_decided
from warren.sdk.app.router import Router, RouterPlace
from warren.sdk.app.runtime import Runtime
from warren.sdk.consume.handlers.registration import HandlerRegistry
from warren.sdk.consume.subscription import Subscription
from warren.sdk.errors import ConfigError
from warren.sdk.messages.types import Message
from warren.sdk.protocols import Component
from warren.sdk.topology.registry import TopologyRegistry

if TYPE_CHECKING:
    from warren.sdk.app.app import App


class RunningRouter:
    """A router that was included in a running App: `running = await app.include_now(router)`. It belongs to the run: the
    stop of the App removes it.

    :ivar router: the router.
    :ivar subscriptions: its consumers by the names of their queues, to `pause` and `resume`.
    """

    def __init__(self, app: App, runtime: Runtime, router: Router) -> None:
        self.router: Router = router
        self._app = app
        self._runtime = runtime
        self._topology = TopologyRegistry("always")
        self._handlers: HandlerRegistry = app._handlers.stage(self._topology)
        self._places: dict[Router, RouterPlace] = {}
        self._published: list[type[Message]] = []
        self._removal: asyncio.Task[None] | None = None

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        found = self._runtime.subscriptions
        return MappingProxyType({name: found[name] for name in self._handlers.endpoints if name in found})

    async def remove(self) -> None:
        """Stop consuming the queues of the router, and remove its handlers from the App; do nothing if that was done.

        Returns when its running handlers have ended, at the latest after `App(grace=...)`: handlers that still run then are
        cancelled. Messages that were not handled are in their queues, which stay on the broker, with their bindings. The
        App does not consume or declare them again after a reconnect. If the caller is cancelled, the removal goes on.
        """
        if self._removal is None:
            self._removal = self._runtime.remove_endpoints(self._handlers.endpoints, self._forget)
        await asyncio.shield(self._removal)

    async def _start(self) -> None:
        """Register the handlers, declare what they need, and start the consumers; undo that if it fails."""
        app, handlers = self._app, self._handlers
        self.router._check_place(app)
        self.router._add_at(
            RouterPlace(
                "",
                app._middlewares,
                handlers,
                self._topology.add,
                self._published.append,
                _refuse_component,
                self._places,
            )
        )
        if taken := sorted(handlers.endpoints.keys() & app._handlers.endpoints.keys()):
            raise ConfigError(
                f"the App has handlers of queue {taken[0]!r} already: a router that is included at run time needs queues of"
                " its own"
            )
        app._handlers.admit(handlers)
        app._routers.update(self._places)
        for router in self._places:
            router._apps.add(app)
            note_decided(router)
        self._runtime.at_end.append(self._forget)
        try:
            for message in self._published:
                await app.declare_now(*message.required_topology())
                app._operations.declare_publish(message)
            await self._runtime.add_endpoints(handlers.endpoints, self._topology.explicit_items())
        except BaseException:
            await self.remove()
            raise

    def _forget(self) -> None:
        """Remove the router from the App, once its consumers have ended."""
        if self._forget not in self._runtime.at_end:
            return
        self._runtime.at_end.remove(self._forget)
        app = self._app
        app._handlers.dismiss(self._handlers)
        app._registry.release(self._topology.explicit_items())
        for router in self._places:
            app._routers.pop(router, None)
            router._apps.discard(app)


async def include_now(app: App, router: Router) -> RunningRouter:
    """Include a router in a running App; see `App.include_now`."""
    running = RunningRouter(app, app._lifecycle.running(), router)
    await running._start()
    return running


def _refuse_component(component: Component) -> None:
    raise ConfigError(
        f"{type(component).__name__} starts with the App: include it before the App starts, not in a router at run time"
    )
