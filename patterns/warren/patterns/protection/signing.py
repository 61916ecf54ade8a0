"""Signing: everybody may read the messages, but only processes with a key can create them.

Guarantees: the body, the key id, the time and the properties message id, type, content type, content encoding,
correlation id and app id are signed, with HMAC-SHA-256 (RFC 2104; the same secret signs and checks) or Ed25519 (RFC
8032; the private key signs, the public key checks). A message that was changed, has no signature, or was signed with an
unknown key becomes a dead letter with the reason, before any of it is decoded. Signatures are compared in constant
time.

Not prevented: somebody who has copied a signed message can publish it again, unchanged. It is accepted until it is
older than `max_age`, but has the same message id, so `Once` recognises it as a duplicate.

Costs: about 130 bytes per message; a few microseconds with HMAC, about a tenth of a millisecond with Ed25519.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from warren.core.errors import missing_extra_error
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
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

HEADER: Final = "warren-signature"
SIGNED_HEADER: Final = "warren-signed"
HMAC: Final = "hmac-sha256"
ED25519: Final = "ed25519"
MIN_SECRET_BYTES: Final = 32
KEY_BYTES: Final = 32

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes], bool]


class Signing(IncludedComponent):
    """Middleware that signs published messages and checks handled ones: `app.include(Signing.hmac(secrets,
    current="2026-11"))`.

    Create it with `Signing.hmac` or `Signing.ed25519`. Include it before `Encryption` to sign the readable content.

    **Rotation**: give every process the new key beside the old one, then make it current everywhere, then remove the
    old one when no message needs it any more.
    """

    def __init__(
        self,
        algorithm: str,
        verify: Mapping[str, Verify],
        sign: tuple[str, Sign] | None,
        *,
        required: bool = True,
        max_age: Duration | None = None,
        headers: Sequence[str] = (),
    ) -> None:
        self.statistics: ProtectionStatistics = ProtectionStatistics()
        """Counters of what this object has done in this process."""
        self._algorithm = algorithm
        self._verify = dict(verify)
        self._sign = sign
        self._required = required
        self._max_age = optional_duration(max_age, "Signing: max_age")
        self._headers = tuple(headers)
        self._clock: Clock = SystemClock()
        super().__init__()

    @classmethod
    def hmac(
        cls,
        secrets: Mapping[str, bytes],
        *,
        current: str,
        required: bool = True,
        max_age: Duration | None = None,
        headers: Sequence[str] = (),
    ) -> Signing:
        """Return a Signing that uses HMAC-SHA-256 with secrets that publishers and consumers share; needs no optional
        package.

        :param secrets: secrets of at least 32 random bytes (`secrets.token_bytes(32)`), by their ids; never logged.
        :param current: id of the secret that signs.
        :param required: False also accepts messages that are not signed, while an application moves to signing.
        :param max_age: age above which a message is rejected. Default None: no limit.
        :param headers: names of headers that are signed too; their values are text, integers or booleans.
        :raises ConfigError: a secret is too short, or a header cannot contain an id.
        """
        check_key_ids("Signing", list(secrets), current)
        for key_id, secret in secrets.items():
            if len(secret) < MIN_SECRET_BYTES:
                raise ConfigError(
                    f"Signing: the secret {key_id!r} has {len(secret)} bytes, it must have at least {MIN_SECRET_BYTES}"
                )
        return cls(
            HMAC,
            {key_id: _hmac_verify(secret) for key_id, secret in secrets.items()},
            (current, _hmac_sign(secrets[current])),
            required=required,
            max_age=max_age,
            headers=headers,
        )

    @classmethod
    def ed25519(
        cls,
        public: Mapping[str, bytes],
        *,
        private: bytes | None = None,
        current: str | None = None,
        required: bool = True,
        max_age: Duration | None = None,
        headers: Sequence[str] = (),
    ) -> Signing:
        """Return a Signing that uses Ed25519: a private key signs and public keys check.

        :param public: public keys, 32 raw bytes each, by their ids.
        :param private: private key, 32 raw bytes; None publishes without a signature and only checks. Never logged.
        :param current: id under which others have the public key of `private`.
        :param required: False also accepts messages that are not signed, while an application moves to signing.
        :param max_age: age above which a message is rejected. Default None: no limit.
        :param headers: names of headers that are signed too; their values are text, integers or booleans.
        :raises ConfigError: a key is no Ed25519 key, or `private` does not belong to the public key `current`.
        :raises UsageError: `cryptography` is not installed.
        """
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
        except ImportError:
            raise missing_extra_error("crypto", "Signing.ed25519") from None
        check_key_ids("Signing", list(public), current)
        for key_id, key in public.items():
            if len(key) != KEY_BYTES:
                raise ConfigError(f"Signing: the public key {key_id!r} has {len(key)} bytes, not {KEY_BYTES}")
        sign = None
        if private is not None:
            if current is None or len(private) != KEY_BYTES:
                raise ConfigError(
                    f"Signing: a private key must have {KEY_BYTES} bytes and an id, current=..."
                )
            own = Ed25519PrivateKey.from_private_bytes(private)
            if own.public_key().public_bytes_raw() != public[current]:
                raise ConfigError(f"Signing: the private key does not belong to the public key {current!r}")
            sign = (current, own.sign)
        verify = {
            key_id: _ed25519_verify(Ed25519PublicKey.from_public_bytes(key)) for key_id, key in public.items()
        }
        return cls(ED25519, verify, sign, required=required, max_age=max_age, headers=headers)

    @property
    def lost_without_app(self) -> str:
        return "messages are neither signed nor checked"

    def register(self, app: App) -> None:
        super().register(app)
        self._clock = app.clock
        app.middleware(publish=self._attach if self._sign is not None else None, handle=self._check)

    async def on_start(self) -> None:
        """Do nothing when the App starts: it calls this middleware for each message that it publishes or handles."""

    async def on_stop(self) -> None:
        """Do nothing when the App stops: there is no connection, file or task to close."""

    async def _attach(self, outgoing: Outgoing, call_next: Callable[[Outgoing], Awaitable[None]]) -> None:
        assert self._sign is not None
        key_id, sign = self._sign
        header = ProtectionHeader(self._algorithm, key_id, int(self._clock.now() * 1000))
        data = authenticated_data(header, outgoing.properties, outgoing.headers, self._headers)
        signature = sign(_signed(data, outgoing.body))
        outgoing.set_header(SIGNED_HEADER, str(header))
        outgoing.set_header(HEADER, base64.b64encode(signature).decode())
        self.statistics.protected += 1
        await call_next(outgoing)

    async def _check(self, delivery: Delivery, call_next: Callable[[Delivery], Awaitable[None]]) -> None:
        text, signature = delivery.headers.get(SIGNED_HEADER), delivery.headers.get(HEADER)
        if text is None and signature is None and not self._required:
            self.statistics.unprotected += 1
            await call_next(delivery)
            return
        try:
            self._verify_signature(delivery, text, signature)
        except DeadLetter:
            self.statistics.rejected += 1
            raise
        self.statistics.accepted += 1
        await call_next(delivery)

    def _verify_signature(self, delivery: Delivery, text: object, signature: object) -> None:
        if text is None or not isinstance(signature, str):
            raise DeadLetter("the message is not signed, and only signed messages are accepted here")
        header = parse_header(text)
        if header is None or header.algorithm != self._algorithm:
            raise DeadLetter(f"the message has no valid header of a signature by {self._algorithm}")
        verify = self._verify.get(header.key_id)
        if verify is None:
            raise DeadLetter(
                f"the message is signed with the key {header.key_id!r}, which this process does not have"
            )
        try:
            claimed = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            raise DeadLetter("the signature of the message is not Base64") from None
        data = authenticated_data(header, delivery.properties, delivery.headers, self._headers)
        if not verify(claimed, _signed(data, delivery.body)):
            raise DeadLetter(
                f"the message was changed on its way, or not signed with the key {header.key_id!r}"
            )
        check_age(header, self._max_age, self._clock.now())

    def __repr__(self) -> str:
        current = None if self._sign is None else self._sign[0]
        return f"Signing({self._algorithm}, keys={sorted(self._verify)}, current={current!r})"


def _signed(data: bytes, body: bytes) -> bytes:
    # The authenticated data is JSON on one line, so no byte can move from one side of the line end to the other.
    return data + b"\n" + body


def _hmac_sign(secret: bytes) -> Sign:
    return lambda text: hmac.digest(secret, text, hashlib.sha256)


def _hmac_verify(secret: bytes) -> Verify:
    return lambda claimed, text: hmac.compare_digest(claimed, hmac.digest(secret, text, hashlib.sha256))


def _ed25519_verify(key: Ed25519PublicKey) -> Verify:
    from cryptography.exceptions import InvalidSignature

    def verify(claimed: bytes, text: bytes) -> bool:
        try:
            key.verify(claimed, text)
        except InvalidSignature:
            return False
        return True

    return verify


__all__ = ["Signing"]
