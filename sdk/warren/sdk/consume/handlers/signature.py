"""Handler signatures: type hints, and the check that a function can handle a message type."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, ForwardRef, get_args

from pydantic import BaseModel

from warren.core.signatures import annotations_of, signature_of
from warren.sdk.errors import ConfigError
from warren.sdk.messages.types import RequestMessage
from warren.sdk.rpc.reply_annotation import check_reply_annotation


def check_signature(function: Callable[..., Any], kind: Any, local_names: Mapping[str, Any]) -> None:
    """Check that a function can handle a message type.

    :param kind: type of the messages that the function has to take.
    :param local_names: local names at the place where the function is defined,
        to evaluate annotations that are strings.
    :raises ConfigError: if the function is a generator or a class, its first parameter does not take the message, or the
        annotation of its result contradicts the reply type of a request.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isclass(function):
        raise ConfigError(f"the handler {name} is a class: decorate a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"the handler {name} is a generator: return the result, do not yield")
    parameters = list(signature_of(function).parameters.values())
    if not parameters:
        raise ConfigError(f"the handler {name} must take the message as its first parameter")
    hints = type_hints(function, local_names)
    if isinstance(kind, type) and issubclass(kind, RequestMessage):
        check_reply_annotation(name, kind, hints.get("return", Any))
    first = hints.get(parameters[0].name)
    if not isinstance(first, type) or not isinstance(kind, type):
        return
    if issubclass(first, BaseModel) and not issubclass(kind, first):
        raise ConfigError(f"the handler {name} takes {first.__name__}, but is registered for {kind.__name__}")


def check_async(function: Callable[..., Any]) -> None:
    """Check that a function is async, for patterns that call it on the event loop.

    :raises ConfigError: if it is a plain function.
    """
    if not is_async(function):
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"the handler {name} must be an async function: only app.handle and Partitions run a plain one, in a thread"
        )


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of the function returns a coroutine; other functions run in a thread."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def type_hints(function: Callable[..., Any], local_names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations of a function by parameter name (and `return`); those that are strings are evaluated.

    In contrast to `typing.get_type_hints`, a string that cannot be evaluated
    stays a string: its names may exist under `TYPE_CHECKING` only.

    :param local_names: names that annotations may use, beside those of the function's module.
    """
    source = _annotated(function)
    names = {**getattr(source, "__globals__", {}), **local_names}
    hints: dict[str, Any] = {}
    for name, hint in annotations_of(source).items():
        if isinstance(hint, str):
            with suppress(NameError):
                hint = eval(hint, names)  # as typing.get_type_hints does
        hints[name] = hint
    return hints


def undefined_name(function: Callable[..., Any], hint: Any, local_names: Mapping[str, Any]) -> str | None:
    """Return the name for which an annotation could not be evaluated; None if there is none.

    :param hint: the annotation, as `type_hints` returns it.
    """
    if isinstance(hint, str):
        try:
            eval(hint, {**getattr(_annotated(function), "__globals__", {}), **local_names})
        except NameError as error:
            return error.name or hint
        return None
    # Python 3.14 evaluates the other parts of an annotation.
    parts = (each.__forward_arg__ for each in get_args(hint) if isinstance(each, ForwardRef))
    return next(parts, None)


def _annotated(function: Callable[..., Any]) -> Any:
    """Return the function that has the annotations of a callable: its `__init__`, `__call__`, or what a partial calls."""
    source: Any = inspect.unwrap(function)
    if isinstance(source, type):
        source = inspect.getattr_static(source, "__init__")
    elif not hasattr(source, "__code__") and not hasattr(source, "__func__"):
        # An object that is called: a functools.partial, or an instance of a class with `__call__`.
        source = getattr(source, "func", None) or getattr(type(source), "__call__", source)  # noqa: B004
    return getattr(source, "__func__", source)


def caller_names() -> dict[str, Any]:
    """Return the local variables, by name, of the function that called into the SDK, to evaluate annotations that refer
    to them; empty if the call came from module level.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("warren.sdk"):
        frame = frame.f_back
    if frame is None or frame.f_locals is frame.f_globals:
        return {}
    return dict(frame.f_locals)
