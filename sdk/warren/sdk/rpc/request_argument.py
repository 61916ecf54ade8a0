"""Check of the request that `app.call` and `app.gather` take."""

from __future__ import annotations

from warren.sdk.errors import ConfigError
from warren.sdk.messages.types import Command, Event, Message, Request, Scatter


def check_call(message: object) -> None:
    """Check that `app.call` was given a Request.

    :raises ConfigError: if it was given anything else; the text says what to use instead.
    """
    if isinstance(message, Scatter):
        raise ConfigError(
            f"app.call takes a Request, and {type(message).__name__} is a Scatter: use app.gather"
        )
    if not isinstance(message, Request):
        raise ConfigError(_refusal("app.call", "a Request", message))


def check_gather(message: object) -> None:
    """Check that `app.gather` was given a Request or a Scatter.

    :raises ConfigError: if it was given anything else; the text says what to use instead.
    """
    if not isinstance(message, Request | Scatter):
        raise ConfigError(_refusal("app.gather", "a Request or Scatter", message))


def _refusal(function: str, wanted: str, message: object) -> str:
    if isinstance(message, type):
        name = message.__name__
        return f"{function} takes {wanted}, not the class {name}: write {function}({name}(...))"
    name = type(message).__name__
    if isinstance(message, Command):
        return (
            f"{function} takes {wanted}, and {name} is a Command, which has no reply:"
            f" app.publish it, or write class {name}(Request[...], queue=...)"
        )
    if isinstance(message, Event):
        return f"{function} takes {wanted}, and {name} is an Event, which has no reply: app.publish it"
    if isinstance(message, Message):
        return f"{function} takes {wanted}, and {name} is a Message without a reply: app.publish it"
    return f"{function} takes {wanted}, not a {name}"
