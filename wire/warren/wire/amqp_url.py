"""AMQP URLs, as RabbitMQ defines them (https://www.rabbitmq.com/docs/uri-spec).

One rule differs, as in most clients: a path that is empty or `/` means the virtual host `/`.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

PORTS = {"amqp": 5672, "amqps": 5671}
RESERVED = "write @ / : # ? in a user, a password or a virtual host as %40 %2F %3A %23 %3F"


class AmqpUrl(NamedTuple):
    """Parts of an AMQP URL, percent-decoded. A part that the URL leaves out has RabbitMQ's default."""

    host: str
    port: int
    user: str
    password: str
    virtual_host: str
    tls: bool

    @property
    def masked(self) -> str:
        """The URL without its password, for logs and error texts."""
        scheme = "amqps" if self.tls else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        user, virtual_host = quote(self.user, safe=""), quote(self.virtual_host, safe="")
        return f"{scheme}://{user}@{host}:{self.port}/{virtual_host}"


def parse_url(text: str) -> AmqpUrl:
    """Parse an AMQP URL.

    :raises ValueError: if `text` is not an AMQP URL; the message is one line and never contains the password
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"not an AMQP URL: its host or port cannot be read; {RESERVED}") from None
    if parts.scheme not in PORTS:
        found = repr(parts.scheme) if "://" in text else "none"
        # Only an address without credentials is repeated.
        remedy = f"; write amqp://{text}" if re.fullmatch(r"[\w.-]+(:\d+)?", text) else ""
        raise ValueError(
            f"not an AMQP URL: it must begin with amqp:// or amqps://, its scheme is {found}{remedy}"
        )
    if parts.fragment or "/" in parts.path[1:]:
        raise ValueError(f"not an AMQP URL: it contains a # or a second /; {RESERVED}")
    # An empty password is one; `amqp://@h` names neither a user nor a password.
    has_user = bool(parts.username) or parts.password is not None
    return AmqpUrl(
        host=parts.hostname or "localhost",
        port=PORTS[parts.scheme] if port is None else port,
        user=_decoded(parts.username or "", "user") if has_user else "guest",
        password="guest" if parts.password is None else _decoded(parts.password, "password"),
        virtual_host=_decoded(parts.path[1:], "virtual host") or "/",
        tls=parts.scheme == "amqps",
    )


def _decoded(text: str, part: str) -> str:
    """Return a percent-decoded part of a URL.

    :param part: name of the part, for the error text
    :raises ValueError: if its bytes are not UTF-8
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"not an AMQP URL: the bytes of its {part} are not UTF-8") from None


def connection_name(client: object, server: object) -> str:
    """Return RabbitMQ's name of a connection, `host:port -> host:port`.

    :param client: socket address of the client; the name of an end that is no socket; anything else appears as `:`
    :param server: socket address of the server
    """
    return f"{_end(client)} -> {_end(server)}"


def _end(address: object) -> str:
    if not isinstance(address, tuple):
        return address if isinstance(address, str) and address else ":"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
