"""Error replies: encode a handler's exception, and decode it as the caller's `RemoteError` or `Fault`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from warren.sdk.errors import ConfigError, Fault, RemoteError, WarrenError
from warren.sdk.messages.type_codec import type_codec

ERROR_TYPE = "warren.error"
"""The `type` property of an error reply. Its JSON body has `code`, `message`, `details` and `retryable`."""


def encode_error(error: Exception) -> bytes:
    """Return the body of an error reply: JSON with code, message, details, and whether a retry can help.

    The code is that of a `RemoteError` or `Fault`; for other exceptions it is the name of the class.
    """
    details: Any = None
    if isinstance(error, Fault):
        code, message = error.code, error.message
        try:
            details = json.loads(type_codec(error.details_type()).write_json(error.details))
        except ConfigError as refused:
            message = f"{message} (without its details: {refused})"
    elif isinstance(error, RemoteError):
        code, message, details = error.code, error.message, error.details
    else:
        code, message = type(error).__name__, str(error)
    retryable = error.retryable if isinstance(error, WarrenError) else False
    shown = {"code": code, "message": message, "details": details, "retryable": retryable}
    return json.dumps(shown, default=str).encode()


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
