"""Dependency injection for handlers: `Depends` and `Header`, created for each message and cleaned up after it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import Enum
from functools import partial
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from warren.core.signatures import signature_of
from warren.sdk.consume.delivery import Delivery
from warren.sdk.consume.fastapi_markers import needed_request, read_depends
from warren.sdk.consume.handler_threads import HandlerThread
from warren.sdk.consume.handlers.signature import is_async, type_hints, undefined_name
from warren.sdk.errors import ConfigError, Undecodable
from warren.sdk.messages.type_codec import type_codec
from warren.sdk.messages.validation_errors import format_validation_error

Function = Callable[..., Any]


class Depends:
    """A parameter that a function supplies: `Annotated[Ledger, Depends(open_ledger)]`.

    The function may be plain, async, a generator or an async generator. For a handler that is a plain function, plain
    dependencies run in its thread; for an async one they run on the event loop, and must not block. The function may
    have dependencies of its own. The parameter gets what it returns or yields. The code after a `yield` runs when the
    handler has ended, with the handler's exception if there is one; if that code raises, the handler has failed. A generator
    function may have decorators around it, if they use `functools.wraps` and return what it returns.

    :param cache: call the function once for each message, even if several parameters depend on it.
    :raises ConfigError: if `function` is not callable.
    """

    __slots__ = ("cache", "function")

    def __init__(self, function: Function, *, cache: bool = True) -> None:
        if not callable(function):
            raise ConfigError(f"Depends takes a function, not {function!r}")
        self.function: Function = function
        self.cache: bool = cache


class Header:
    """A parameter that takes a header of the message, validated as its type: `Annotated[str, Header("tenant")]`.

    A message is undecodable if the header has another type, or is missing and the parameter has no default.

    :param name: name of the header; by default the parameter's name with `-` for `_`.
    """

    __slots__ = ("name",)

    def __init__(self, name: str | None = None) -> None:
        self.name: str | None = name


class RunValue:
    """A value for parameters with its type that exists while the App runs: what the lifespan of the App yields.

    :param kind: type of the value, as the lifespan is annotated; None if no parameter gets it.
    """

    __slots__ = ("_kind", "value")

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.value: Any = None

    def fits(self, hint: Any) -> bool:
        """Return whether a parameter with this type hint gets the value: the hint is its type, or a base class of it."""
        kind = self._kind
        if kind is None or hint is None or hint is object or hint is Any:
            return False
        if hint == kind:
            return True
        try:
            return isinstance(hint, type) and isinstance(kind, type) and issubclass(kind, hint)
        except TypeError:
            # A protocol or TypedDict that is not checked at run time.
            return False


class MessageScope:
    """Values from which the arguments of a handler are taken for one
    message: the message, its delivery, its dependencies.

    :ivar values: results of the functions that supply dependencies, in the order in which these functions run.
    """

    __slots__ = ("delivery", "message", "values")

    def __init__(self, message: Any, delivery: Any, providers: int) -> None:
        self.message: Any = message
        self.delivery: Any = delivery
        self.values: list[Any] = [None] * providers


Getter = Callable[[MessageScope], Any]
"""Function that returns the value of one parameter for the message that is being handled."""


class ProviderKind(Enum):
    """Kind of a provider: a plain function, or a generator that is used as a context manager."""

    FUNCTION = "function"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async_generator"
    WRAPPED_GENERATOR = "wrapped_generator"
    """A function that wraps a generator function (`functools.wraps`): only its result shows whether it is a generator."""


class Provider(NamedTuple):
    """A function that creates a dependency.

    :param arguments: for each parameter of the function, a `Getter` that returns its value for a message.
    :param is_async: the function runs on the event loop, also for a handler in a thread.
    """

    function: Function
    kind: ProviderKind
    arguments: dict[str, Getter]
    is_async: bool

    @classmethod
    def of(cls, function: Function, arguments: dict[str, Getter]) -> Provider:
        """Return a provider that calls a function.

        An async or plain generator function is turned into a factory of context
        managers, so that the code after its `yield` can run later.

        :param arguments: for each parameter of the function, a `Getter` that returns its value for a message.
        """
        # An object with `__call__`, as many dependencies of FastAPI are, may be a generator function as well.
        called = getattr(function, "__call__", None)  # noqa: B004
        if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(called):
            return cls(asynccontextmanager(function), ProviderKind.ASYNC_GENERATOR, arguments, True)
        if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(called):
            return cls(contextmanager(function), ProviderKind.GENERATOR, arguments, False)
        wrapped = _wrapped_function(function)
        if inspect.isasyncgenfunction(wrapped) or inspect.isgeneratorfunction(wrapped):
            on_loop = is_async(function) or inspect.isasyncgenfunction(wrapped)
            return cls(function, ProviderKind.WRAPPED_GENERATOR, arguments, on_loop)
        return cls(function, ProviderKind.FUNCTION, arguments, is_async(function))

    async def call(self, scope: MessageScope) -> Any:
        """Call the function, which is no generator, with its arguments for one message on the event loop; return its
        result.
        """
        made = self.function(**{name: get(scope) for name, get in self.arguments.items()})
        return await made if inspect.iscoroutine(made) else made

    async def create(self, scope: MessageScope, stack: AsyncExitStack, thread: HandlerThread | None) -> Any:
        """Call the function with its arguments for one message, and return its result; that of a generator function is
        the value that it yields.

        :param stack: gets the code after the `yield` of a generator function.
        :param thread: thread of a handler that is a plain function: plain functions and generators run in it. None for
            an async handler, whose dependencies all run on the event loop.
        """
        arguments = {name: get(scope) for name, get in self.arguments.items()}
        if thread is None or self.is_async:
            made = self.function(**arguments)
        else:
            made = await thread.run(self.function, **arguments)
        kind = self.kind
        if kind is ProviderKind.WRAPPED_GENERATOR:
            made = await made if inspect.iscoroutine(made) else made
            if inspect.isasyncgen(made):
                kind, made = ProviderKind.ASYNC_GENERATOR, asynccontextmanager(_returning(made))()
            elif inspect.isgenerator(made):
                kind, made = ProviderKind.GENERATOR, contextmanager(_returning(made))()
        if kind is ProviderKind.ASYNC_GENERATOR:
            return await stack.enter_async_context(made)
        if kind is ProviderKind.GENERATOR:
            if thread is None:
                return stack.enter_context(made)
            value = await thread.run(made.__enter__)
            stack.push_async_exit(partial(thread.run, made.__exit__))
            return value
        return await made if inspect.iscoroutine(made) else made


class ResolvedDependencies(NamedTuple):
    """Everything that is needed to call a handler with its dependencies, computed once and used for each message.

    :ivar providers: functions that create dependencies, in the order in which they have to run.
    :ivar arguments: for each parameter of the handler except the message, a `Getter` that returns its value.
    :ivar has_cleanup: a provider is a generator, whose code after its `yield` has to run.
    """

    providers: tuple[Provider, ...]
    arguments: dict[str, Getter]
    has_cleanup: bool


class DependencyInjector:
    """Invoker of one handler: for each message it creates the dependencies, calls the handler with them, and cleans
    them up. The dependencies are resolved once, when the handler is registered.

    :param function: the handler; its first parameter takes the message.
    :param kind: type of the message that the handler takes.
    :param context: objects, by type, that are passed to parameters annotated with their type, such as the App; the same
        for every message.
    :param overrides: replacements of functions that supply dependencies, by the replaced function; call `resolve` after
        a change.
    :param local_names: local names at the place where the handler is defined, to evaluate annotations that are strings.
    :param delivery: annotation of the parameters that get the delivery: `Delivery`, or `list[Delivery]` of a batch
        handler.
    :raises ConfigError: if nothing supplies a parameter, or a dependency depends on itself.
    """

    def __init__(
        self,
        function: Function,
        kind: Any,
        *,
        context: Mapping[type, object],
        overrides: Mapping[Function, Function],
        local_names: Mapping[str, Any],
        delivery: Any = Delivery,
    ) -> None:
        self._function = function
        self._kind = kind
        self._context = context
        self._overrides = overrides
        self._local_names = local_names
        self._delivery = delivery
        self.resolve()

    def resolve(self) -> None:
        """Resolve the dependencies again, after a change of the overrides. Messages
        that are being handled keep the old ones.
        """
        graph = DependencyGraph(self._kind, self._context, self._overrides, self._local_names, self._delivery)
        arguments = graph.arguments(self._function, skip=1, path=(), role="handler")
        has_cleanup = any(provider.kind is not ProviderKind.FUNCTION for provider in graph.providers)
        self._resolved = ResolvedDependencies(tuple(graph.providers), arguments, has_cleanup)

    @property
    def is_empty(self) -> bool:
        """True if the handler has no parameter except its message, so that nothing has to be injected."""
        return not self._resolved.arguments

    async def call(
        self, function: Function, message: Any, delivery: Any, thread: HandlerThread | None = None, /
    ) -> Any:
        """Create the dependencies, call the function, clean up, and return the function's result.

        :param function: the handler, or the wrapper that a test puts around it.
        :param message: the decoded message; for a batch handler, the list of messages.
        :param delivery: its `Delivery`; for a batch handler, the list of them.
        :param thread: thread in which a function that is not async runs, with its plain dependencies; None for an async
            one.
        """
        providers, arguments, has_cleanup = self._resolved
        scope = MessageScope(message, delivery, len(providers))
        if not has_cleanup and thread is None:
            for index, provider in enumerate(providers):
                scope.values[index] = await provider.call(scope)
            return await _run(function, arguments, scope)
        failure: BaseException | None = None
        async with AsyncExitStack() as stack:
            try:
                for index, provider in enumerate(providers):
                    scope.values[index] = await provider.create(scope, stack, thread)
                if thread is None:
                    result = await _run(function, arguments, scope)
                else:
                    named = {name: get(scope) for name, get in arguments.items()}
                    result = await thread.run(function, scope.message, **named)
                    if inspect.iscoroutine(result):
                        result = await result
            except BaseException as error:
                failure = error
                raise
        if failure is not None:
            # A generator that swallows the handler's exception must not turn the failure into a success.
            raise failure
        return result


class DependencyGraph:
    """The dependencies of one handler, including those of its dependencies.

    :ivar providers: functions that create them, ordered so that each comes after those whose results it needs.
    """

    def __init__(
        self,
        kind: Any,
        context: Mapping[type, object],
        overrides: Mapping[Function, Function],
        local_names: Mapping[str, Any],
        delivery: Any,
    ) -> None:
        self.providers: list[Provider] = []
        self._cached: dict[Function, int] = {}
        """Index in `providers` of each function whose result is cached."""
        self._kind = kind
        self._context = context
        self._overrides = overrides
        self._local_names = local_names
        self._delivery = delivery

    def arguments(
        self, function: Function, *, skip: int, path: tuple[Function, ...], role: str
    ) -> dict[str, Getter]:
        """Return a `Getter` for each parameter of a function, by
        name; add the providers of its dependencies to `providers`.

        :param skip: number of first parameters to leave out.
        :param path: the functions that depend on this one, outermost first.
        :param role: `handler` or `dependency`, for error texts.
        """
        name = getattr(function, "__qualname__", repr(function))
        hints = type_hints(function, self._local_names)
        arguments: dict[str, Getter] = {}
        for parameter in list(_signature(function).parameters.values())[skip:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            getter = self._getter(parameter, hints.get(parameter.name), path, f"the {role} {name}")
            if getter is None and parameter.default is parameter.empty:
                unknown = undefined_name(function, hints.get(parameter.name), self._local_names)
                if unknown is not None:
                    raise ConfigError(
                        f"the {role} {name} has a parameter {parameter.name!r} whose annotation names {unknown!r}, which"
                        " is not defined when the program runs: import it outside of `if TYPE_CHECKING`"
                    )
                raise ConfigError(
                    f"the {role} {name} has a parameter {parameter.name!r} that nothing fills: annotate it with"
                    f" Annotated[X, Depends(f)], where f returns the value, with Annotated[str, Header()], Delivery or"
                    " App, or give it a default"
                )
            if getter is not None:
                if parameter.kind is parameter.POSITIONAL_ONLY:
                    raise ConfigError(f"the {role} {name} has a positional-only parameter {parameter.name!r}")
                arguments[parameter.name] = getter
        return arguments

    def _getter(
        self, parameter: inspect.Parameter, hint: Any, path: tuple[Function, ...], owner: str
    ) -> Getter | None:
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        # FastAPI reads its markers from defaults too: `session: Session = Depends(get_session)`.
        for mark in (*marks, parameter.default):
            depends = read_depends(mark)
            if depends is not None:
                function = kind if depends.function is None else depends.function
                return self._dependency(Depends(function, cache=depends.cache), path)
        if (needed := needed_request(kind, (*marks, parameter.default))) is not None:
            raise ConfigError(
                f"{owner} takes {needed} of FastAPI (parameter {parameter.name!r}), but a message comes without an HTTP"
                " request: move what handlers share to a function without it"
            )
        if marks:
            for mark in marks:
                if isinstance(mark, Depends):
                    return self._dependency(mark, path)
                if isinstance(mark, Header):
                    if self._delivery is not Delivery:
                        raise ConfigError(
                            "a batch handler has no Header parameters: take a list[Delivery] instead"
                        )
                    return _header(mark, parameter, kind)
            hint = kind
        if hint == self._delivery or hint == getattr(self._delivery, "__name__", None):
            return lambda scope: scope.delivery
        if path and _accepts(hint, self._kind):
            return lambda scope: scope.message
        for value in self._context.values():
            if isinstance(value, RunValue) and value.fits(hint):
                return _run_value(value)
        if isinstance(hint, type):
            for value in self._context.values():
                if hint is not object and isinstance(value, hint):
                    return _constant(value)
        return None

    def _dependency(self, mark: Depends, path: tuple[Function, ...]) -> Getter:
        """Return a function that reads from a `MessageScope` the value that `Depends` supplies; add the provider that
        creates the value.

        Parameters that depend on the same function share one provider, except with `Depends(cache=False)`.

        :param path: functions whose dependencies are being resolved, the outermost first, to detect a cycle.
        :raises ConfigError: if the dependency depends on itself.
        """
        function = self._overrides.get(mark.function, mark.function)
        if function in path:
            names = " -> ".join(getattr(one, "__qualname__", repr(one)) for one in (*path, function))
            raise ConfigError(f"a dependency depends on itself: {names}")
        index = self._cached.get(function) if mark.cache else None
        if index is None:
            arguments = self.arguments(function, skip=0, path=(*path, function), role="dependency")
            index = len(self.providers)
            self.providers.append(Provider.of(function, arguments))
            if mark.cache:
                self._cached[function] = index
        return _value(index)


def _run(function: Function, arguments: dict[str, Getter], scope: MessageScope) -> Awaitable[Any]:
    result: Awaitable[Any] = function(scope.message, **{name: get(scope) for name, get in arguments.items()})
    return result


def _wrapped_function(function: Function) -> Function:
    """Return the innermost function that decorators with `functools.wraps` have wrapped, also that of an object with
    `__call__`; the function itself if there is none.
    """
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = getattr(function, "__call__", function)  # noqa: B004
    wrapped: Function = inspect.unwrap(function)
    return wrapped


def _returning(value: Any) -> Callable[[], Any]:
    return lambda: value


def _accepts(hint: Any, kind: Any) -> bool:
    """Return whether a parameter of a dependency receives the message itself: its type hint is the type of the message
    or, for pydantic models, a base class of it.

    :param hint: type hint of the parameter.
    :param kind: type of the message.
    """
    if isinstance(hint, type) and isinstance(kind, type) and issubclass(hint, BaseModel):
        return issubclass(kind, hint)
    return bool(hint == kind) and hint is not None


def _header(mark: Header, parameter: inspect.Parameter, kind: Any) -> Getter:
    name = mark.name or parameter.name.replace("_", "-")
    codec = type_codec(kind)
    default = parameter.default

    def get(scope: MessageScope) -> Any:
        value = scope.delivery.headers.get(name, parameter.empty)
        if value is parameter.empty:
            if default is parameter.empty:
                raise Undecodable(ValueError(f"the message has no header {name!r}"))
            return default
        try:
            return codec.read_object(value)
        except ValueError as error:
            raise Undecodable(
                ValueError(
                    f"the header {name!r} is not what its handler takes: {format_validation_error(error)}"
                )
            ) from None

    return get


def _value(index: int) -> Getter:
    return lambda scope: scope.values[index]


def _run_value(run_value: RunValue) -> Getter:
    return lambda scope: run_value.value


def _constant(value: object) -> Getter:
    return lambda scope: value


def _signature(function: Function) -> inspect.Signature:
    try:
        return signature_of(function)
    except (TypeError, ValueError):
        # Some built-in classes have no signature; they are called without arguments.
        return inspect.Signature()
