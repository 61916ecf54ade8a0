"""The decorators `app.handle` and `app.handle.batch`. They keep the function's type for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from warren.sdk.consume.batches import BATCH_SIZE, BATCH_WITHIN, BatchResult
from warren.sdk.consume.handlers.decorator_arguments import MISSING, check_arguments
from warren.sdk.consume.handlers.handler_options import HandlerOptions
from warren.sdk.consume.handlers.registration import Register, Registrar
from warren.sdk.consume.streams.reader_options import StreamHandlerOptions
from warren.sdk.durations import Duration
from warren.sdk.messages.types import Request, RequestMessage, Scatter
from warren.sdk.topology.queue import Queue

Content = TypeVar("Content")
Answer = TypeVar("Answer")
Result = TypeVar("Result")
BatchOutcome = TypeVar("BatchOutcome", bound=BatchResult)
Parameters = ParamSpec("Parameters")


class HandlerDecorator(Generic[Content]):
    """Decorator for a handler of an Event, a Command or foreign content (from publishers without Warren). The first
    parameter must take the content.
    """

    def __init__(self, register: Register) -> None:
        self._register = register

    def __call__(
        self, function: Callable[Concatenate[Content, Parameters], Result]
    ) -> Callable[Concatenate[Content, Parameters], Result]:
        self._register(function)
        return function


class RequestHandlerDecorator(Generic[Answer]):
    """Decorator for a handler of a Request. The function must return the request's reply type."""

    def __init__(self, register: Register) -> None:
        self._register = register

    @overload
    def __call__(
        self, function: Callable[Parameters, Coroutine[Any, Any, Answer]]
    ) -> Callable[Parameters, Coroutine[Any, Any, Answer]]: ...

    @overload
    def __call__(self, function: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]: ...

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._register(function)
        return function


class BatchHandlerDecorator(Generic[Content]):
    """Decorator for a batch handler. The first parameter must take a list of the content."""

    def __init__(self, register: Register) -> None:
        self._register = register

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Content], Parameters], Coroutine[Any, Any, BatchOutcome]]
    ) -> Callable[Concatenate[list[Content], Parameters], Coroutine[Any, Any, BatchOutcome]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[Content], Parameters], BatchOutcome]
    ) -> Callable[Concatenate[list[Content], Parameters], BatchOutcome]: ...

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._register(function)
        return function


class HandlerDecoratorFactory:
    """`app.handle` and `router.handle`: decorate a function that handles messages, as in
    `@app.handle(OrderPlaced, queue="billing")`.

    An async function runs on the event loop, which it must not block. A plain function (`def`) runs in a thread, with a
    copy of the context; `App(threads=...)` limits how many do. It cannot be interrupted: after the grace period of a stop
    its message returns to the queue, and the function runs on to its end or that of the process.

    The decorator returns the function unchanged. A message is acknowledged when the function returns. If it raises, the
    message is retried as `retry=` says, then dead-lettered with the reason; a Request is answered with the error instead.
    The function may also return or raise an outcome: `Ack()`, `Requeue()`, `RetryLater()`, `DeadLetter("reason")`.

    Beside the message, the function may have parameters annotated with `Annotated[X, Depends(f)]`,
    `Annotated[X, Header()]`, `Delivery` or `App`.
    """

    def __init__(self, handlers: Registrar, check: Callable[[], None], name: str) -> None:
        """Create the decorator.

        :param check: called before each use; raises an error where handlers cannot be added.
        :param name: name of the decorator in error texts, such as `app.handle`.
        """
        self._handlers = handlers
        self._check = check
        self._name = name

    # A Request is Content too; the first overload that matches wins, so the narrower ones come first.
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

    @overload
    def __call__(
        self,
        message: type[Content],
        *,
        keys: Iterable[str] | None = ...,
        **options: Unpack[StreamHandlerOptions],
    ) -> HandlerDecorator[Content]: ...

    def __call__(
        self,
        message: Any = MISSING,
        *positional: Any,
        queue: str | Queue | None = None,
        keys: Iterable[str] | None = None,
        **options: Unpack[StreamHandlerOptions],
    ) -> Any:
        """Return a decorator that registers a function, async or plain, as a handler of `message`.

        :param message: an Event, Command or Request class; or `bytes`, `str`, `dict` or another type
            that pydantic reads, for content of other publishers.
        :param positional: must be empty; all options have names.
        :param queue: queue to consume, for an Event or foreign content: a name, or a `Queue` with
            its arguments. Commands and Requests have their own.
        :param keys: binding keys of an Event, instead of its own key.
        :param options: `HandlerOptions`; with `stream=`, for a handler that reads a stream, `StreamHandlerOptions`.
        :raises ConfigError: if the message has no queue, or the function's signature does not fit.
        """
        check_arguments(self._name, message, positional)
        self._check()
        register = self._handlers.registrar(message, queue, keys, options)
        if isinstance(message, type) and issubclass(message, RequestMessage):
            return RequestHandlerDecorator[Any](register)
        return HandlerDecorator[Any](register)

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
        """Return a decorator that registers a handler of message lists, which may also take a `list[Delivery]`.

        The function returns None (all messages are acknowledged), one outcome for all, or a list with one outcome for
        each message (see `BatchResult`). If it raises, every message of the batch has failed. Retries, `once=` and
        middlewares apply to each message by itself; a message that is retried comes again in a later batch.

        :param message: an Event or Command class, or a type for content of other publishers.
        :param queue: queue to consume, for an Event or content of other
            publishers: a name, or a `Queue` with its arguments.
        :param keys: binding keys of an Event, instead of its own key.
        :param size: largest number of messages in a batch.
        :param within: longest time that the first message of a batch waits for others.
        :param options: as for `app.handle`, with two differences: `concurrency` counts batches (default 1), and there
            is no `ordered_by`, because a batch is in the order of the queue.
        :raises ConfigError: if the message is a Request or has no queue, or the function's signature does not fit.
        """
        self._check()
        return BatchHandlerDecorator[Any](
            self._handlers.batch_registrar(message, queue, keys, size, within, options)
        )
