"""What `app.handle` returns: decorators that keep the function's type and let a type checker judge it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from warren.sdk.consume.batches import Outcomes

Content = TypeVar("Content")
Answer = TypeVar("Answer")
Result = TypeVar("Result")
Ended = TypeVar("Ended", bound=Outcomes)
Parameters = ParamSpec("Parameters")


class HandlerDecorator(Generic[Content]):
    """Decorates the handler of an Event, a Command or foreign content; its first parameter must take the content."""

    def __init__(self, register: Callable[[Callable[..., Any]], None]) -> None:
        self._register = register

    def __call__(
        self, function: Callable[Concatenate[Content, Parameters], Coroutine[Any, Any, Result]]
    ) -> Callable[Concatenate[Content, Parameters], Coroutine[Any, Any, Result]]:
        self._register(function)
        return function


class RequestHandlerDecorator(Generic[Answer]):
    """Decorates the handler of a Request; what it returns must be the request's reply."""

    def __init__(self, register: Callable[[Callable[..., Any]], None]) -> None:
        self._register = register

    def __call__(
        self, function: Callable[Parameters, Coroutine[Any, Any, Answer]]
    ) -> Callable[Parameters, Coroutine[Any, Any, Answer]]:
        self._register(function)
        return function


class BatchHandlerDecorator(Generic[Content]):
    """Decorates a handler of batches; its first parameter must take a list of the content."""

    def __init__(self, register: Callable[[Callable[..., Any]], None]) -> None:
        self._register = register

    def __call__(
        self, function: Callable[Concatenate[list[Content], Parameters], Coroutine[Any, Any, Ended]]
    ) -> Callable[Concatenate[list[Content], Parameters], Coroutine[Any, Any, Ended]]:
        self._register(function)
        return function
