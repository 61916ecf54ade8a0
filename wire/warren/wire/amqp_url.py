"""AMQP URLs: where a broker is and who asks, from one line of text.

The form is RabbitMQ's (https://www.rabbitmq.com/docs/uri-spec), but for one point in which clients differ
from it: a path that is empty or `/` means the virtual host `/`.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

PORTS = {"amqp": 5672, "amqps": 5671}


class AmqpUrl(NamedTuple):
    """The parts of an AMQP URL, percent-decoded; what is left out has RabbitMQ's default."""

    host: str
    port: int
    user: str
    password: str
    virtual_host: str
    tls: bool

    @property
    def masked(self) -> str:
        """The URL for logs and messages: without its password."""
        scheme = "amqps" if self.tls else "amqp"
        host = f"[{self.host}]" if ":" in self.host else self.host
        user, virtual_host = quote(self.user, safe=""), quote(self.virtual_host, safe="")
        return f"{scheme}://{user}@{host}:{self.port}/{virtual_host}"


def parse_url(text: str) -> AmqpUrl:
    """The parts of `text`.

    :raises ValueError: one line that says what is wrong, without the password, if `text` is no AMQP URL
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("not an AMQP URL: its host or port cannot be read") from None
    if parts.scheme not in PORTS:
        found = repr(parts.scheme) if "://" in text else "none"
        raise ValueError(f"not an AMQP URL: it must begin with amqp:// or amqps://, its scheme is {found}")
    if parts.fragment or "/" in parts.path[1:]:
        raise ValueError("not an AMQP URL: write a / in the virtual host as %2F, a # as %23")
    return AmqpUrl(
        host=parts.hostname or "localhost",
        port=PORTS[parts.scheme] if port is None else port,
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        virtual_host=unquote(parts.path[1:]) or "/",
        tls=parts.scheme == "amqps",
    )


def connection_name(client: object, server: object) -> str:
    """A connection as RabbitMQ names it, by the addresses of its ends; what is no internet address has no name."""
    return f"{_end(client)} -> {_end(server)}"


def _end(address: object) -> str:
    if not isinstance(address, tuple):
        return ":"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
