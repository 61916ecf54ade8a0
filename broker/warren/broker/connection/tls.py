"""TLS for listeners: how a broker shows who it is, whom it asks for a certificate, and which user a certificate stands for.

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

INTERVAL: Final = 60.0
"""Seconds between two looks at the files."""
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(ValueError):
    """A certificate, a key or a list of ciphers cannot be used; the text is one line."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """How connections are encrypted.

    :param listeners: addresses to listen at with TLS, as `host:port` or a port; 0 takes any free one.
    :param certificate: the broker's certificate, and those between it and its authority (PEM).
    :param key: its private key (PEM).
    :param key_password: the key's password, if it has one.
    :param ca: the authorities whose client certificates are accepted (PEM).
    :param verify: whether clients are asked for a certificate: `none`, `optional`, or `required`.
    :param versions: the versions of TLS that are spoken: of `1.2` and `1.3`.
    :param ciphers: the ciphers of TLS 1.2, as OpenSSL lists them; empty for its own choice.
    :param login_from: which part of a client's certificate is the user name for the mechanism EXTERNAL:
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
            raise ValueError("tls_listeners need tls_certificate and tls_key")
        if self.verify != "none" and self.ca is None:
            raise ValueError(f"tls_verify is {self.verify}; it needs tls_ca, the authorities to trust")
        wrong = [version for version in self.versions if version not in VERSIONS]
        if wrong or not self.versions:
            raise ValueError(f"tls_versions is {', '.join(self.versions)}; there are: {', '.join(VERSIONS)}")

    def context(self) -> ssl.SSLContext:
        """What the listeners need.

        :raises TlsError: naming the setting whose file or list cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        chosen = sorted(VERSIONS[version] for version in self.versions)
        context.minimum_version, context.maximum_version = chosen[0], chosen[-1]
        self.load(context)
        if self.ciphers:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError:
                raise TlsError(f"tls_ciphers is {self.ciphers!r}; OpenSSL knows none of them") from None
        if self.verify != "none":
            context.verify_mode = ssl.CERT_REQUIRED if self.verify == "required" else ssl.CERT_OPTIONAL
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Take certificate, key and authorities from their files; authorities are added to those that are known.

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
        """The user that the other end's certificate stands for; empty without one, or if nobody has verified it."""
        subject = (connection.getpeercert() or {}).get("subject", ())
        # The types of the standard library know more than a subject here.
        names = [[(str(pair[0]), str(pair[1])) for pair in parts] for parts in subject]
        if self.login_from == "distinguished_name":
            return distinguished_name(names)
        return ",".join(value for parts in names for kind, value in parts if kind == "commonName")


class Secured:
    """What listeners with TLS share: their context, which follows its files when they change.

    A certificate that is renewed in its place counts for the connections that are made from then on, within a minute.
    """

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self.context = config.context()
        self._files = self._stamps()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the files, and go on looking."""
        self.look()
        self._timer = loop.call_later(INTERVAL, self.watch, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Take the files if they have changed; if they cannot be used, what was taken before stays."""
        files = self._stamps()
        if files == self._files:
            return
        try:
            # In a context of its own first: one that fails half-way has a certificate without its key.
            self.config.context()
            self.config.load(self.context)
        except TlsError as error:
            logger.error("event=certificate_not_renewed reason=%r", str(error))
        else:
            self._files = files
            logger.info("event=certificate_renewed file=%s", self.config.certificate)

    def _stamps(self) -> list[tuple[int, int, int]]:
        found = []
        for path in (self.config.certificate, self.config.key, self.config.ca):
            with contextlib.suppress(OSError):
                if path is not None:
                    status = path.stat()
                    found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found


SHORT: Final = {
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


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """As RabbitMQ writes it, after RFC 4514: the last part first, `O=client,CN=ann`."""
    parts = [
        "+".join(f"{SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in names) for names in subject
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
