"""Logins with access tokens: verification of signature, audience and times, and the user that a token names."""

from __future__ import annotations

import base64
import binascii
import json
import math
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning

from warren.broker.access.access_control import Access
from warren.broker.access.login_chain import Login, LoginRefused
from warren.broker.access.oauth2.oauth2_config import OAuth2Config
from warren.broker.access.oauth2.scopes import TooManyScopes, scopes_of, tags_of
from warren.broker.access.oauth2.signing_keys import SigningKey, SigningKeys
from warren.broker.access.oauth2.token_authorization import TokenAuthorization
from warren.broker.access.pending_decisions import DecisionPending
from warren.broker.access.users import User

MOST_TOKEN: Final = 65536
"""Largest token in bytes."""
UNKNOWN_USER: Final = "unknown"
"""Name of the user of a token that names none, as in RabbitMQ."""


class TokenBackend:
    """Back end that accepts access tokens as passwords; the user name that comes with one is ignored, as in RabbitMQ.

    :param now: returns Unix time.
    """

    def __init__(
        self, config: OAuth2Config, keys: SigningKeys, access: Access, now: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._keys = keys
        self._access = access
        self._now = now

    def authenticate(self, _name: str, password: bytes, _address: str = "") -> Login:
        """Verify a token, and return the login of the user that it names.

        :raises LoginRefused: if it is no valid token for this broker.
        :raises DecisionPending: if its key has to be fetched first.
        """
        claims = self.verify(password)
        user_name = _user_name(claims, self._config.preferred_username_claims)
        try:
            scopes = scopes_of(claims, self._config)
        except TooManyScopes as error:
            raise LoginRefused(f"the token is refused: {error}") from None
        user = User(user_name, tags=tags_of(scopes))

        def renew(secret: bytes) -> Login:
            renewed = self.authenticate(user_name, secret)
            if renewed.user.name != user_name:
                raise LoginRefused(f"the new token is of user {renewed.user.name!r}, not of {user_name!r}")
            return renewed

        return Login(
            user,
            lambda vhost, compat: TokenAuthorization(self._access, user, vhost, compat, scopes, claims),
            float(claims["exp"]) + self._config.leeway,
            renew,
        )

    def close(self) -> None:
        """Wait for no fetch of keys any more."""
        self._keys.close()

    def verify(self, token: bytes) -> dict[str, Any]:
        """Return the claims of a valid token.

        :raises LoginRefused: if its form, signature, audience or times are wrong.
        :raises DecisionPending: if its key has to be fetched first.
        """
        if len(token) > MOST_TOKEN or token.count(b".") != 2 or not token.isascii():
            raise LoginRefused("the password is no access token")
        header = _json_object(_decode(token.partition(b".")[0]))
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._config.algorithms:
            raise LoginRefused(f"the token's algorithm {algorithm!r} is not allowed")
        key = self._key(header)
        if algorithm not in key.algorithms:
            raise LoginRefused(f"the token's algorithm {algorithm!r} is not that of its key")
        try:
            with warnings.catch_warnings():
                # RFC 9864 deprecates the name EdDSA, under which identity providers still sign.
                warnings.simplefilter("ignore", SecurityWarning)
                verified = jws.deserialize_compact(token, key.key, algorithms=[algorithm])
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise LoginRefused(f"the token's signature is not valid: {error}") from None
        claims = _json_object(verified.payload)
        self._check_times(claims)
        self._check_audience(claims)
        return claims

    def _key(self, header: dict[str, Any]) -> SigningKey:
        key_id = header.get("kid", self._config.default_key)
        if not isinstance(key_id, str) or not key_id:
            raise LoginRefused("the token names no key, and oauth2_default_key is not set")
        key = self._keys.get(key_id)
        if key is None:
            fetched = self._keys.refresh()
            if fetched is not None:
                raise DecisionPending(fetched)
            raise LoginRefused(f"the token's key {key_id[:64]!r} is unknown")
        return key

    def _check_times(self, claims: dict[str, Any]) -> None:
        now, leeway = self._now(), self._config.leeway
        expires = _number(claims, "exp")
        if expires is None:
            raise LoginRefused("the token has no time of expiry (exp)")
        if expires + leeway <= now:
            raise LoginRefused("the token has expired")
        not_before = _number(claims, "nbf")
        if not_before is not None and not_before - leeway > now:
            raise LoginRefused("the token is not valid yet (nbf)")

    def _check_audience(self, claims: dict[str, Any]) -> None:
        if not self._config.verify_aud:
            return
        audience = claims.get("aud")
        found = audience.split() if isinstance(audience, str) else audience
        if not isinstance(found, list) or self._config.resource_server_id not in found:
            raise LoginRefused(f"the token's audience does not include {self._config.resource_server_id!r}")


def _decode(part: bytes) -> bytes:
    try:
        return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise LoginRefused("the token's header is no Base64") from None


def _json_object(data: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        found = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise LoginRefused("a part of the token is no JSON") from None
    if not isinstance(found, dict):
        raise LoginRefused("a part of the token is no JSON object")
    return found


def _number(claims: dict[str, Any], name: str) -> float | None:
    """Return a time in claims; None if it is missing."""
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise LoginRefused(f"the token's claim {name} is no number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise LoginRefused(f"the token's claim {name} is out of range")
    return found


def _user_name(claims: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return the value of the first of these claims that is a text; names longer than AMQP allows are refused."""
    found = next((claims[name] for name in names if isinstance(claims.get(name), str)), UNKNOWN_USER)
    assert isinstance(found, str)
    try:
        size = len(found.encode())
    except UnicodeEncodeError:
        raise LoginRefused("the user name in the token is no Unicode text") from None
    if not 0 < size <= 255:
        raise LoginRefused("the user name in the token is empty, or longer than 255 bytes")
    return found
