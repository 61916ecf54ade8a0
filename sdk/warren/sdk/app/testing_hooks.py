"""Testing hooks: run an App on another broker and clock, and observe what it handles and publishes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
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
    """Let the App use another broker and clock within the block, and report its messages to callbacks.

    Start and stop the App inside the block.

    :param url: URL of the broker, instead of the App's own. The start waits for it.
    :param clock: the clock that `app.clock` follows.
    :param grace: seconds that running handlers get to finish when the App stops.
    :param handled: called with the class that a handler was declared for and the message, each
        time the handler succeeded: it returned no outcome, or `Ack()`. Not called for
        duplicates for which `once=` returned a stored result.
    :param published: called with each message that the App published, as it was encoded, after its confirm.
    :raises ConfigError: if the App runs already.
    """
    app._lifecycle.not_running("override it for a test")
    settings, followed = app._lifecycle.settings, app.clock.followed
    specs = {endpoint: endpoint._specs for endpoint in app._handlers.endpoints.values()}
    app._lifecycle.settings = replace(settings, broker=Hosts([url]), start="wait", grace=grace)
    app.clock.follow(clock)
    for endpoint, handlers in specs.items():
        endpoint._specs = {name: _recording(handler, handled) for name, handler in handlers.items()}

    app._handlers.observe = partial(_recording, handled=handled)

    async def record(outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        # Middlewares may change the message; the test compares with what the App published.
        original = copy(outgoing)
        await call_next(outgoing)
        published(original)

    app._middlewares.publish.insert(0, record)
    try:
        yield
    finally:
        app._middlewares.publish.remove(record)
        app._handlers.observe = None
        app._lifecycle.settings = settings
        app.clock.follow(followed)
        for endpoint, handlers in specs.items():
            endpoint._specs = handlers


def _recording(spec: HandlerSpec, handled: Callable[[Any, Any], None]) -> HandlerSpec:
    """Return a copy of the handler that also calls `handled` after each success: the handler returned no outcome, or
    `Ack()`.

    :param handled: called with the message class that the handler was declared for, and the message.
    """
    return replace(spec, invoker=_RecordingInvoker(spec, handled))


class _RecordingInvoker:
    def __init__(self, spec: HandlerSpec, handled: Callable[[Any, Any], None]) -> None:
        self._spec = spec
        self._handled = handled

    async def call(self, function: Callable[..., Any], message: Any, delivery: Any, /) -> Any:
        result = await self._spec.call(message, delivery)
        if not isinstance(result, HandlerOutcome) or isinstance(result, Ack):
            self._handled(self._spec.kind, message)
        return result
