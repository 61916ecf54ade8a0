"""AMQP properties that a publish sets by its options: their types, and the checks before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from warren.sdk.durations import Duration, duration, milliseconds
from warren.sdk.errors import ConfigError
from warren.sdk.messages.content_types import JSON, MSGPACK, charset_of, is_json, is_msgpack, media_type

SHORT_STRING_BYTES: Final = 255
PRIORITIES: Final = range(256)
LARGEST_TIMESTAMP: Final = 2**64 - 1
LONGEST_EXPIRATION: Final = timedelta(days=3650)
"""RabbitMQ and Warren refuse a longer one with 406 PRECONDITION_FAILED, which closes the channel."""
PLAIN_ENCODINGS: Final = frozenset({"utf-8", "binary", "identity"})
"""Values of `content_encoding` that say that a body is not compressed."""

_TEXTS: Final = {
    "content_type": "content type",
    "content_encoding": "content encoding",
    "type": "type",
    "correlation_id": "correlation id",
    "reply_to": "reply_to",
    "user_id": "user id",
    "app_id": "app id",
}
"""Names of the properties that are short strings, with their names in error texts."""


class PropertyOptions(TypedDict, total=False):
    """AMQP properties of a message as options of a publish. None leaves the property as it would be without the option."""

    content_type: str | None
    """Media type of the body. Content that Warren encodes is encoded accordingly: as JSON (`application/json`, `text/json`,
    `.../...+json`) or as MessagePack; no other type is accepted for it. For `str` any type in UTF-8, for `bytes` any."""
    content_encoding: str | None
    """Encoding of the body, such as `gzip` for bytes that are compressed. Warren compresses nothing: for content that it
    encodes, only `utf-8`, `binary` and `identity` are accepted."""
    type: str | None
    """Name of the message's type. That of a `Message` is its own type or one of its aliases, so that readers that know only
    an alias get it during a rename; for other content any name."""
    correlation_id: str | None
    """Id by which a reply is matched with its request."""
    reply_to: str | None
    """Queue for replies."""
    timestamp: datetime | int | None
    """Time of the message: a datetime with a time zone, or Unix seconds. AMQP keeps whole seconds."""
    user_id: str | None
    """Name of the connection's user. The broker refuses any other (`PublishError`, 406 PRECONDITION_FAILED)."""
    app_id: str | None
    """Name of the application that publishes."""
    priority: int | None
    """0 to 255, for a queue with `max_priority`, which treats a higher priority as its maximum."""
    expiration: Duration | None
    """Longest time in a queue: a `timedelta`, seconds, or a text such as `5s`; at most 3650 days."""
    persistent: bool | None
    """True for delivery mode 2, False for 1. What is published at least once is persistent; with `at_most_once` the
    default is False."""


def check_properties(options: Mapping[str, Any]) -> dict[str, str | int]:
    """Return the properties by their AMQP names, as they are sent. `persistent` is checked and left out: the caller sets the
    delivery mode.

    :param options: see `PropertyOptions`.
    :raises ConfigError: if an option is unknown, of a wrong type or out of its range.
    """
    checked: dict[str, str | int] = {}
    for name, value in options.items():
        if name not in PropertyOptions.__annotations__:
            known = ", ".join(PropertyOptions.__annotations__)
            raise ConfigError(f"publish has no option {name!r}: properties are {known}")
        if value is None:
            continue
        if name in _TEXTS:
            if not isinstance(value, str):
                raise ConfigError(f"the {_TEXTS[name]} is {value!r}: it must be a text")
            checked[name] = short_string(_TEXTS[name], value)
        elif name == "priority":
            checked[name] = _priority(value)
        elif name == "expiration":
            checked[name] = str(_expiration_ms(value))
        elif name == "timestamp":
            checked[name] = _timestamp(value)
        elif value is not True:
            raise ConfigError(
                "persistent=False loses the message with a restart of the broker: publish it with"
                " reliability='at_most_once'"
                if value is False
                else f"persistent is {value!r}: it must be True or False"
            )
    return checked


def check_encoded(properties: Mapping[str, str | int], what: str) -> str:
    """Check the content type and encoding that were chosen for content that Warren encodes; return the content type of the
    encoder to use: `application/json` or `application/msgpack`; empty if no content type was chosen.

    :param properties: result of `check_properties`.
    :param what: name of the content in error texts.
    :raises ConfigError: if Warren could not decode the message.
    """
    encoding = properties.get("content_encoding")
    if encoding is not None and str(encoding).lower() not in PLAIN_ENCODINGS:
        raise ConfigError(
            f"the content encoding of {what} is {encoding!r}, but Warren does not compress it: publish bytes that are"
            " encoded so"
        )
    if "content_type" not in properties:
        return ""
    content_type = properties["content_type"]
    media = media_type(content_type)
    if is_msgpack(media):
        return MSGPACK
    if not is_json(media) or "/" not in media or media in ("text/plain", "application/octet-stream"):
        raise ConfigError(
            f"the content type of {what} is {content_type!r}, but Warren encodes it as JSON or MessagePack: choose"
            f" {JSON} or {MSGPACK}, or publish bytes"
        )
    check_charset(str(content_type), what)
    return JSON


def check_charset(content_type: str, what: str) -> None:
    """Check that a content type names no other character set than UTF-8, in which Warren sends text.

    :param what: name of the content in error texts.
    :raises ConfigError: if it names another one.
    """
    if charset_of(content_type) not in ("", "utf-8", "utf8", "us-ascii"):
        raise ConfigError(f"the content type of {what} is {content_type!r}, but Warren sends text as UTF-8")


def short_string(what: str, text: str) -> str:
    """Return the text if it fits an AMQP short string (AMQP 0-9-1 section 4.2.5.3).

    :param what: name of the field, for errors.
    :raises ConfigError: if the text is longer than 255 bytes, or cannot be encoded as UTF-8.
    """
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"the {what} is no text that UTF-8 can carry: {text[:40]!r}") from None
    if size > SHORT_STRING_BYTES:
        raise ConfigError(f"the {what} is longer than {SHORT_STRING_BYTES} bytes: {text[:40]}...")
    return text


def _priority(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in PRIORITIES:
        raise ConfigError(f"the priority is {value!r}: it is from 0 to 255")
    return value


def _expiration_ms(value: Duration) -> int:
    if isinstance(value, timedelta) and value < timedelta(0):
        return 0  # A deadline that has passed: the message expires at once.
    length = duration(value, "expiration")
    if length > LONGEST_EXPIRATION:
        shown = repr(value) if isinstance(value, str) else f"{length.total_seconds():g}s"
        raise ConfigError(f"expiration={shown} is too long: the longest is {LONGEST_EXPIRATION.days}d")
    return milliseconds(length)


def _timestamp(value: object) -> int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(f"the timestamp {value.isoformat()} has no time zone: use datetime.now(UTC)")
        value = int(value.timestamp())
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(
            f"the timestamp is {value!r}: it must be a datetime with a time zone, or Unix seconds"
        )
    if not 0 <= value <= LARGEST_TIMESTAMP:
        raise ConfigError(f"the timestamp is {value}: AMQP has no times before 1970")
    return value
