"""Check of the arguments of decorators for handlers: a message class, and options that exist."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from pydantic import BaseModel, PydanticSchemaGenerationError

from warren.core.signatures import signature_of
from warren.sdk.consume.handlers.signature import caller_names, type_hints
from warren.sdk.errors import ConfigError
from warren.sdk.keywords import describe_unknown
from warren.sdk.messages.type_codec import type_codec
from warren.sdk.messages.types import Message, PointToPointMessage

IDEMPOTENCY = ("register", "run", "on_stop")
"""Methods of an `Idempotency`."""

MISSING: Final = object()
"""Value of an argument that the caller left out."""


def check_arguments(decorator: str, message: object, positional: tuple[object, ...]) -> None:
    """Check that a decorator got its message class, and everything else by name.

    :param decorator: name of the decorator, such as `app.handle`.
    :param message: its first argument; `MISSING` if there is none.
    :param positional: its further arguments without a name.
    :raises ConfigError: if the message class is missing, or another argument has no name; the text says what to write.
    """
    if message is MISSING:
        raise ConfigError(
            f"{decorator} takes the message class: write @{decorator}(ShipOrder) for a Command or Request, and"
            f" @{decorator}(OrderPlaced, queue='billing') for an Event"
        )
    if not positional:
        return
    name = getattr(message, "__name__", "...")
    if isinstance(message, type) and issubclass(message, PointToPointMessage):
        raise ConfigError(
            f"{decorator} takes options by name only, and {name} has its own queue {message.wire_key!r}: write"
            f" @{decorator}({name})"
        )
    given = positional[0]
    queue = repr(given) if isinstance(given, str) else "..."
    raise ConfigError(f"{decorator} takes options by name only: write @{decorator}({name}, queue={queue})")


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
            type_codec(message)
        except PydanticSchemaGenerationError:
            readable = False
    if not readable:
        shown = message.__name__ if isinstance(message, type) else repr(message)
        raise ConfigError(f"{decorator} takes a message class, or a type that pydantic reads, not {shown}")


def check_idempotency(once: object) -> None:
    """Check that `once=` is an idempotency, such as `Once(store)`, or None.

    :raises ConfigError: if it is anything else, such as True or a store; the text says what to write.
    """
    if once is None or (not isinstance(once, type) and all(hasattr(once, name) for name in IDEMPOTENCY)):
        return
    shown = once.__name__ if isinstance(once, type) else repr(once) if isinstance(once, bool | int) else None
    if isinstance(once, type) and hasattr(once, "run"):
        raise ConfigError(f"once={shown} is a class: write once={shown}(...)")
    kind = f"of the type {type(once).__name__}" if shown is None else shown
    raise ConfigError(
        f"once= takes an idempotency, not {'an object ' if shown is None else ''}{kind}: write once=Once(store), with a"
        " store such as RedisStore('redis://HOST'), or once=NaturallyIdempotent; all are in warren.patterns"
    )


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
        return list(signature_of(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
