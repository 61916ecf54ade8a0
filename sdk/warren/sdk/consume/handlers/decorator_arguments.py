"""Check of the arguments of decorators for handlers: a message class, and options that exist."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_args

from pydantic import BaseModel, PydanticSchemaGenerationError

from warren.sdk.consume.handlers.signature import caller_names, type_hints
from warren.sdk.errors import ConfigError
from warren.sdk.keywords import describe_unknown
from warren.sdk.messages.codec import adapter_of
from warren.sdk.messages.types import Message, PointToPointMessage


def check_decorated(
    decorator: str, message: object, *, what: str = "the message class", example: str = ""
) -> None:
    """Check that a decorator was called with its message class, and not with the function that it decorates, as happens
    without parentheses.

    :param decorator: name of the decorator, such as `app.handle`.
    :param message: first argument of the decorator.
    :param what: what that argument should be.
    :param example: how to write the decorator, if not by its name.
    :raises ConfigError: if it is a function; the text names the message class that its annotation names.
    """
    if not (inspect.isroutine(message) or isinstance(message, functools.partial)):
        return
    name = getattr(message, "__name__", repr(message))
    arguments = "..."
    parameters = _parameters(message)
    if parameters:
        hint = type_hints(message, caller_names()).get(parameters[0].name)
        hint = next(iter(get_args(hint)), hint)
        if isinstance(hint, type):
            has_queue = bool(example) or issubclass(hint, PointToPointMessage)
            arguments = hint.__name__ if has_queue else f"{hint.__name__}, queue=..."
    raise ConfigError(f"{decorator} takes {what}: write @{example or decorator}({arguments}) above {name}")


def check_message_class(function: str, message: object) -> None:
    """Check that an argument is a message class.

    :param function: name of the function that takes it, such as `app.publishes`.
    :raises ConfigError: if it is anything else, for example a message.
    """
    if isinstance(message, type) and issubclass(message, Message):
        return
    if isinstance(message, Message):
        kind = type(message).__name__
        raise ConfigError(f"{function} takes message classes, not a {kind}: write {function}({kind})")
    shown = message.__name__ if isinstance(message, type) else repr(message)
    raise ConfigError(f"{function} takes message classes, not {shown}")


def check_message(decorator: str, message: object) -> None:
    """Check that the first argument of a decorator is a message class, or a type that pydantic reads.

    :param decorator: name of the decorator, such as `app.handle`.
    :raises ConfigError: if it is anything else, for example a message, or the function to decorate.
    """
    check_decorated(decorator, message)
    if isinstance(message, Message):
        kind = type(message).__name__
        raise ConfigError(f"{decorator} takes a message class, not a {kind}: write {decorator}({kind})")
    if isinstance(message, type) and issubclass(message, BaseModel):
        return
    readable = not isinstance(message, str)
    if readable:
        try:
            adapter_of(message)
        except PydanticSchemaGenerationError:
            readable = False
    if not readable:
        shown = message.__name__ if isinstance(message, type) else repr(message)
        raise ConfigError(f"{decorator} takes a message class, or a type that pydantic reads, not {shown}")


def check_options(decorator: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Check that all options of a decorator exist.

    :param decorator: name of the decorator, such as `app.handle`.
    :raises ConfigError: if one does not; the text names the option that was probably meant.
    """
    known = list(known)
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(describe_unknown(decorator, unknown, known, "option"))


def _parameters(function: Callable[..., Any] | object) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
