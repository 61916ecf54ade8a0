"""`app.handle`: decorates the functions that handle messages, one at a time or in batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from warren.sdk.app.lifecycle import Lifecycle
from warren.sdk.consume.batches import BATCH_SIZE, BATCH_WITHIN
from warren.sdk.consume.handlers.decorator_types import (
    BatchHandlerDecorator,
    HandlerDecorator,
    RequestHandlerDecorator,
)
from warren.sdk.consume.handlers.registration import HandlerOptions, HandlerRegistry
from warren.sdk.durations import Duration
from warren.sdk.messages.types import Request, Scatter
from warren.sdk.topology.queue import Queue

if TYPE_CHECKING:
    from warren.sdk.app.app import App

Content = TypeVar("Content")
Answer = TypeVar("Answer")


class HandlerDecoratorFactory:
    """Decorate an async function that handles messages; it stays what it was: `@app.handle(OrderPlaced, queue="billing")`.

    A message is acknowledged when the function returns. When it raises, it is tried again as `retry` says, then goes to
    the dead letter queue with the reason; a Request is answered with the error instead. The function may also return, or
    raise, an outcome: `Ack()`, `Requeue()`, `RetryLater()`, `DeadLetter("reason")`.

    Beside the message it takes what `Annotated[X, Depends(f)]` and `Annotated[X, Header()]` say, the `Delivery` and the
    `App`.
    """

    def __init__(self, app: App, handlers: HandlerRegistry, life: Lifecycle) -> None:
        self._app = app
        self._handlers = handlers
        self._lifecycle = life

    # A Request is content too; the first overload wins, and says more.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, message: type[Request[Answer]], **options: Unpack[HandlerOptions]
    ) -> RequestHandlerDecorator[Answer]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        message: type[Scatter[Answer]],
        *,
        queue: str | Queue,
        keys: Iterable[str] | None = ...,
        **options: Unpack[HandlerOptions],
    ) -> RequestHandlerDecorator[Answer]: ...

    @overload
    def __call__(
        self,
        message: type[Content],
        *,
        queue: str | Queue | None = ...,
        keys: Iterable[str] | None = ...,
        **options: Unpack[HandlerOptions],
    ) -> HandlerDecorator[Content]: ...

    def __call__(
        self,
        message: Any,
        *,
        queue: str | Queue | None = None,
        keys: Iterable[str] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Any:
        """See the class.

        :param message: an Event, Command or Request class; or `bytes`, `str`, `dict` or another type that pydantic reads,
            for foreign content.
        :param queue: of an Event or of foreign content: its name, or a `Queue` that says more.
        :param keys: the binding keys of an Event, instead of its own key.
        :param options: `HandlerOptions`.
        :raises ConfigError: if the message has no queue, or the function's signature does not fit.
        """
        self._prepare(options)
        return self._handlers.decorator(message, queue, keys, options)

    def batch(
        self,
        message: type[Content],
        *,
        queue: str | Queue | None = None,
        keys: Iterable[str] | None = None,
        size: int = BATCH_SIZE,
        within: Duration = BATCH_WITHIN,
        **options: Unpack[HandlerOptions],
    ) -> BatchHandlerDecorator[Content]:
        """Decorate an async function that handles a list of messages (and may take the `list[Delivery]`).

        It returns None, when all are acknowledged, one outcome for all, or a list with one for each (see `Outcomes`).
        When it raises, each message has failed. Retries, `once=` and middlewares apply to each message; what is tried
        again comes in a later batch.

        :param size: a batch is closed when it holds so many,
        :param within: or when its first message has waited so long.
        :param options: as for `app.handle`, but that `concurrency` counts batches (default 1), and without `ordered_by`:
            a batch is in the order of the queue.
        :raises ConfigError: see `app.handle`; also for a Request.
        """
        self._prepare(options)
        return self._handlers.batch_decorator(message, queue, keys, size, within, options)

    def _prepare(self, options: HandlerOptions) -> None:
        self._lifecycle.not_running("add a handler")
        once = options.get("once")
        if once is not None:
            once.register(self._app)
