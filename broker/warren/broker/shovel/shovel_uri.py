"""URIs of shovels: AMQP URIs with RabbitMQ's query parameters, and without a host for this broker.

https://www.rabbitmq.com/docs/uri-query-parameters. The error of an invalid URI is the one of RabbitMQ's module amqp_uri.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from warren.core.erlang_terms import Atom, ErlangString, Term
from warren.wire.amqp_url import PORTS

NUMBERS: Final = ("channel_max", "frame_max", "heartbeat", "connection_timeout")
"""Query parameters that hold a whole number."""
NETWORK_FIELDS: Final = (
    "username",
    "virtual_host",
    "host",
    "port",
    *NUMBERS,
    "ssl_options",
    "auth_mechanisms",
    "client_properties",
    "socket_options",
)
"""Names of query parameters in RabbitMQ's order; it refuses all but NUMBERS, as they are parts of the URI or fixed."""
DIRECT_FIELDS: Final = ("username", "virtual_host", "node", "adapter_info", "client_properties")
TLS_PARAMETERS: Final = (
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "fail_if_no_peer_cert",
    "password",
    "server_name_indication",
    "depth",
    "customize_hostname_check",
)
DEFAULT_HEARTBEAT: Final = 10
"""Heartbeat timeout in seconds that a shovel proposes."""
CONNECTION_TIMEOUT: Final = 60.0
"""Seconds within which a connection has to be open."""
MECHANISMS: Final = ("plain", "amqplain", "external")


