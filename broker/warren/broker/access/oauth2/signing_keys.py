"""Public keys that verify tokens: from PEM files, from a JWKS file, or from a JWKS that is fetched over HTTPS.

A fetch runs in a thread, and is bounded in size and time. It follows no redirect.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from warren.broker.access.oauth2.oauth2_config import OAuth2Config

logger = logging.getLogger(__name__)

FETCH_SECONDS: Final = 5.0
"""Seconds within which a document of the identity provider has to arrive."""
MOST_BYTES: Final = 1024 * 1024
"""Largest document of the identity provider in bytes."""
MOST_KEYS: Final = 256
"""Most keys of a JWKS; further ones are ignored."""
MIN_REFRESH_SECONDS: Final = 10.0
"""Shortest time between two fetches in seconds: tokens with invented key ids cause no more of them."""
MAX_AGE_SECONDS: Final = 3600.0
"""Age in seconds from which on keys are fetched again at the next login, so that withdrawn keys end."""
MIN_RSA_BITS: Final = 2048
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
"""Algorithm of each elliptic curve."""
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


class KeyUnusable(ValueError):
    """A key that cannot verify tokens: it is malformed, too short, private to another use, or of an unknown type."""


@dataclass(frozen=True)
class SigningKey:
    """Public key with the algorithms that it may verify."""

    key: RSAKey | ECKey | OKPKey
    algorithms: tuple[str, ...]


class SigningKeys:
    """Keys of one identity provider, by key id.

    :param fetch: returns the JWKS; it may block, and raises OSError or ValueError if it fails.
    :param now: returns monotonic time in seconds.
    """

    def __init__(
        self,
        fixed: dict[str, SigningKey],
        fetch: Callable[[], object] | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = fixed
        self._fetch = fetch
        self._now = now
        self._fetched: dict[str, SigningKey] = {}
        self._fetched_at: float | None = None
        """Time of the last successful fetch; None before it."""
        self._tried_at: float | None = None
        self._running: asyncio.Task[None] | None = None

    def get(self, key_id: str) -> SigningKey | None:
        """Return the key with an id; None if there is none. Keys of a configured file go before fetched ones."""
        if self._fetched_at is not None and self._now() - self._fetched_at > MAX_AGE_SECONDS:
            self.refresh()
        return self._fixed.get(key_id) or self._fetched.get(key_id)

    def refresh(self) -> asyncio.Future[None] | None:
        """Fetch the keys again. Return a future that is done afterwards, also after a failure.

        Return None if keys are not fetched, or the last attempt was less than MIN_REFRESH_SECONDS ago.
        """
        if self._running is not None:
            return self._running
        now = self._now()
        if self._fetch is None or (self._tried_at is not None and now - self._tried_at < MIN_REFRESH_SECONDS):
            return None
        self._tried_at = now
        self._running = asyncio.get_running_loop().create_task(self._refresh(self._fetch))
        return self._running

    def close(self) -> None:
        """Wait for no fetch any more."""
        if self._running is not None:
            self._running.cancel()

    async def _refresh(self, fetch: Callable[[], object]) -> None:
        try:
            found = read_jwks(await asyncio.get_running_loop().run_in_executor(None, fetch))
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            logger.warning("event=oauth.keys_not_fetched error=%r kept=%d", str(error), len(self._fetched))
        except Exception:
            logger.exception("event=oauth.keys_crashed kept=%d", len(self._fetched))
        else:
            self._fetched, self._fetched_at = found, self._now()
            logger.info("event=oauth.keys_fetched keys=%d", len(found))
        finally:
            # Again: a login that waited must find the attempt younger than the limit, or it would wait for ever.
            self._tried_at = self._now()
            self._running = None


def read_jwks(document: object) -> dict[str, SigningKey]:
    """Return the usable keys of a JWKS by id; others, such as those for encryption, are left out.

    :raises ValueError: if it is no JWKS.
    """
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError("the document is no JWKS: it has no list 'keys'")
    found: dict[str, SigningKey] = {}
    for row in rows[:MOST_KEYS]:
        try:
            key_id = row["kid"]
            if isinstance(key_id, str):
                found.setdefault(key_id, key_from_jwk(row))
        except (KeyUnusable, KeyError, TypeError) as error:
            logger.debug("event=oauth.key_ignored reason=%r", str(error))
    return found


def key_from_jwk(row: dict[str, Any]) -> SigningKey:
    """Return the key that a JWK describes.

    :raises KeyUnusable: if it is not a public key for signatures.
    """
    if row.get("use", "sig") != "sig" or "verify" not in row.get("key_ops", ["verify"]):
        raise KeyUnusable("it is not for signatures")
    # Without what restricts or names it, which is checked here: the library refuses values that it does not know.
    public: dict[str, Any] = {name: row[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in row}
    try:
        key: RSAKey | ECKey | OKPKey
        if row.get("kty") == "RSA":
            key = RSAKey.import_key(public)
        elif row.get("kty") == "EC":
            key = ECKey.import_key(public)
        elif row.get("kty") == "OKP":
            key = OKPKey.import_key(public)
        else:
            raise KeyUnusable(f"its type {row.get('kty')!r} is unknown, or symmetric")
        usable = _algorithms(key.raw_value)
    except (JoseError, ValueError, TypeError, AttributeError) as error:
        raise KeyUnusable(str(error)) from None
    algorithm = row.get("alg")
    if algorithm is not None and algorithm not in usable:
        raise KeyUnusable(f"its algorithm {algorithm!r} does not fit its type")
    return SigningKey(key, usable if algorithm is None else (algorithm,))


def key_from_pem(text: bytes) -> SigningKey:
    """Return the key of a PEM text: a public key or a certificate.

    :raises KeyUnusable: if it is neither, or cannot verify signatures.
    """
    try:
        raw = (
            load_pem_x509_certificate(text).public_key()
            if b"BEGIN CERTIFICATE" in text
            else load_pem_public_key(text)
        )
        usable = _algorithms(raw)
        pem = raw.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        key: RSAKey | ECKey | OKPKey
        if isinstance(raw, rsa.RSAPublicKey):
            key = RSAKey.import_key(pem)
        elif isinstance(raw, ec.EllipticCurvePublicKey):
            key = ECKey.import_key(pem)
        else:
            key = OKPKey.import_key(pem)
        return SigningKey(key, usable)
    except KeyUnusable:
        raise
    except Exception as error:
        # Which exceptions the parser raises depends on the version of OpenSSL.
        raise KeyUnusable(str(error)) from None


def _algorithms(key: object) -> tuple[str, ...]:
    """Return the algorithms that a public key may verify.

    :raises KeyUnusable: if there are none.
    """
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            raise KeyUnusable(f"an RSA key of {key.key_size} bits is too short; use at least {MIN_RSA_BITS}")
        return RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePublicKey):
        name = f"P-{key.curve.key_size}"
        if name in CURVES and key.curve.name.startswith("secp") and key.curve.name.endswith("r1"):
            return (CURVES[name],)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return ("EdDSA", "Ed25519")
    if isinstance(key, ed448.Ed448PublicKey):
        return ("EdDSA", "Ed448")
    raise KeyUnusable("it is no public RSA, EC or Ed25519 key")


def load_signing_keys(config: OAuth2Config) -> SigningKeys:
    """Read the configured key files, and return the keys.

    :raises ValueError: if a file cannot be read, or has no usable key.
    """
    fixed = {}
    for key_id, name in config.signing_keys.items():
        try:
            fixed[key_id] = key_from_pem(Path(name).expanduser().read_bytes())
        except (OSError, KeyUnusable) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"oauth2_signing_keys: cannot use {name} as the key {key_id!r}: {reason}"
            ) from None
    if config.jwks_uri and "://" not in config.jwks_uri:
        path = Path(config.jwks_uri).expanduser()
        try:
            read_jwks(_read_file(path))
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"oauth2_jwks_uri: cannot use {path}: {reason}") from None
        return SigningKeys(fixed, lambda: _read_file(path))
    if not config.jwks_uri and not config.issuer:
        return SigningKeys(fixed, None)
    try:
        context = ssl.create_default_context(cafile=config.ca)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"oauth2_ca: cannot use {config.ca}: {error}") from None

    def fetch() -> object:
        return fetch_json(config.jwks_uri or _discovered(config.issuer, context), context)

    return SigningKeys(fixed, fetch)


def _discovered(issuer: str, context: ssl.SSLContext) -> str:
    """Return the URL of the JWKS that the discovery document of an identity provider names."""
    document = fetch_json(issuer.rstrip("/") + DISCOVERY_PATH, context)
    url = document.get("jwks_uri") if isinstance(document, dict) else None
    if not isinstance(url, str) or not url.startswith("https://"):
        raise ValueError(f"the discovery document of {issuer} has no jwks_uri with https")
    return url


def _read_file(path: Path) -> object:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES} bytes")
    return json.loads(data)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow no redirect: it could lead to another host, or away from TLS."""


def fetch_json(url: str, context: ssl.SSLContext) -> object:
    """Fetch a JSON document over HTTPS. It blocks, for at most about two times FETCH_SECONDS.

    :raises OSError: if the server cannot be reached, its certificate is not valid, or it takes too long.
    :raises ValueError: if the document is too large, or no JSON.
    """
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())
    end = time.monotonic() + FETCH_SECONDS
    data = b""
    try:
        with opener.open(url, timeout=FETCH_SECONDS) as answer:
            # In pieces: the timeout of the socket starts anew with each byte.
            while piece := answer.read1(65536):
                data += piece
                if len(data) > MOST_BYTES:
                    raise ValueError(f"{url} is larger than {MOST_BYTES} bytes")
                if time.monotonic() > end:
                    raise TimeoutError(f"{url} took longer than {FETCH_SECONDS:.0f} s")
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"{url} answered {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(f"cannot fetch {url}: {error.reason}") from None
    return json.loads(data)
