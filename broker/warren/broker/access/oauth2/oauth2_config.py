"""Settings of OAuth 2, under the names of RabbitMQ's plugin (https://www.rabbitmq.com/docs/oauth2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448"),
)
"""Signature algorithms that can be allowed. All are asymmetric: with an HMAC, whoever verifies could also sign."""


@dataclass(frozen=True, kw_only=True)
class OAuth2Config:
    """Settings of logins with OAuth 2 access tokens.

    :param resource_server_id: name of this broker in tokens: their audience, and the default prefix of their scopes.
    :param scope_prefix: prefix of the scopes that are for this broker; `none` is the resource server id and a dot.
    :param issuer: URL of the identity provider; its discovery document names the JWKS.
    :param jwks_uri: https URL of the signing keys (JWKS), or path of a file that holds them; it goes before `issuer`.
    :param ca: certificate authorities of the identity provider, PEM; `none` is those of the system.
    :param signing_keys: files with public keys (PEM), by key id.
    :param default_key: id of the key of tokens that name none.
    :param algorithms: signature algorithms that are allowed.
    :param verify_aud: refuse tokens whose audience (`aud`) does not include `resource_server_id`.
    :param additional_scopes_key: claims with further scopes, as paths such as `roles` or `realm_access.roles`.
    :param scope_aliases: scopes, separated by spaces, that other scopes stand for, by alias.
    :param preferred_username_claims: claims that name the user, the best first.
    :param leeway: seconds by which the clocks of broker and identity provider may differ.
    """

    resource_server_id: str = ""
    scope_prefix: str | None = None
    issuer: str = ""
    jwks_uri: str = ""
    ca: Path | None = None
    signing_keys: Mapping[str, str] = field(default_factory=dict)
    default_key: str = ""
    algorithms: tuple[str, ...] = ALGORITHMS
    verify_aud: bool = True
    additional_scopes_key: tuple[str, ...] = ()
    scope_aliases: Mapping[str, str] = field(default_factory=dict)
    preferred_username_claims: tuple[str, ...] = ("sub", "client_id")
    leeway: int = 0

    def __post_init__(self) -> None:
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise ValueError(f"oauth2_algorithms has {name!r}; it must be of {', '.join(ALGORITHMS)}")
        for name in ("issuer", "jwks_uri"):
            url = getattr(self, name)
            if "://" in url and not url.startswith("https://"):
                raise ValueError(f"oauth2_{name} is {url!r}; it must begin with https://")
        if self.issuer and "://" not in self.issuer:
            raise ValueError(f"oauth2_issuer is {self.issuer!r}; it must begin with https://")
        if not 0 <= self.leeway <= 300:
            raise ValueError(f"oauth2_leeway is {self.leeway}; it must be between 0 and 300")
        if self.default_key and not (self.default_key in self.signing_keys or self.issuer or self.jwks_uri):
            raise ValueError(
                f"oauth2_default_key is {self.default_key!r}; no key in oauth2_signing_keys has that id"
            )

    def check_complete(self) -> None:
        """Check that tokens can be verified.

        :raises ValueError: if the resource server id is missing, or there is no source of keys.
        """
        if not self.resource_server_id:
            raise ValueError("auth_backends has oauth2; it needs oauth2_resource_server_id")
        if not (self.signing_keys or self.jwks_uri or self.issuer):
            raise ValueError(
                "auth_backends has oauth2; it needs oauth2_signing_keys, oauth2_jwks_uri or oauth2_issuer"
            )

    @property
    def prefix(self) -> str:
        """Prefix of the scopes that are for this broker."""
        return f"{self.resource_server_id}." if self.scope_prefix is None else self.scope_prefix