class InvalidUri(ValueError):
    """Error in a URI, as the term that RabbitMQ prints."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.term = term


@dataclass(frozen=True)
class ShovelUri:
    """Parts of a URI, percent-decoded.

    :param text: the URI as it was defined; it may hold a password.
    :param host: name or address of the host; empty for this broker.
    :param user: name of the user; None if the URI has none.
    :param password: password; None if the URI has none.
    :param query: parameters after the `?`, of which only the known ones have a meaning.
    """

    text: str = field(repr=False)
    host: str
    port: int
    user: str | None
    password: str | None = field(repr=False)
    virtual_host: str
    tls: bool
    query: dict[str, str] = field(repr=False)

    @property
    def is_direct(self) -> bool:
        """True if the URI means this broker, which a shovel reaches without a socket."""
        return not self.host

    @property
    def heartbeat(self) -> int:
        """Heartbeat timeout in seconds; 0 is none."""
        return min(max(0, int(self.query.get("heartbeat", DEFAULT_HEARTBEAT))), 0xFFFF)

    @property
    def connection_timeout(self) -> float:
        """Seconds within which the connection has to be open."""
        milliseconds = self.query.get("connection_timeout")
        return CONNECTION_TIMEOUT if milliseconds is None else max(0.0, int(milliseconds) / 1000)


def shown_uri(text: str) -> str:
    """Return a URI as status and logs show it: without user, password and query, as RabbitMQ removes them."""
    scheme, colon, rest = text.partition(":")
    if not colon or not rest.startswith("//"):
        return re.sub("://[^@/]*@", "://", text)
    authority, path = _split_authority(rest[2:])
    host = authority.partition("@")[2] if "@" in authority else authority
    host = host.removeprefix("[").replace("]", "") if host.startswith("[") else host
    return f"{scheme}://{host}{re.split('[?#]', path)[0]}"


def parse_uri(text: str) -> ShovelUri:
    """Parse the URI of a source or destination.

    A path that is `/` means the virtual host `/`, as in all URLs of Warren.

    :raises InvalidUri: if it is invalid.
    """
    try:
        return _parse(text)
    except InvalidUri as invalid:
        raise InvalidUri((invalid.term, ErlangString(text))) from None


def _parse(text: str) -> ShovelUri:
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise InvalidUri((Atom("unable_to_parse_uri"), Atom("no_scheme")))
    authority, path_and_query = _split_authority(rest[2:]) if rest.startswith("//") else ("", rest)
    path_and_query = path_and_query.partition("#")[0]
    path, _, query_text = path_and_query.partition("?")
    query = [each.partition("=") for each in query_text.split("&")] if query_text else []
    pairs = [(name, value) for name, equals, value in query if equals]
    user_info, at, host_port = authority.partition("@")
    if not at:
        user_info, host_port = "", authority
    host, port = _split_port(text, host_port)
    lower = scheme.lower()
    if lower not in PORTS:
        raise InvalidUri((Atom("unexpected_uri_scheme"), ErlangString(lower)))
    if port is not None and not 0 < port <= 65535:
        raise InvalidUri((Atom("port_out_of_range"), port))
    if "/" in path[1:]:
        raise InvalidUri((Atom("invalid_vhost"), ErlangString(path[1:])))
    virtual_host = _unescaped(path[1:]) or "/"
    host = _unescaped(host)
    if not host and port is not None:
        raise InvalidUri(Atom("port_requires_host"))
    if not rest.startswith("//"):
        raise InvalidUri((Atom("case_clause"), Atom("undefined")))
    if not host and lower == "amqps":
        raise InvalidUri(Atom("tls_requires_host"))
    given = user_info.split(":") if user_info else []
    user = _unescaped(given[0]) if given else None
    password = _unescaped(given[1]) if len(given) > 1 else None
    _check_query(pairs, host, lower == "amqps")
    return ShovelUri(
        text,
        host,
        PORTS[lower] if port is None else port,
        user,
        password,
        virtual_host,
        lower == "amqps",
        # Of a name that is there twice the first counts.
        dict(reversed(pairs)),
    )


def _split_authority(rest: str) -> tuple[str, str]:
    found = re.search("[/?#]", rest)
    return (rest, "") if found is None else (rest[: found.start()], rest[found.start() :])


def _split_port(text: str, host_port: str) -> tuple[str, int | None]:
    if host_port.startswith("["):
        host, _, after = host_port[1:].partition("]")
        if not after:
            return host, None
        colon, port = after[:1], after[1:]
        if colon != ":":
            raise _malformed(text, (Atom("invalid_port"), ErlangString(after)))
    else:
        host, colon, port = host_port.partition(":")
        if not colon:
            return host, None
    if re.fullmatch("[+-]?[0-9]+", port) is None:
        raise _malformed(text, Atom("badarg"))
    return host, int(port)


def _malformed(text: str, reason: Term) -> InvalidUri:
    return InvalidUri((Atom("unable_to_parse_uri"), (Atom("malformed_uri"), ErlangString(text), reason)))


def _unescaped(text: str) -> str:
    for found in re.finditer("%(.{0,2})", text):
        digits = found[1]
        if len(digits) < 2:
            rest: list[Term] = [Atom("%"), *(ord(each) for each in digits)]
            raise InvalidUri((Atom("unterminated_entity"), rest))
        if re.fullmatch("[0-9a-fA-F]{2}", digits) is None:
            raise InvalidUri((Atom("invalid_entitiy"), [Atom("%"), *(ord(each) for each in digits)]))
    return unquote(text, errors="surrogateescape")


def _check_query(pairs: list[tuple[str, str]], host: str, tls: bool) -> None:
    """Check the parameters of the query.

    :raises InvalidUri: if one has a wrong value, or may not be set in a query.
    """
    given: list[Term] = [(ErlangString(name), ErlangString(value)) for name, value in pairs]

    def refuse(error: str, name: str, value: str, reason: Term) -> InvalidUri:
        return InvalidUri((Atom(error), Atom(name), ErlangString(value), given, reason))

    query = dict(reversed(pairs))
    if host:
        for name, value in pairs:
            if name != "auth_mechanism":
                continue
            words: list[Term] = [Atom(word) for word in value.split(":")]
            if len(words) > 2:
                raise InvalidUri((Atom("not_mechanism"), words))
            if words[-1] not in MECHANISMS:
                raise InvalidUri((Atom("unknown_mechanism"), ErlangString(value)))
    if tls and host:
        for name in TLS_PARAMETERS:
            value = query.get(name, "")
            if name == "verify" and name in query and value not in ("verify_peer", "verify_none"):
                reason: Term = (Atom("invalid_atom_parameter"), ErlangString(value))
                raise refuse("invalid_ssl_parameter", name, value, reason)
            if name == "fail_if_no_peer_cert" and name in query and value not in ("true", "false"):
                reason = (Atom("require_boolean"), ErlangString(value))
                raise refuse("invalid_ssl_parameter", name, value, reason)
            if name == "depth" and name in query and not _is_integer(value):
                reason = (Atom("not_an_integer"), ErlangString(value))
                raise refuse("invalid_ssl_parameter", name, value, reason)
            if name == "customize_hostname_check" and name in query and value != "https":
                reason = (Atom("unsupported_customize_hostname_check"), ErlangString(value))
                raise refuse("invalid_ssl_parameter", name, value, reason)
    for name in NETWORK_FIELDS if host else DIRECT_FIELDS:
        if name not in query:
            continue
        if name not in NUMBERS:
            reason = (Atom("parameter_unconfigurable_in_query"), Atom(name), ErlangString(query[name]))
            raise refuse("invalid_amqp_params_parameter", name, query[name], reason)
        if not _is_integer(query[name]):
            reason = (Atom("not_an_integer"), ErlangString(query[name]))
            raise refuse("invalid_amqp_params_parameter", name, query[name], reason)


def _is_integer(value: str) -> bool:
    return re.fullmatch("[+-]?[0-9]+", value) is not None
