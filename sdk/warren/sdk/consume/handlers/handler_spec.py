"""Handler specification: a decorated function and the options it was decorated with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from warren.sdk.app.middleware import Middlewares
from warren.sdk.consume.delivery import Delivery
from warren.sdk.protocols import Idempotency, RetryPolicy
from warren.sdk.rpc.reply_types import ReplyCodec


class HandlerInvoker(Protocol):
    """Invoker of a handler: it passes the message, and the arguments for the handler's further parameters."""

    async def call(self, function: Callable[..., Any], message: Any, delivery: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A decorated function and its options.

    :ivar kind: type that the function takes: a message class, or a type for foreign content.
    :ivar invoker: supplies the parameters beside the message, and calls a plain function in a thread; None for an async
        function that takes the message only.
    :ivar retry: the handler's own retry policy, or None for the App's.
    :ivar reply: codec of the reply, if `kind` is a request.
    :ivar middlewares: those of the handler's router, inside those of the App; None for the App's only.
    """

    kind: Any
    function: Callable[..., Any]
    invoker: HandlerInvoker | None
    retry: RetryPolicy | None
    once: Idempotency | None
    reply: ReplyCodec | None
    middlewares: Middlewares | None = None

    @property
    def user_function(self) -> Callable[..., Any]:
        """The function of the user; for a batch handler it is not `function`, which adds a message to a batch."""
        return getattr(self.invoker, "function", self.function)

    @property
    def name(self) -> str:
        """Name of the user's function, for logs; for an internal method of a pattern, the name of the pattern."""
        owner = getattr(self.user_function, "__self__", None)
        if owner is not None and self.user_function.__name__.startswith("_"):
            return type(owner).__name__
        return str(getattr(self.user_function, "__qualname__", "")).rpartition(".")[2] or repr(
            self.user_function
        )

    def call(self, message: Any, delivery: Delivery) -> Awaitable[Any]:
        """Call the function with the message and its dependencies; return the awaitable of its result."""
        if self.invoker is None:
            result: Awaitable[Any] = self.function(message)
            return result
        return self.invoker.call(self.function, message, delivery)
