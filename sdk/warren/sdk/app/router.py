"""`Router`: handlers, topology and middlewares that are defined without an App, and included in one or several later."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from warren.sdk.app.inclusion import Includable, IncludedComponent, note_decided, note_made
from warren.sdk.app.middleware import Middlewares
from warren.sdk.app.state import State
from warren.sdk.consume.handlers.decorator_arguments import check_message_class
from warren.sdk.consume.handlers.decorators import HandlerDecoratorFactory
from warren.sdk.consume.handlers.handler_options import HandlerOptions
from warren.sdk.consume.handlers.registration import (
    HandlerRegistry,
    Register,
    batch_consumer_options_of,
    consumer_options_of,
    queue_and_topology,
)
from warren.sdk.consume.handlers.signature import caller_names, check_signature
from warren.sdk.consume.streams.reader_options import StreamHandlerOptions, check_no_queue, stream_queue
from warren.sdk.durations import Duration
from warren.sdk.errors import ConfigError
from warren.sdk.messages.types import Message, PointToPointMessage
from warren.sdk.protocols import Component, HandleMiddleware
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.queue import Queue

if TYPE_CHECKING:
    from warren.sdk.app.app import App


@dataclass(frozen=True, slots=True)
class RouterPlace:
    """Place of a router in an App: where its parts are added, and what applies to them there.

    :ivar prefix: prefixes of the router and of the routers around it, the outermost first.
    :ivar middlewares: those of the router, inside those of the routers around it and of the App.
    :ivar include: adds a component to the App.
    """

    prefix: str
    middlewares: Middlewares
    handlers: HandlerRegistry
    declare: Callable[[Iterable[Declarable]], None]
    publishes: Callable[[type[Message]], None]
    include: Callable[[Component], None]
    routers: dict[Router, RouterPlace]

    def within(self, router: Router) -> RouterPlace:
        """Return the place of a router that is included here."""
        middlewares = Middlewares(router._middlewares, self.middlewares)
        return replace(self, prefix=self.prefix + router.prefix, middlewares=middlewares)


Part = Callable[[RouterPlace], None]
"""A handler, declaration, component or nested router of a router: function that adds it at a place."""


class Router:
    """Handlers without an App, for a module of their own: `router = Router(prefix="billing.")`, then `app.include(router)`.

    A router can be included in several Apps, one after another, for example in an App for each test; in each only once.
    What is added to a router after it was included is added to its Apps, before they start.

    :param prefix: text in front of the names of the router's queues: those that its handlers are given with `queue=`, and
        the queues and the destinations of bindings to queues in `router.declare`, and the queues that they dead-letter to
        by the default exchange (`dead_letter_exchange=""`). Names that other programs use do not
        change: exchanges, routing keys, and the queues that message classes name (`queue=` of a Command or Request,
        `audience=` of an Event). Nested routers have the prefixes of those around them in front of their own.
    :ivar handle: decorators for handlers, with the options of `app.handle`.
    """

    def __init__(self, *, prefix: str = "") -> None:
        self.prefix: str = prefix
        self.handle: HandlerDecoratorFactory = HandlerDecoratorFactory(
            _RouterHandlers(self), lambda: self._check_apps("add a handler"), "router.handle"
        )
        self._middlewares: list[HandleMiddleware] = []
        self._parts: list[Part] = []
        self._routers: list[Router] = []
        self._apps: weakref.WeakSet[App] = weakref.WeakSet()
        self._contained: list[Includable] = []
        self._has_handlers = False
        note_made(self)

    @property
    def inclusion_title(self) -> str:
        """Kind and prefix, such as `Router billing.`."""
        return f"Router {self.prefix}".rstrip()

    @property
    def lost_without_app(self) -> str:
        """Consequence of a missing inclusion, as a clause; empty for a router without handlers and components."""
        found = ["its handlers are not called"] if self._has_handlers else []
        found += [
            f"{part.inclusion_title}: {lost}" for part in self._contained if (lost := part.lost_without_app)
        ]
        return "; ".join(found)

    def declare(self, *items: Declarable) -> None:
        """Add exchanges, queues and bindings that the App declares at its start and after each reconnect.

        :raises ConfigError: if an App of the router runs, or already declares an item of that kind and name with other
            arguments.
        """
        self._add(
            "declare topology", lambda place: place.declare([_prefixed(item, place.prefix) for item in items])
        )

    def publishes(self, *messages: type[Message]) -> None:
        """Register message classes that the module publishes, or sends with `call`, but does not handle, as
        `app.publishes` does.

        :raises ConfigError: if one is no message class, or an App of the router runs.
        """
        for message in messages:
            check_message_class("router.publishes", message)
            self._add("list what it publishes", lambda place, message=message: place.publishes(message))  # type: ignore[misc]

    def middleware(self, *, handle: HandleMiddleware) -> None:
        """Add an async function around every attempt to handle a message in this router and the routers in it.

        A delivery passes the middlewares of the App first, then those of the outer routers, then these. Of one router's
        middlewares those added first are nearest to the handler.

        :param handle: takes a delivery, and the function to which it passes the delivery on.
        :raises ConfigError: if an App of the router runs.
        """
        self._check_apps("add a middleware")
        self._middlewares.append(handle)

    def include(self, component: Component | Router) -> None:
        """Add the handlers of another router, with both prefixes; or a component, for example a pattern of
        `warren.patterns`.

        A component belongs to the App: the router's prefix and middlewares do not apply to it, and the component's
        middlewares apply to the whole App.

        :raises ConfigError: if the other router is included here already or contains this one, or an App of this router
            runs.
        """
        if not isinstance(component, Router):
            self._add("include a component", lambda place: place.include(component))
            if isinstance(component, IncludedComponent):
                self._contained.append(component)
            note_decided(component)
            return
        if self in component._tree():
            raise ConfigError("a router cannot include itself, or a router that includes it")
        if component in self._routers:
            raise ConfigError("the router is included here already: include it once")
        for app in self._apps:
            component._check_place(app)
        self._add("include a router", lambda place: component._add_at(place))
        self._routers.append(component)
        self._contained.append(component)
        note_decided(component)
        for app in self._apps:
            for router in component._tree():
                router._apps.add(app)

    def _join(self, app: App) -> None:
        """Add everything in this router to an App; called by `app.include`."""
        self._check_place(app)
        note_decided(self)
        self._add_at(
            RouterPlace(
                "",
                app._middlewares,
                app._handlers,
                app._registry.add,
                app.publishes,
                app.include,
                app._routers,
            )
        )
        for router in self._tree():
            router._apps.add(app)

    def _add(self, action: str, part: Part) -> None:
        """Keep a part for Apps that include the router later, and add it to those that have it already."""
        self._check_apps(action)
        for app in self._apps:
            part(app._routers[self])
        self._parts.append(part)

    def _add_at(self, place: RouterPlace) -> None:
        """Add all parts at the place of the router around this one, or of the App."""
        own = place.within(self)
        place.routers[self] = own
        for part in self._parts:
            part(own)

    def _tree(self) -> Iterator[Router]:
        yield self
        for router in self._routers:
            yield from router._tree()

    def _check_apps(self, action: str) -> None:
        for app in self._apps:
            app._lifecycle.not_running(action)

    def _check_place(self, app: App) -> None:
        """Check that this router and those in it can be included in an App.

        :raises ConfigError: if one is in the App already, or in another one that runs.
        """
        for router in self._tree():
            if router in app._routers:
                raise ConfigError(f"{router._label} is included in this App already: include it once")
            if any(other.state is not State.CLOSED for other in router._apps):
                raise ConfigError(
                    f"{router._label} belongs to another App that runs: stop that App first, or make a router for each"
                )

    @property
    def _label(self) -> str:
        return f"the router with the prefix {self.prefix!r}" if self.prefix else "the router"


class _RouterHandlers:
    """Registrar of `router.handle`: it checks a handler where it is decorated, and keeps it for the Apps of the router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def registrar(
        self, message: Any, queue: str | Queue | None, keys: Iterable[str] | None, options: HandlerOptions, /
    ) -> Register:
        consumer_options_of("router.handle", message, options)
        stream = cast(StreamHandlerOptions, options).get("stream")
        if stream is not None:
            check_no_queue(queue)
        keys = _checked_keys(message, queue if stream is None else stream_queue(stream), keys)

        def register(function: Callable[..., Any]) -> None:
            names = caller_names()
            check_signature(function, message, names)

            def part(place: RouterPlace) -> None:
                own, chosen = _own_queue(message, queue, place.prefix), options
                if stream is not None:
                    prefixed = _own_queue(message, stream_queue(stream), place.prefix)
                    chosen = cast(HandlerOptions, {**options, "stream": prefixed})
                place.handlers.registrar(message, own, keys, chosen, place.middlewares, names)(function)

            self._router._add("add a handler", part)
            self._router._has_handlers = True

        return register

    def batch_registrar(
        self,
        message: Any,
        queue: str | Queue | None,
        keys: Iterable[str] | None,
        size: int,
        within: Duration,
        options: HandlerOptions,
        /,
    ) -> Register:
        batch_consumer_options_of("router.handle.batch", message, size, options)
        keys = _checked_keys(message, queue, keys)

        def register(function: Callable[..., Any]) -> None:
            names = caller_names()
            check_signature(function, list[message], names)

            def part(place: RouterPlace) -> None:
                own = _own_queue(message, queue, place.prefix)
                place.handlers.batch_registrar(
                    message, own, keys, size, within, options, place.middlewares, names
                )(function)

            self._router._add("add a handler", part)
            self._router._has_handlers = True

        return register


