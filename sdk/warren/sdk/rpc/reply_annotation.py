"""Check of the annotation of a handler's result against the reply type of its request."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from warren.sdk.errors import ConfigError, HandlerOutcome
from warren.sdk.messages.types import RequestMessage

SCALARS: Final = (bool, int, float, str, bytes)
CONVERTED: Final = frozenset(
    {(int, float), (bool, float), (float, int), (int, bool), (str, bytes), (bytes, str)}
)
"""Pairs of scalars (result, reply) of which pydantic converts some or all values."""


def check_reply_annotation(handler: str, kind: type[RequestMessage], result: Any) -> None:
    """Check that a handler can return the reply type of its request. Only a certain contradiction is an error: a type
    that may be converted, or that is known to type checkers only, passes.

    :param handler: name of the handler.
    :param kind: class of the request.
    :param result: annotation of the handler's result; `Any` if there is none.
    :raises ConfigError: if a value of the annotated type is never a reply.
    """
    wanted = _members(kind.reply_type())
    for member in _members(result):
        if isinstance(member, type) and issubclass(member, HandlerOutcome):
            continue
        if all(_contradicts(member, each) for each in wanted):
            raise ConfigError(
                f"the handler {handler} returns {_shown(member)}, but {kind.__name__} is answered with"
                f" {' or '.join(map(_shown, wanted))}: correct one of them"
            )


def _members(hint: Any) -> list[Any]:
    """Return the members of a union; a list with the type itself if it is no union."""
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [each for member in get_args(hint) for each in _members(member)]
    return [NoneType if hint is None else hint]


def _contradicts(result: Any, reply: Any) -> bool:
    """Return whether no value of the type `result` is valid for the type `reply`."""
    if not (_is_certain(result) and _is_certain(reply)):
        return False
    if issubclass(result, reply) or issubclass(reply, result):
        return False
    if issubclass(reply, BaseModel) and reply.model_config.get("from_attributes"):
        return False
    return (result, reply) not in CONVERTED


def _is_certain(hint: Any) -> bool:
    return isinstance(hint, type) and (hint in (*SCALARS, NoneType) or issubclass(hint, BaseModel))


def _shown(hint: Any) -> str:
    return "None" if hint is NoneType else getattr(hint, "__name__", str(hint))
