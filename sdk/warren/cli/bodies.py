"""The body of a message on a command line: a text, a file, or standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from warren.command import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    Model = TypeVar("Model", bound=BaseModel)

Body = Annotated[
    str, typer.Argument(metavar="[BODY]", help="text or JSON; @FILE is a file's content, - standard input")
]
SHOWN = 5
"""How many mistakes of one body are named."""


def read(body: str) -> bytes:
    """The bytes that the argument means.

    :raises UsageError: if the file cannot be read.
    """
    if body == "-":
        return sys.stdin.buffer.read()
    if body.startswith("@"):
        try:
            return Path(body[1:]).read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {body[1:]}: {error.strerror or error}") from None
    return body.encode("utf-8", "surrogateescape")


def as_message(kind: type[Model], body: bytes) -> Model:
    """The body as a message class.

    :raises UsageError: what is wrong with it, field by field.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise UsageError(f"the body is no {kind.__name__}: {_mistakes(error)}") from None


def content_type_of(body: bytes) -> str:
    """What the body is: JSON, another text, or bytes."""
    try:
        json.loads(body)
    except UnicodeDecodeError:
        return "application/octet-stream"
    except ValueError:
        try:
            body.decode()
        except UnicodeDecodeError:
            return "application/octet-stream"
        return "text/plain; charset=utf-8"
    return "application/json"


def _mistakes(error: ValidationError) -> str:
    found = [
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}" if each["loc"] else each["msg"]
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return " ".join(("; ".join(found[:SHOWN]) + more).split())