def _checked_keys(
    message: Any, queue: str | Queue | None, keys: Iterable[str] | None
) -> Iterable[str] | None:
    """Return the binding keys of a handler as a list, which can be read for each App; None for none.

    :raises ConfigError: if the message has no queue or key.
    """
    keys = keys if keys is None or isinstance(keys, str) else list(keys)
    queue_and_topology(message, queue, keys)
    return keys


def _own_queue(message: Any, queue: str | Queue | None, prefix: str) -> str | Queue | None:
    """Return the queue of a handler with the prefix; unchanged if the message class names it, as its address."""
    if queue is None or (isinstance(message, type) and issubclass(message, PointToPointMessage)):
        return queue
    return prefix + queue if isinstance(queue, str) else _prefixed_queue(queue, prefix)


def _prefixed(item: Declarable, prefix: str) -> Declarable:
    match item:
        case Queue():
            return _prefixed_queue(item, prefix)
        case Binding(to_exchange=False):
            return replace(item, destination=prefix + item.destination)
        case _:
            return item


def _prefixed_queue(queue: Queue, prefix: str) -> Queue:
    renamed: Queue = replace(queue, name=prefix + queue.name)
    if queue.dead_letter_exchange == "" and queue.dead_letter_routing_key is not None:
        # The default exchange takes the name of a queue as the routing key.
        renamed = replace(renamed, dead_letter_routing_key=prefix + queue.dead_letter_routing_key)
    # The copy is given its type, which the original may have got from one of its arguments.
    object.__setattr__(renamed, "type_reason", queue.type_reason)
    return renamed
