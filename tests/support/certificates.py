"""Test certificates, created with the `openssl` command: an authority, a server on this machine, clients."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from tests.support.polling import PATIENCE


class Authority:
    """Certificate authority in a folder, with elliptic-curve keys, which are quick to generate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.certificate = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate,
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def issue(self, name: str, subject: str, *, password: str = "") -> tuple[Path, Path]:
        """Issue a certificate for this machine's addresses; return it and its key.

        :param subject: as OpenSSL writes it, `/O=client/CN=ann`
        """
        request, key, certificate = (self.folder / f"{name}.{kind}" for kind in ("csr", "key", "pem"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"
            "authorityKeyIdentifier=keyid\n"
        )
        secret = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        self._openssl(
            "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *secret,
            "-subj", subject, "-utf8", "-keyout", key, "-out", request,
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-days", "2", "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return certificate, key

    def client(self, identity: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return a client context that trusts this authority and presents this certificate."""
        context = ssl.create_default_context(cafile=self.certificate)
        if identity is not None:
            context.load_cert_chain(*identity)
        return context

    def _openssl(self, *words: str | Path) -> None:
        done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
