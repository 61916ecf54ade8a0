"""Logging in: SASL mechanisms, each from a response to a user (https://www.rabbitmq.com/docs/access-control#mechanisms)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from warren.broker.access.access_control import Access
from warren.broker.access.users import User
from warren.wire import field_tables
from warren.wire.reply_codes import AmqpError, Reply

MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS")


@dataclass(frozen=True)
class Login:
    """How clients may log in.

    :param mechanisms: those that are offered, of `MECHANISMS`; EXTERNAL to TLS connections only.
    :param loopback_users: who may come from loopback addresses only.
    :param anonymous_user: who an ANONYMOUS client is; without one, the mechanism is not offered.
    """

    mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    loopback_users: tuple[str, ...] = ("guest",)
    anonymous_user: str = ""


@dataclass(frozen=True)
class Peer:
    """Who is at the other end of a socket.

    :param name: the user name of its certificate; empty without one, None if the connection is no TLS connection.
    """

    address: str
    name: str | None = None


class LoginRefused(Exception):
    """The client may not come in. The text is for the log; the client is told nothing of it."""


def offered(login: Login, peer: Peer) -> tuple[str, ...]:
    """The mechanisms that this client may choose from."""
    return tuple(
        name
        for name in login.mechanisms
        if not (name == "EXTERNAL" and peer.name is None)
        and not (name == "ANONYMOUS" and not login.anonymous_user)
    )


def log_in(access: Access, login: Login, peer: Peer, mechanism: str, response: bytes) -> User:
    """The user that a response proves.

    :raises LoginRefused: if it proves none, or one that may not come from there.
    :raises AmqpError: 503 for a mechanism that is not offered, 502 for a malformed response.
    """
    if mechanism not in offered(login, peer):
        known = "invalid" if mechanism in MECHANISMS else "unknown"
        raise AmqpError(Reply.COMMAND_INVALID, f"{known} authentication mechanism '{mechanism}'")
    if mechanism == "EXTERNAL":
        user = _by_certificate(access, peer)
    elif mechanism == "ANONYMOUS":
        user = _known(access, login.anonymous_user)
    else:
        name, password = _plain(response) if mechanism == "PLAIN" else _amqplain(response)
        found = access.users.authenticate(name.decode(errors="replace"), password)
        if found is None:
            raise LoginRefused(f"user {name.decode(errors='replace')!r}: invalid credentials")
        user = found
    if user.name in login.loopback_users and not is_loopback(peer.address):
        raise LoginRefused(f"user {user.name!r} can only connect via localhost")
    return user


def _plain(response: bytes) -> tuple[bytes, bytes]:
    """RFC 4616. Nobody may act for another user, so the identity to act for stays empty."""
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise LoginRefused("the response to PLAIN is malformed")
    return parts[1], parts[2]


def _amqplain(response: bytes) -> tuple[bytes, bytes]:
    """A field table with LOGIN and PASSWORD, without its length: what AMQP 0-8 called PLAIN."""
    try:
        fields = field_tables.decode_fields(response)
    except field_tables.TableError as error:
        raise AmqpError(Reply.SYNTAX_ERROR, str(error)) from None
    if "LOGIN" not in fields or "PASSWORD" not in fields:
        raise AmqpError(Reply.SYNTAX_ERROR, "AMQPLAIN auth info is missing LOGIN or PASSWORD field")
    if fields["LOGIN"].kind != "S" or fields["PASSWORD"].kind != "S":
        raise AmqpError(
            Reply.SYNTAX_ERROR,
            "AMQPLAIN auth info uses unsupported type for LOGIN or PASSWORD field",
        )
    return fields["LOGIN"].raw[5:], fields["PASSWORD"].raw[5:]


def _by_certificate(access: Access, peer: Peer) -> User:
    if not peer.name:
        raise LoginRefused("the client's certificate has no name, or it has none")
    return _known(access, peer.name)


def _known(access: Access, name: str) -> User:
    if name not in access.users:
        raise LoginRefused(f"user {name!r}: invalid credentials")
    return access.users.get(name)


def is_loopback(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
