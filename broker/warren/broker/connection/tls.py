"""TLS of listeners: certificates, their renewal, and the user that a client's certificate identifies.

https://www.rabbitmq.com/docs/ssl
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

logger = logging.getLogger(__name__)

RELOAD_INTERVAL: Final = 60.0
"""Seconds between two checks for changed certificate files."""
TLS_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(ValueError):
    """Certificate, key or list of ciphers that cannot be used. The text is one line."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """TLS settings of a broker.

    :param listeners: addresses to listen at with TLS, as `host:port` or a port; port 0 stands for any free port.
    :param certificate: file of the broker's certificate, and of the intermediate ones to its authority (PEM).
    :param key: file of its private key (PEM).
    :param key_password: password of the key; empty if it has none.
    :param ca: file of the authorities whose client certificates are accepted (PEM).
    :param verify: whether clients are asked for a certificate: `none`, `optional`, or `required`.
    :param versions: accepted versions of TLS, of `1.2` and `1.3`.
    :param ciphers: ciphers of TLS 1.2, as an OpenSSL cipher list; empty for OpenSSL's default.
    :param login_from: part of a client's certificate that is the user name for the mechanism EXTERNAL:
        `distinguished_name` or `common_name`.
    """

    listeners: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    key_password: str = field(default="", repr=False)
    ca: Path | None = None
    verify: Literal["none", "optional", "required"] = "none"
    versions: tuple[str, ...] = ("1.2", "1.3")
    ciphers: str = ""
    login_from: Literal["distinguished_name", "common_name"] = "distinguished_name"

    def __post_init__(self) -> None:
        if self.listeners and (self.certificate is None or self.key is None):
            raise ValueError("tls_listeners is set; it needs tls_certificate and tls_key")
        if self.verify != "none" and self.ca is None:
            raise ValueError(f"tls_verify is {self.verify}; it needs tls_ca, the authorities to trust")
        wrong = [version for version in self.versions if version not in TLS_VERSIONS]
        if wrong or not self.versions:
            raise ValueError(
                f"tls_versions is {', '.join(self.versions)}; supported are: {', '.join(TLS_VERSIONS)}"
            )

    def context(self) -> ssl.SSLContext:
        """Return a new TLS context with these settings, for the listeners.

        :raises TlsError: naming the setting whose file or list cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        chosen = sorted(TLS_VERSIONS[version] for version in self.versions)
        context.minimum_version, context.maximum_version = chosen[0], chosen[-1]
        self.load(context)
        if self.ciphers:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError:
                raise TlsError(f"tls_ciphers is {self.ciphers!r}; OpenSSL supports none of them") from None
        if self.verify != "none":
            context.verify_mode = ssl.CERT_REQUIRED if self.verify == "required" else ssl.CERT_OPTIONAL
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Load certificate, key and certificate authorities into a context.

        Loading again replaces certificate and key, but authorities that were loaded before stay accepted.

        :raises TlsError: naming the setting whose file cannot be used.
        """
        assert self.certificate is not None
        try:
            context.load_cert_chain(self.certificate, self.key, lambda: self.key_password)
        except OSError as error:
            raise TlsError(
                f"tls_certificate {self.certificate} with tls_key {self.key} cannot be used: {_reason(error)}"
            ) from None
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except OSError as error:
                raise TlsError(f"tls_ca {self.ca} cannot be used: {_reason(error)}") from None

    def user(self, connection: ssl.SSLObject) -> str:
        """Return the user name in the client's certificate; empty without a verified certificate."""
        subject = (connection.getpeercert() or {}).get("subject", ())
        # The standard library's types allow for more than a subject here.
        names = [[(str(pair[0]), str(pair[1])) for pair in parts] for parts in subject]
        if self.login_from == "distinguished_name":
            return distinguished_name(names)
        return ",".join(value for parts in names for kind, value in parts if kind == "commonName")


class TlsContext:
    """TLS context that all listeners share, and that is reloaded when its files change.

    A certificate that is renewed in place is used for new connections within `RELOAD_INTERVAL`.
    """

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self.context = config.context()
        self._files = self._file_versions()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reload certificates now and every RELOAD_INTERVAL seconds, if their files have changed."""
        self.reload_if_changed()
        self._timer = loop.call_later(RELOAD_INTERVAL, self.watch, loop)

    def stop(self) -> None:
        """Stop checking the certificate files for changes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reload_if_changed(self) -> None:
        """Load the certificate files if they have changed; if they cannot be used, keep those loaded before."""
        files = self._file_versions()
        if files == self._files:
            return
        try:
            # Into a new context first: a failure half-way would leave this one with a certificate and another one's key.
            self.config.context()
            self.config.load(self.context)
        except TlsError as error:
            logger.error("event=certificate.reload_failed reason=%r", str(error))
        else:
            self._files = files
            logger.info("event=certificate.reloaded file=%s", self.config.certificate)

    def _file_versions(self) -> list[tuple[int, int, int]]:
        found = []
        for path in (self.config.certificate, self.config.key, self.config.ca):
            with contextlib.suppress(OSError):
                if path is not None:
                    status = path.stat()
                    found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found


SHORT_NAMES: Final = {
    "surname": "SN",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "title": "TITLE",
    "countryName": "C",
    "serialNumber": "SERIALNUMBER",
    "pseudonym": "PSEUDONYM",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""RabbitMQ's abbreviation of each attribute type of a distinguished name (by its name in Python's ssl module)."""


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Format the subject of a certificate as RabbitMQ does, after RFC 4514: the last part first, as `O=client,CN=ann`.

    :param subject: (attribute type, value) pairs, grouped as by `ssl.SSLSocket.getpeercert`
    """
    parts = [
        "+".join(f"{SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in names)
        for names in subject
    ]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    escaped = []
    for position, octet in enumerate(data := value.encode()):
        character = chr(octet)
        at_start, at_end = position == 0, position == len(data) - 1
        if character in '"+,;<>\\' or (at_start and character in " #") or (at_end and character == " "):
            escaped.append("\\" + character)
        elif octet < 32 or octet >= 126:
            escaped.append(f"\\{octet:02X}")
        else:
            escaped.append(character)
    return "".join(escaped)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
