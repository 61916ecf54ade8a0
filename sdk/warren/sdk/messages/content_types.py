"""Content types that the SDK reads and writes: JSON, text, and MessagePack (optional)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from warren.sdk.errors import ConfigError

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"

_MSGPACK: Final = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})
_UNSPECIFIC: Final = frozenset({"", "application/octet-stream", "text/plain"})
"""Content types that do not rule out JSON: publishers often set them, or none, for JSON."""


def media_type(content_type: object) -> str:
    """Return the media type without parameters, in lower case: `Application/JSON; charset=utf-8` is `application/json`."""
    return str(content_type or "").partition(";")[0].strip().lower()


def charset_of(content_type: object) -> str:
    """Return the parameter `charset` of a content type in lower case; empty without it."""
    for parameter in str(content_type or "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip(" \"'").lower()
    return ""


def is_json(media: str) -> bool:
    """Return whether content of this media type may be JSON.

    True for JSON's own media types, for the suffix `+json` (RFC 6839 section 3.1), and for types that say nothing about
    the format: none, `application/octet-stream`, `text/plain`.

    :param media: result of `media_type`.
    """
    return media in (JSON, "text/json") or media.endswith("+json") or media in _UNSPECIFIC


def is_text(media: str) -> bool:
    return media.startswith("text/") or media in _UNSPECIFIC


def is_msgpack(media: str) -> bool:
    return media in _MSGPACK


def require_msgpack(owner: str) -> None:
    """Check that MessagePack is installed.

    :param owner: name of the message class that needs it.
    :raises ConfigError: if it is not; the text says what to install.
    """
    try:
        _msgpack()
    except ConfigError as error:
        raise ConfigError(f"{owner}: {error}") from None


def pack(value: object) -> bytes:
    """Encode a value as MessagePack.

    :raises ConfigError: if msgpack is not installed.
    """
    packed: bytes = _msgpack().packb(value)
    return packed


def unpack(body: bytes) -> Any:
    """Decode MessagePack.

    :raises ValueError: if the body is not valid MessagePack; the text says why, and contains none of the content.
    :raises ConfigError: if msgpack is not installed.
    """
    unpackb = _msgpack().unpackb
    try:
        return unpackb(body)
    except Exception as error:
        # msgpack raises ValueErrors without a text, and TypeErrors for the keys of maps.
        reason = _unreadable(error) if body else "the body is empty"
        raise ValueError(f"this is not MessagePack: {reason}") from error


def _unreadable(error: Exception) -> str:
    match type(error).__name__:
        case "FormatError":
            return "a value begins with the byte 0xC1, which MessagePack does not use"
        case "StackError" | "RecursionError":
            return "values are nested too deeply"
        case "ExtraData":
            return "the value is followed by further bytes"
        case "UnicodeDecodeError":
            return "a text is not valid UTF-8"
    text = str(error)
    if "incomplete input" in text:
        return "the body ends within a value"
    if "map key" in text or isinstance(error, TypeError):
        return "a map has a key that is neither text nor bytes"
    return text or type(error).__name__


def _msgpack() -> Any:
    try:
        return import_module("msgpack")
    except ImportError:
        raise ConfigError("MessagePack is not installed: pip install 'warrenmq[msgpack]'") from None
