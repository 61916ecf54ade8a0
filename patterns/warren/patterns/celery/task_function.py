"""Functions that run Celery tasks: their parameters are bound and validated as the task's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from warren.patterns.celery import kombu_json
from warren.patterns.celery.task_message import CeleryRequest, RefusedTask
from warren.sdk import App, ConfigError, Delivery, Depends, Header
from warren.sdk.extend import HandlerOutcome, format_validation_error

Parameter = inspect.Parameter


class TaskFunction:
    """Function of a task, async or plain; a plain one runs in a handler thread of the App.

    :raises ConfigError: it is a class or a generator, its annotations cannot be evaluated, or a parameter is supplied by
        `Depends`, `Header` or the SDK, which tasks do not have.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._name: str = getattr(function, "__qualname__", repr(function))
        if (
            inspect.isclass(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise ConfigError(f"the task {self._name} must be a function that returns its result")
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        hints = evaluated_hints(function)
        self._signature = inspect.signature(function)
        self._request_names = [
            name for name, hint in hints.items() if hint is CeleryRequest and name != "return"
        ]
        for name, hint in hints.items():
            marks = getattr(hint, "__metadata__", ())
            if hint in (App, Delivery) or any(isinstance(mark, Depends | Header) for mark in marks):
                raise ConfigError(
                    f"the parameter {name} of the task {self._name} is no argument of a task: take the message from a"
                    " parameter of the type CeleryRequest, other objects from the module"
                )
        self._arguments = self._signature.replace(
            parameters=[
                parameter
                for name, parameter in self._signature.parameters.items()
                if name not in self._request_names
            ]
        )
        self._adapters: dict[str, TypeAdapter[Any]] = {
            name: TypeAdapter(hints[name]) for name in self._arguments.parameters if name in hints
        }

    async def call(self, app: App, request: CeleryRequest) -> bytes:
        """Call the function and return its result as JSON.

        :raises RefusedTask: the arguments do not fit the function.
        :raises Exception: the error of the function, or the outcome that it chose.
        """
        bound = self._bind(request)
        if self._is_async:
            result: object = await self._function(*bound.args, **bound.kwargs)  # type: ignore[misc]
        else:
            result = await app.run_in_thread(self._function, *bound.args, **bound.kwargs)
            if inspect.iscoroutine(result):
                # The function is a plain decorator around an async one.
                result = await result
        if isinstance(result, HandlerOutcome):
            raise result
        return kombu_json.dumps(result)

    def _bind(self, request: CeleryRequest) -> inspect.BoundArguments:
        try:
            found = self._arguments.bind(*request.args, **request.kwargs).arguments
        except TypeError as error:
            raise RefusedTask(
                f"{self._name}(): {error}", exc_type="TypeError", exc_module="builtins"
            ) from None
        values = {name: self._validated(name, value) for name, value in found.items()}
        values |= dict.fromkeys(self._request_names, request)
        # BoundArguments passes arguments by position until one is missing, so they must be in order.
        ordered = {name: values[name] for name in self._signature.parameters if name in values}
        return inspect.BoundArguments(self._signature, ordered)

    def _validated(self, name: str, value: Any) -> object:
        """Return the value of an argument as its annotation says.

        :raises RefusedTask: it is not valid.
        """
        adapter = self._adapters.get(name)
        if adapter is None:
            return value
        try:
            match self._arguments.parameters[name].kind:
                case Parameter.VAR_POSITIONAL:
                    return tuple(adapter.validate_python(each) for each in value)
                case Parameter.VAR_KEYWORD:
                    return {key: adapter.validate_python(each) for key, each in value.items()}
                case _:
                    return adapter.validate_python(value)
        except ValidationError as error:
            raise RefusedTask(
                f"{self._name}(): the argument {name!r} is not valid: {format_validation_error(error)}",
                exc_type="ValueError",
                exc_module="builtins",
            ) from None


def evaluated_hints(function: Callable[..., object]) -> Mapping[str, Any]:
    """Return the annotations of a function, with those that are strings evaluated.

    :raises ConfigError: a name in them is unknown in the function's module.
    """
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"an annotation of the task {name} is unknown in its module ({error}): define it at the top level"
        ) from None


__all__ = ["TaskFunction", "evaluated_hints"]
