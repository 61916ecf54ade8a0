"""Message bodies from the command line: a text, a file, or standard input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from warren.cli.standard_streams import read_bytes
from warren.core.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

Body = Annotated[
    str, typer.Argument(metavar="[BODY]", help="text or JSON; @FILE reads a file, - standard input")
]


def read_body(body: str) -> bytes:
    """Return the message body that the argument BODY names.

    :param body: the text itself, `@FILE` for the content of a file, or `-` for standard input
    :raises UsageError: if the file cannot be read
    """
    if body == "-":
        return read_bytes()
    if body.startswith("@"):
        try:
            return Path(body[1:]).read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {body[1:]}: {error.strerror or error}") from None
    return body.encode("utf-8", "surrogateescape")


def parse_message(kind: type[Model], body: bytes) -> Model:
    """Decode a message body from JSON and validate it.

    :param kind: class of the message
    :raises UsageError: naming each invalid field
    """
    from pydantic import ValidationError

    from warren.sdk.extend import format_validation_error

    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise UsageError(
            f"the body is not a valid {kind.__name__}: {format_validation_error(error)}"
        ) from None


def guess_content_type(body: bytes) -> str:
    """Return a body's content type: application/json, text/plain if other UTF-8, else application/octet-stream."""
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
