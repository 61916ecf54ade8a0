"""Error replies: encode a handler's exception, and decode it as the caller's `RemoteError` or `Fault`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from warren.sdk.errors import Fault, RemoteError, WarrenError
from warren.sdk.exception_text import exception_text
from warren.sdk.messages.type_codec import type_codec

ERROR_TYPE = "warren.error"
"""The `type` property of an error reply. Its JSON body has `code`, `message`, `details` and `retryable`."""


def encode_error(error: BaseException) -> bytes:
    """Return the body of an error reply: JSON with code, message, details, and whether a retry can help.

    The code is that of a `RemoteError` or `Fault`; for other exceptions it is the name of the class. Details that cannot
    be written as JSON are left out, and the message says so.
    """
    code, message = type(error).__name__, ""
    details: Any = None
    retryable = False
    try:
        retryable = isinstance(error, WarrenError) and bool(error.retryable)
        if isinstance(error, RemoteError):
            code, message = str(error.code), str(error.message)
            details = json.loads(_encode_details(error))
    except BaseException as refused:
        # Methods of the application's exceptions and details may raise anything.
        message = f"{message or exception_text(error)} (without its details: {exception_text(refused)})"
    else:
        message = message or exception_text(error)
    return json.dumps({"code": code, "message": message, "details": details, "retryable": retryable}).encode()


def _encode_details(error: RemoteError) -> str | bytes:
    """Return the details of an error as JSON.

    :raises Exception: if they cannot be written: they contain themselves, or their keys are no text, for example.
    """
    if isinstance(error, Fault):
        return type_codec(error.details_type()).write_json(error.details)
    return json.dumps(error.details, default=str)


def decode_error(body: bytes, faults: Mapping[str, type[Fault[Any]]]) -> RemoteError:
    """Return the error in the body of an error reply: one of `faults` (by code) if its details are valid, else a
    `RemoteError`."""
    try:
        fields = json.loads(body)
        code, message, details = str(fields["code"]), str(fields["message"]), fields.get("details")
        retryable = bool(fields.get("retryable"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return RemoteError("undecodable_error", "the server answered with an error that cannot be read")
    known = faults.get(code)
    if known is not None:
        try:
            read = type_codec(known.details_type()).read_json(json.dumps(details).encode())
            return known(message, read, retryable=retryable)
        except ValidationError:
            # The server may have another version of the fault: it is still an error with this code.
            pass
    return RemoteError(code, message, details=details, retryable=retryable)
