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


def pack(value: object) -> bytes:
    """Encode a value as MessagePack.

    :raises ConfigError: if msgpack is not installed.
    """
    packed: bytes = _msgpack().packb(value)
    return packed


def unpack(body: bytes) -> Any:
    """Decode MessagePack.

    :raises ValueError: if the body is not valid MessagePack.
    :raises ConfigError: if msgpack is not installed.
    """
    return _msgpack().unpackb(body)


def _msgpack() -> Any:
    try:
        return import_module("msgpack")
    except ImportError:
        raise ConfigError("MessagePack is not installed: pip install warren[msgpack]") from None
