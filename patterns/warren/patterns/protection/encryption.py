"""Encryption: only processes with a key can read message bodies, change them or attach them to another message.

Guarantees: AES-GCM (NIST SP 800-38D) with a random 96-bit nonce per message; the key id, the time and the properties
message id, type, content type, content encoding, correlation id and app id are authenticated with the body. A message
that was changed, is encrypted with an unknown key, or has no protection becomes a dead letter with the reason, before
any of it is decoded. Delayed messages and dead letters stay encrypted.

Not hidden: properties, headers, routing keys, sizes. Not prevented: somebody who has copied an encrypted message can
publish it again, unchanged. It is accepted until it is older than `max_age`, but has the same message id, so `Once`
recognises it as a duplicate.

Costs: 28 bytes per message, and about one microsecond plus one for each kilobyte.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from warren.patterns.optional_packages import require_package
from warren.patterns.protection.protection_header import (
    ProtectionHeader,
    ProtectionStatistics,
    authenticated_data,
    check_age,
    check_key_ids,
    parse_header,
)
from warren.sdk import App, Clock, ConfigError, DeadLetter, Delivery, Outgoing, SystemClock
from warren.sdk.extend import Duration, IncludedComponent, optional_duration

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HEADER: Final = "warren-encryption"
ALGORITHM: Final = "aes-gcm"
NONCE_BYTES: Final = 12
KEY_BYTES: Final = (16, 24, 32)


class Encryption(IncludedComponent):
    """Middleware that encrypts published messages and decrypts handled ones: `app.include(Encryption(keys,
    current="2026-11"))`.

    Include it after `Signing` to encrypt signed messages.

    **Rotation**: give every process the new key beside the old one, then make it current everywhere, then remove the
    old one when no message needs it any more. One key is good for 2 ** 32 messages (SP 800-38D, 8.3).

    :param keys: keys of 16, 24 or 32 random bytes (`secrets.token_bytes(32)`), by their ids; never logged.
    :param current: id of the key that encrypts.
    :param required: False also accepts messages that are not encrypted, while an application moves to encryption.
    :param max_age: age above which a message is rejected. Default None: no limit.
    :param headers: names of headers that are authenticated too; their values are text, integers or booleans.
    :raises ConfigError: a key has another length, or a header cannot contain an id.
    :raises UsageError: `cryptography` is not installed.
    """

    def __init__(
        self,
        keys: Mapping[str, bytes],
        *,
        current: str,
        required: bool = True,
        max_age: Duration | None = None,
        headers: Sequence[str] = (),
    ) -> None:
        self.statistics: ProtectionStatistics = ProtectionStatistics()
        """Counters of what this object has done in this process."""
        self._required = required
        self._max_age = optional_duration(max_age, "Encryption: max_age")
        self._headers = tuple(headers)
        self._clock: Clock = SystemClock()
        self._ciphers: dict[str, AESGCM] = {}
        self._current = ""
        self.use(keys, current=current)
        super().__init__()

    def use(self, keys: Mapping[str, bytes], *, current: str) -> None:
        """Use these keys from now on instead of the previous ones; also possible while the App runs.

        :param keys: keys of 16, 24 or 32 random bytes, by their ids.
        :param current: id of the key that encrypts; the others only decrypt.
        :raises ConfigError: a key has another length, an id cannot be part of a header, or `current` is not in `keys`.
        """
        check_key_ids("Encryption", list(keys), current)
        for key_id, key in keys.items():
            if len(key) not in KEY_BYTES:
                raise ConfigError(
                    f"Encryption: the key {key_id!r} has {len(key)} bytes instead of 16, 24 or 32: create it with"
                    " secrets.token_bytes(32)"
                )
        cipher = _cipher()
        self._ciphers = {key_id: cipher(key) for key_id, key in keys.items()}
        self._current = current

    @property
    def lost_without_app(self) -> str:
        return "bodies are published as plain text"

    def register(self, app: App) -> None:
        super().register(app)
        self._clock = app.clock
        app.middleware(publish=self._encrypt, handle=self._decrypt)

    async def on_start(self) -> None:
        """Do nothing when the App starts: it calls this middleware for each message that it publishes or handles."""

    async def on_stop(self) -> None:
        """Do nothing when the App stops: there is no connection, file or task to close."""

    async def _encrypt(self, outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        header = ProtectionHeader(ALGORITHM, self._current, int(self._clock.now() * 1000))
        nonce = os.urandom(NONCE_BYTES)
        data = authenticated_data(header, outgoing.properties, outgoing.headers, self._headers)
        sealed = self._ciphers[self._current].encrypt(nonce, outgoing.body, data)
        inner = outgoing.properties.get("content_encoding")
        outgoing.set_body(nonce + sealed)
        # As in HTTP: the content type is that of the content, and encodings are listed in the order of application.
        outgoing.set("content_encoding", f"{inner}, {ALGORITHM}" if inner else ALGORITHM)
        outgoing.set_header(HEADER, str(header))
        self.statistics.protected += 1
        await call_next(outgoing)

    async def _decrypt(self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        text = delivery.headers.get(HEADER)
        if text is None and not self._required:
            self.statistics.unprotected += 1
            await call_next(delivery)
            return
        try:
            opened = self._open(delivery, text)
        except DeadLetter:
            self.statistics.rejected += 1
            raise
        self.statistics.accepted += 1
        await call_next(opened)

    def _open(self, delivery: Delivery, text: object) -> Delivery:
        from cryptography.exceptions import InvalidTag

        if text is None:
            raise DeadLetter("the message is not encrypted, and only encrypted messages are accepted here")
        header = parse_header(text)
        encodings = str(delivery.properties.get("content_encoding") or "").split(", ")
        if header is None or header.algorithm != ALGORITHM or encodings[-1] != ALGORITHM:
            raise DeadLetter("the message has no valid encryption header")
        cipher = self._ciphers.get(header.key_id)
        if cipher is None:
            raise DeadLetter(
                f"the message is encrypted with the key {header.key_id!r}, which this process does not have"
            )
        properties = {
            name: value for name, value in delivery.properties.items() if name != "content_encoding"
        }
        if encodings[:-1]:
            properties["content_encoding"] = ", ".join(encodings[:-1])
        headers = {name: value for name, value in delivery.headers.items() if name != HEADER}
        nonce, sealed = delivery.body[:NONCE_BYTES], delivery.body[NONCE_BYTES:]
        try:
            body = cipher.decrypt(
                nonce, sealed, authenticated_data(header, properties, headers, self._headers)
            )
        except (InvalidTag, ValueError):
            raise DeadLetter(
                f"the message was changed on its way, or not encrypted with the key {header.key_id!r}"
            ) from None
        check_age(header, self._max_age, self._clock.now())
        return delivery.replace(body=body, headers=headers, properties=properties)

    def __repr__(self) -> str:
        return f"Encryption(keys={sorted(self._ciphers)}, current={self._current!r})"


def _cipher() -> type[AESGCM]:
    require_package("cryptography", "crypto", "Encryption")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM


__all__ = ["Encryption"]
