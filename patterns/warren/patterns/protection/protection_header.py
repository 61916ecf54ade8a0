"""Protection header: algorithm, key id and time of an encrypted or signed message, and the data that is authenticated
together with its body."""

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
"""Properties that are authenticated with the body. Not included: `reply_to`, which a broker replaces in a request with
direct reply-to, and properties that a delay, a dead letter exchange or a replay changes (exchange, routing key,
expiration)."""
KEY_ID_CHARACTERS: Final = 64


@dataclass(slots=True)
class ProtectionStatistics:
    """Counters of one `Encryption` or `Signing` in this process; each rejected message becomes a dead letter with the
    reason."""

    protected: int = 0
    accepted: int = 0
    unprotected: int = 0
    """Messages that were accepted although they were not encrypted or signed, because of `required=False`."""
    rejected: int = 0


class ProtectionHeader(NamedTuple):
    """Parsed header of an encrypted or signed message, on the wire `algorithm;key id;milliseconds`."""

    algorithm: str
    key_id: str
    at_ms: int

    def __str__(self) -> str:
        return f"{self.algorithm};{self.key_id};{self.at_ms}"


def parse_header(text: object) -> ProtectionHeader | None:
    """Parse a protection header; return None if it does not have the format that Warren writes."""
    parts = text.split(";") if isinstance(text, str) else []
    if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal() and len(parts[2]) < 20):
        return None
    return ProtectionHeader(parts[0], parts[1], int(parts[2]))


def authenticated_data(
    header: ProtectionHeader, properties: Mapping[str, Any], headers: Mapping[str, Any], names: Sequence[str]
) -> bytes:
    """Return the bytes that are authenticated with the body, as JSON: the protection header, the properties in
    `AUTHENTICATED_PROPERTIES`, and the headers listed in `names`."""
    own = [properties.get(name) for name in AUTHENTICATED_PROPERTIES]
    further = [[name, headers.get(name)] for name in names]
    return json.dumps([str(header), own, further], separators=(",", ":"), default=str).encode()


def check_key_ids(what: str, key_ids: Sequence[str], current: str | None) -> None:
    """Raise `ConfigError` if a key id cannot be part of the protection header, or the current id has no key.

    :param what: name of the caller (`Encryption` or `Signing`) for the error's text.
    :param key_ids: ids of the keys that the caller has.
    :param current: id of the key that encrypts or signs; None if this process only checks signatures.
    """
    for key_id in key_ids:
        if not key_id or ";" in key_id or len(key_id) > KEY_ID_CHARACTERS or not key_id.isprintable():
            raise ConfigError(
                f"{what}: the key id {key_id!r} is not 1 to {KEY_ID_CHARACTERS} printable characters without ';'"
            )
    if current is not None and current not in key_ids:
        raise ConfigError(
            f"{what}: there is no key {current!r}; known are: {', '.join(sorted(key_ids)) or 'none'}"
        )


def check_age(header: ProtectionHeader, max_age: timedelta | None, now: float) -> None:
    """Raise `DeadLetter` if the message is older than `max_age`, or its time is further than `max_age` in the
    future. With None the age is not limited.

    :param now: Unix time in seconds.
    """
    if max_age is not None and abs(now - header.at_ms / 1000) > max_age.total_seconds():
        raise DeadLetter(
            f"it was protected at {header.at_ms} ms, which differs from now by more than {max_age}"
        )


__all__ = [
    "AUTHENTICATED_PROPERTIES",
    "ProtectionHeader",
    "ProtectionStatistics",
    "authenticated_data",
    "check_age",
    "check_key_ids",
    "parse_header",
]
