"""Depends: what a handler takes beside its message, made anew for each message and cleaned up after it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from enum import Enum
from types import FrameType
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, TypeAdapter

from warren.sdk.consume.delivery import Delivery
from warren.sdk.errors import ConfigError, Undecodable
from warren.sdk.messages.codec import adapter_of
from warren.sdk.messages.validation_errors import format_validation_error

Function = Callable[..., Any]


class Depends:
    """`Annotated[Ledger, Depends(open_ledger)]`: the parameter is what the function returns or yields.

    The function may be sync (it runs on the event loop and must not block), async, a generator or an async generator,
    and may have dependencies of its own. What follows its `yield` runs when the handler has ended, with the handler's
    exception if there is one; if it raises, the handler has failed.

    :param cache: make it once for each message, however many ask for it.
    """

    __slots__ = ("cache", "function")

    def __init__(self, function: Function, *, cache: bool = True) -> None:
        if not callable(function):
            raise ConfigError(f"Depends takes a function, not {function!r}")
        self.function: Function = function
        self.cache: bool = cache


class Header:
    """`Annotated[str, Header("tenant")]`: a header of the message, as the type says.

    A message without it, where the parameter has no default, or with another type, is undecodable.

    :param name: of the header; by default the parameter's, with `-` for `_`.
    """

    __slots__ = ("name",)

    def __init__(self, name: str | None = None) -> None:
        self.name: str | None = name


class Scope:
    """One message while it is handled: what the parameters are filled from."""

    __slots__ = ("delivery", "message", "values")

    def __init__(self, message: Any, delivery: Any, steps: int) -> None:
        self.message: Any = message
        self.delivery: Any = delivery
        self.values: list[Any] = [None] * steps


Get = Callable[[Scope], Any]


class How(Enum):
    """How a dependency is made."""

    CALLED = "called"
    ENTERED = "entered"
    ENTERED_ASYNC = "entered_async"


class Step(NamedTuple):
    """A dependency to be made: its function, how, and what fills its parameters."""

    function: Function
    how: How
    arguments: dict[str, Get]


class Resolved(NamedTuple):
    """Dependencies in the order in which they are made, and what then fills the handler's parameters."""

    steps: tuple[Step, ...]
    arguments: dict[str, Get]
    enters: bool


class Plan:
    """What a handler takes beside its message, resolved at its registration.

    :param function: the handler; its first parameter takes the message.
    :param kind: what the handler takes.
    :param context: what is found by its type, the same for every message.
    :param overrides: functions that stand in for others; after a change, `resolve` anew.
    :param local: the names where the handler is defined, for annotations that are text.
    :param delivery: the type under which the delivery is found.
    :raises ConfigError: if a parameter cannot be filled, or a dependency depends on itself.
    """

    def __init__(
        self,
        function: Function,
        kind: Any,
        *,
        context: Mapping[type, object],
        overrides: Mapping[Function, Function],
        local: Mapping[str, Any],
        delivery: Any = Delivery,
    ) -> None:
        self._function = function
        self._kind = kind
        self._context = context
        self._overrides = overrides
        self._local = local
        self._delivery = delivery
        self.resolve()

    def resolve(self) -> None:
        """Find anew what fills the parameters; messages that are being handled keep what they have."""
        graph = Graph(self._kind, self._context, self._overrides, self._local, self._delivery)
        arguments = graph.arguments(self._function, skip=1, path=(), what="handler")
        enters = any(step.how is not How.CALLED for step in graph.steps)
        self._resolved = Resolved(tuple(graph.steps), arguments, enters)

    @property
    def empty(self) -> bool:
        """The handler takes nothing but its message."""
        return not self._resolved.arguments

    async def call(self, function: Function, message: Any, delivery: Any) -> Any:
        """Make what the handler depends on, run it, and clean up.

        :param function: the handler, or what a test put around it.
        """
        steps, arguments, enters = self._resolved
        scope = Scope(message, delivery, len(steps))
        if not enters:
            for index, step in enumerate(steps):
                scope.values[index] = await _called(step, scope)
            return await _run(function, arguments, scope)
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            try:
                for index, step in enumerate(steps):
                    made = await _called(step, scope)
                    if step.how is How.ENTERED:
                        made = stack.enter_context(made)
                    elif step.how is How.ENTERED_ASYNC:
                        made = await stack.enter_async_context(made)
                    scope.values[index] = made
                result = await _run(function, arguments, scope)
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            # A clean-up that takes the exception for itself does not make a success of it.
            raise failure
        return result


