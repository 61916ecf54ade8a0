"""A handler as it was declared: the function, what it takes, and how it is to be run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.dependencies import hints_of
from warren.sdk.errors import ConfigError
from warren.sdk.messages.types import Command, Event, Request, RequestMessage
from warren.sdk.protocols import Once, RetryPolicy
from warren.sdk.rpc.reply_types import ReplyCodec, reply_codec
from warren.sdk.topology.binding import Binding
from warren.sdk.topology.declarable import Declarable
from warren.sdk.topology.queue import Queue


class HandlerInvoker(Protocol):
    """Calls a handler with its message and what else it takes; a `Plan` does."""

    async def call(
        self, function: Callable[..., Awaitable[Any]], message: Any, delivery: Delivery, /
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """One decorated function and what it was decorated with.

    :ivar plan: what fills its parameters beside the message, or None if there are none.
    """

    kind: Any
    function: Callable[..., Awaitable[Any]]
    plan: HandlerInvoker | None
    retry: RetryPolicy | None
    once: Once | None
    reply: ReplyCodec | None

    async def call(self, message: Any, delivery: Delivery) -> Any:
        if self.plan is None:
            return await self.function(message)
        return await self.plan.call(self.function, message, delivery)


def check(function: Callable[..., Any], kind: Any, local: Mapping[str, Any]) -> None:
    """:raises ConfigError: if the function is not async, or does not take the message first."""
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(f"the handler {name} must be an async function")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise ConfigError(f"the handler {name} must take the message as its first parameter")
    first = hints_of(function, local).get(parameters[0].name)
    if not isinstance(first, type) or not isinstance(kind, type):
        return
    if issubclass(first, BaseModel) and not issubclass(kind, first):
        raise ConfigError(f"the handler {name} takes {first.__name__}, but is to handle {kind.__name__}")


def reply_of(kind: Any) -> ReplyCodec | None:
    """What a Request is answered with."""
    return reply_codec(kind) if isinstance(kind, type) and issubclass(kind, RequestMessage) else None


def source_of(
    message: Any, queue: str | Queue | None, keys: Iterable[str] | None
) -> tuple[str, list[Declarable]]:
    """The queue that a handler consumes, and what must be declared for it."""
    if isinstance(keys, str):
        raise ConfigError(f"keys is a list of binding keys, not the text {keys!r}")
    own = Queue(queue) if isinstance(queue, str) else queue
    if isinstance(message, type) and issubclass(message, Command | Request):
        items = message.required_topology()
        name = message.wire_key or ""
        if keys is not None or (own is not None and own != message.queue_value):
            raise ConfigError(f"{message.__name__} has its own queue {name!r}: leave out queue= and keys=")
        return name, items
    if own is None:
        raise ConfigError(f"a handler of {getattr(message, '__name__', message)} needs queue=...")
    if isinstance(message, type) and issubclass(message, Event):
        items = message.required_topology()
        bound = list(keys) if keys is not None else [message.wire_key] if message.wire_key else []
        if not bound:
            raise ConfigError(f"{message.__name__} has no key: handle(..., keys=[...])")
        return own.name, [*items, own, *(Binding(message.wire_exchange, own.name, key) for key in bound)]
    return own.name, [own]
