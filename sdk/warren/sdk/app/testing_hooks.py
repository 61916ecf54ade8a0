"""An App as a test runs it: on another broker, by another clock, with somebody who hears what its handlers handled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

from warren.sdk.app.app import App
from warren.sdk.consume.handlers.handler_spec import HandlerSpec
from warren.sdk.errors import Ack, HandlerOutcome
from warren.sdk.protocols import Clock
from warren.sdk.publish.outgoing import Outgoing
from warren.sdk.transport.host_failover import Hosts


@contextmanager
def override_for_test(
    app: App,
    *,
    url: str,
    clock: Clock,
    grace: float,
    handled: Callable[[Any, Any], None],
    published: Callable[[Outgoing], None],
) -> Iterator[None]:
    """Change the App for the length of the block; it starts and stops within.

    :param url: the broker, instead of the App's own.
    :param clock: what `app.clock` follows.
    :param grace: seconds that running handlers have when the App stops.
    :param handled: called with the class that a handler was declared for and the message, each time it returned; not
        for duplicates that `once=` answered, nor when it raised or chose another end.
    :param published: called with each message of the App's as it was encoded, after its confirm.
    :raises ConfigError: if the App runs already.
    """
    app._lifecycle.not_running("rehearse")
    settings, followed = app._lifecycle.settings, app.clock.followed
    specs = {endpoint: endpoint._specs for endpoint in app._handlers.endpoints.values()}
    app._lifecycle.settings = replace(settings, hosts=Hosts([url]), grace=grace)
    app.clock.follow(clock)
    for endpoint, handlers in specs.items():
        endpoint._specs = {name: _recording(handler, handled) for name, handler in handlers.items()}

    async def seen(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        # A middleware may change the message further on, and what was published is what the App said.
        said = copy(outgoing)
        await call_next(outgoing)
        published(said)

    app._middlewares.publish.insert(0, seen)
    try:
        yield
    finally:
        app._middlewares.publish.remove(seen)
        app._lifecycle.settings = settings
        app.clock.follow(followed)
        for endpoint, handlers in specs.items():
            endpoint._specs = handlers


def _recording(spec: HandlerSpec, handled: Callable[[Any, Any], None]) -> HandlerSpec:
    function, kind = spec.function, spec.kind

    async def recording(message: Any, *arguments: Any, **keywords: Any) -> Any:
        result = await function(message, *arguments, **keywords)
        if not isinstance(result, HandlerOutcome) or isinstance(result, Ack):
            handled(kind, message)
        return result

    return replace(spec, function=recording)
