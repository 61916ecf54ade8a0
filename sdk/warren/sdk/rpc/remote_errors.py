"""Errors that travel: what a handler raises becomes a reply, and at its caller the same error again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from warren.sdk.errors import Fault, RemoteError, WarrenError
from warren.sdk.messages.codec import adapter_of

ERROR_TYPE = "warren.error"
"""The `type` of a reply that is an error: `{"code", "message", "details", "retryable"}`."""


def encode_error(error: Exception) -> bytes:
    """The error as the body of a reply; the code is that of a `RemoteError`, else the name of the error's class."""
    details: Any = None
    if isinstance(error, Fault):
        code, message = error.code, error.message
        details = adapter_of(error.details_type()).dump_python(error.details, mode="json", by_alias=True)
    elif isinstance(error, RemoteError):
        code, message, details = error.code, error.message, error.details
    else:
        code, message = type(error).__name__, str(error)
    retryable = error.retryable if isinstance(error, WarrenError) else False
    shown = {"code": code, "message": message, "details": details, "retryable": retryable}
    return json.dumps(shown, default=str).encode()


def decode_error(body: bytes, faults: Mapping[str, type[Fault[Any]]]) -> RemoteError:
    """The error that a reply carries: one of `faults` (by code) if its details fit, else a plain `RemoteError`."""
    try:
        said = json.loads(body)
        code, message, details = str(said["code"]), str(said["message"]), said.get("details")
        retryable = bool(said.get("retryable"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return RemoteError("undecodable_error", "the server answered with an error that cannot be read")
    known = faults.get(code)
    if known is not None:
        try:
            read = adapter_of(known.details_type()).validate_json(json.dumps(details))
            return known(message, read, retryable=retryable)
        except ValidationError:
            # A server of another version: what it says is still an error, and of this code.
            pass
    return RemoteError(code, message, details=details, retryable=retryable)
