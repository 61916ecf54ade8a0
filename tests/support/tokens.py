"""Access tokens and the keys that sign them, and an HTTPS server of those keys."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tests.support.certificates import Authority

ALGORITHMS = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}
"""Key ids of an issuer, with the algorithm that each signs with."""


class Issuer:
    """Identity provider with an RSA key, an EC key and an Ed25519 key, whose ids are `rsa`, `ec` and `ed`.

    :param pem: RSA key to use in the place of a new one
    """

    def __init__(self, pem: bytes | None = None) -> None:
        keys = {
            "rsa": load_pem_private_key(pem, None) if pem else rsa.generate_private_key(65537, 2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
            "ed": ed25519.Ed25519PrivateKey.generate(),
        }
        texts = {
            name: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            for name, key in keys.items()
        }
        self.public = {
            name: key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            for name, key in keys.items()
        }
        self.keys: dict[str, RSAKey | ECKey | OKPKey] = {
            "rsa": RSAKey.import_key(texts["rsa"]),
            "ec": ECKey.import_key(texts["ec"]),
            "ed": OKPKey.import_key(texts["ed"]),
        }

    def write_keys(self, folder: Path) -> dict[str, str]:
        """Write the public keys to files, and return their paths by key id."""
        for name, text in self.public.items():
            (folder / f"{name}.pem").write_bytes(text)
        return {name: str(folder / f"{name}.pem") for name in self.public}

    def jwks(self, *names: str) -> dict[str, Any]:
        """Return the JWKS with the keys of these ids; all without any."""
        return {
            "keys": [
                {**self.keys[name].as_dict(private=False), "kid": name, "use": "sig"}
                for name in names or self.keys
            ]
        }

    def token(self, kid: str = "rsa", header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a token for the audience `rabbitmq` that expires in an hour; a claim of None is left out."""
        payload = {"aud": "rabbitmq", "sub": "bob", "exp": int(time.time()) + 3600, **claims}
        text = json.dumps({name: value for name, value in payload.items() if value is not None})
        head = {"alg": ALGORITHMS[kid], "kid": kid, **(header or {})}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            return jws.serialize_compact(
                {name: value for name, value in head.items() if value is not None},
                text.encode(),
                self.keys[kid],
                algorithms=[head["alg"]],
            )


def unsigned(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """Return a token with this signature."""
    return (
        ".".join(segment(json.dumps(part).encode()) for part in (header, claims)) + "." + segment(signature)
    )


def segment(data: bytes) -> str:
    """Return bytes as a part of a token."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class JwksServer:
    """HTTPS server of documents by path, with a certificate of its own authority. It counts requests."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.issue("jwks", "/CN=localhost")
        self.documents: dict[str, bytes] = {}
        self.statuses: dict[str, int] = {}
        self.headers: dict[str, str] = {}
        self.requests: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        documents = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                documents.requests.append(self.path)
                documents.may_answer.wait(120)
                self.send_response(
                    documents.statuses.get(self.path, 200 if self.path in documents.documents else 404)
                )
                for name, value in documents.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(documents.documents.get(self.path, b""))

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Leave requests without an answer until the end of the block."""
        self.may_answer.clear()
        try:
            yield
        finally:
            self.may_answer.set()

    def __enter__(self) -> JwksServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
