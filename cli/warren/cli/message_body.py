"""The body of a message on a command line: a text, a file, or standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from warren.core.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

Body = Annotated[
    str, typer.Argument(metavar="[BODY]", help="text or JSON; @FILE is a file's content, - standard input")
]


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

    from warren.sdk.extend import format_validation_error

    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise UsageError(f"the body is no {kind.__name__}: {format_validation_error(error)}") from None


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
