"""Content types: which of them the SDK reads and writes, and MessagePack, which is an extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from warren.sdk.errors import ConfigError

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"

_MSGPACK: Final = frozenset({MSGPACK, "application/x-msgpack", "application/vnd.msgpack"})
_UNSAID: Final = frozenset({"", "application/octet-stream", "text/plain"})
"""Publishers that say no more than this may well have sent JSON."""


def media_type(content_type: object) -> str:
    """The type alone, in lower case: `Application/JSON; charset=utf-8` is `application/json`."""
    return str(content_type or "").partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    """JSON by its name or by its suffix (RFC 6839 section 3.1), or where nothing else is said."""
    return media in (JSON, "text/json") or media.endswith("+json") or media in _UNSAID


def is_text(media: str) -> bool:
    return media.startswith("text/") or media in _UNSAID


def is_msgpack(media: str) -> bool:
    return media in _MSGPACK


def pack(value: object) -> bytes:
    """:raises ConfigError: if msgpack is not installed."""
    packed: bytes = _msgpack().packb(value)
    return packed


def unpack(body: bytes) -> Any:
    """:raises ValueError: if it is no MessagePack. :raises ConfigError: if msgpack is not installed."""
    return _msgpack().unpackb(body)


def _msgpack() -> Any:
    try:
        return import_module("msgpack")
    except ImportError:
        raise ConfigError("MessagePack is not installed: pip install warren[msgpack]") from None
