"""What encryption and signing share: what they bind to the body, the header that says how, and the reasons to refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from warren.sdk import ConfigError, DeadLetter

AUTHENTICATED_PROPERTIES: Final = (
    "message_id",
    "type",
    "content_type",
    "content_encoding",
    "correlation_id",
    "app_id",
)
"""The properties that are bound to the body. Not `reply_to`, which brokers rewrite (direct reply-to), nor what a delay, a
dead letter exchange or a replay changes: exchange, routing key, expiration."""
KEY_ID_CHARACTERS: Final = 64


@dataclass(slots=True)
class ProtectionStatistics:
    """What this App has protected, and what it refused; each refusal is a dead letter with the reason."""

    protected: int = 0
    accepted: int = 0
    unprotected: int = 0
    """Messages that came without protection and were taken, with `required=False`."""
    refused: int = 0


class ProtectionHeader(NamedTuple):
    """How a message is protected, as its header says it: `algorithm;key id;milliseconds`."""

    algorithm: str
    key_id: str
    at_ms: int

    def __str__(self) -> str:
        return f"{self.algorithm};{self.key_id};{self.at_ms}"


def read_terms(text: object) -> ProtectionHeader | None:
    """The terms of a header; None if it is none that Warren writes."""
    parts = text.split(";") if isinstance(text, str) else []
    if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal() and len(parts[2]) < 20):
        return None
    return ProtectionHeader(parts[0], parts[1], int(parts[2]))


def bound(
    terms: ProtectionHeader, properties: Mapping[str, Any], headers: Mapping[str, Any], names: Sequence[str]
) -> bytes:
    """What is bound to the body, in one unambiguous form: the terms, the properties, the headers that were named."""
    own = [properties.get(name) for name in AUTHENTICATED_PROPERTIES]
    further = [[name, headers.get(name)] for name in names]
    return json.dumps([str(terms), own, further], separators=(",", ":"), default=str).encode()


def check_key_ids(what: str, key_ids: Sequence[str], current: str | None) -> None:
    """:raises ConfigError: an id cannot stand in a header, or the current one has no key."""
    for key_id in key_ids:
        if not key_id or ";" in key_id or len(key_id) > KEY_ID_CHARACTERS or not key_id.isprintable():
            raise ConfigError(
                f"{what}: the key id {key_id!r} is not 1 to {KEY_ID_CHARACTERS} printable characters without ';'"
            )
    if current is not None and current not in key_ids:
        raise ConfigError(
            f"{what}: there is no key {current!r}; known are: {', '.join(sorted(key_ids)) or 'none'}"
        )


def check_age(terms: ProtectionHeader, max_age: timedelta | None, now: float) -> None:
    """:raises DeadLetter: it is older than it may be, or from the future by as much."""
    if max_age is not None and abs(now - terms.at_ms / 1000) > max_age.total_seconds():
        raise DeadLetter(f"it was protected at {terms.at_ms} ms, which is more than {max_age} away from now")


__all__ = [
    "AUTHENTICATED_PROPERTIES",
    "ProtectionHeader",
    "ProtectionStatistics",
    "bound",
    "check_age",
    "check_key_ids",
    "read_terms",
]