class Graph:
    """The dependencies of one handler, found depth first, so that each comes after what it needs."""

    def __init__(
        self,
        kind: Any,
        context: Mapping[type, object],
        overrides: Mapping[Function, Function],
        local: Mapping[str, Any],
        delivery: Any,
    ) -> None:
        self.steps: list[Step] = []
        self._known: dict[Function, int] = {}
        self._kind = kind
        self._context = context
        self._overrides = overrides
        self._local = local
        self._delivery = delivery

    def arguments(
        self, function: Function, *, skip: int, path: tuple[Function, ...], what: str
    ) -> dict[str, Get]:
        """What fills the parameters of a function, by their names."""
        name = getattr(function, "__qualname__", repr(function))
        hints = hints_of(function, self._local)
        arguments: dict[str, Get] = {}
        for parameter in list(_signature(function).parameters.values())[skip:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            get = self._get(parameter, hints.get(parameter.name), path)
            if get is None and parameter.default is parameter.empty:
                raise ConfigError(f"the {what} {name} has a parameter {parameter.name!r} that nothing fills")
            if get is not None:
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    raise ConfigError(f"the {what} {name} has a positional-only parameter {parameter.name!r}")
                arguments[parameter.name] = get
        return arguments

    def _get(self, parameter: inspect.Parameter, hint: Any, path: tuple[Function, ...]) -> Get | None:
        if get_origin(hint) is Annotated:
            kind, *marks = get_args(hint)
            for mark in marks:
                if isinstance(mark, Depends):
                    return self._step(mark, path)
                if isinstance(mark, Header):
                    if self._delivery is not Delivery:
                        raise ConfigError("a handler of batches has no Header: it may take a list[Delivery]")
                    return _header(mark, parameter, kind)
            hint = kind
        if hint == self._delivery or hint == getattr(self._delivery, "__name__", None):
            return lambda scope: scope.delivery
        if path and _takes(hint, self._kind):
            return lambda scope: scope.message
        if isinstance(hint, type):
            for value in self._context.values():
                if hint is not object and isinstance(value, hint):
                    return _constant(value)
        return None

    def _step(self, mark: Depends, path: tuple[Function, ...]) -> Get:
        function = self._overrides.get(mark.function, mark.function)
        if function in path:
            names = " -> ".join(getattr(one, "__qualname__", repr(one)) for one in (*path, function))
            raise ConfigError(f"a dependency depends on itself: {names}")
        index = self._known.get(function) if mark.cache else None
        if index is None:
            arguments = self.arguments(function, skip=0, path=(*path, function), what="dependency")
            index = len(self.steps)
            self.steps.append(_step(function, arguments))
            if mark.cache:
                self._known[function] = index
        return _value(index)


def _run(function: Function, arguments: dict[str, Get], scope: Scope) -> Awaitable[Any]:
    result: Awaitable[Any] = function(scope.message, **{name: get(scope) for name, get in arguments.items()})
    return result


async def _called(step: Step, scope: Scope) -> Any:
    made = step.function(**{name: get(scope) for name, get in step.arguments.items()})
    return await made if inspect.iscoroutine(made) else made


def _step(function: Function, arguments: dict[str, Get]) -> Step:
    if inspect.isasyncgenfunction(function):
        return Step(asynccontextmanager(function), How.ENTERED_ASYNC, arguments)
    if inspect.isgeneratorfunction(function):
        return Step(contextmanager(function), How.ENTERED, arguments)
    return Step(function, How.CALLED, arguments)


def _takes(hint: Any, kind: Any) -> bool:
    """Whether a dependency's parameter of that type takes the message."""
    if isinstance(hint, type) and isinstance(kind, type) and issubclass(hint, BaseModel):
        return issubclass(kind, hint)
    return bool(hint == kind) and hint is not None


def _header(mark: Header, parameter: inspect.Parameter, kind: Any) -> Get:
    name = mark.name or parameter.name.replace("_", "-")
    adapter: TypeAdapter[Any] = adapter_of(kind)
    default = parameter.default

    def get(scope: Scope) -> Any:
        value = scope.delivery.headers.get(name, parameter.empty)
        if value is parameter.empty:
            if default is parameter.empty:
                raise Undecodable(ValueError(f"the message has no header {name!r}"))
            return default
        try:
            return adapter.validate_python(value)
        except ValueError as error:
            raise Undecodable(
                ValueError(
                    f"the header {name!r} is not what its handler takes: {format_validation_error(error)}"
                )
            ) from None

    return get


def _value(index: int) -> Get:
    return lambda scope: scope.values[index]


def _constant(value: object) -> Get:
    return lambda scope: value


def _signature(function: Function) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Some built-in classes have none; they are called without arguments.
        return inspect.Signature()


def hints_of(function: Function, local: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of a function's parameters; those that are text and name what only a type checker sees stay text.

    :param local: names beside those of the function's module.
    """
    source: Any = inspect.unwrap(function)
    if isinstance(source, type):
        source = inspect.getattr_static(source, "__init__")
    source = getattr(source, "__func__", source)
    names = {**getattr(source, "__globals__", {}), **local}
    hints: dict[str, Any] = {}
    for name, hint in getattr(source, "__annotations__", {}).items():
        if isinstance(hint, str):
            with suppress(NameError):
                hint = eval(hint, names)  # as typing.get_type_hints does
        hints[name] = hint
    return hints


def caller_names() -> dict[str, Any]:
    """The local names of the function that called the SDK: what is defined there may be an annotation's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("warren.sdk"):
        frame = frame.f_back
    if frame is None or frame.f_locals is frame.f_globals:
        return {}
    return dict(frame.f_locals)
