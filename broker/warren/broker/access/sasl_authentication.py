"""SASL authentication: mechanisms offered to clients, and verification of their responses.

https://www.rabbitmq.com/docs/access-control#mechanisms
"""

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
class LoginSettings:
    """Settings of SASL authentication.

    :param mechanisms: offered mechanisms, of `MECHANISMS`; EXTERNAL is offered to TLS connections only.
    :param loopback_users: users who may connect from loopback addresses only.
    :param anonymous_user: user that an ANONYMOUS client is logged in as; if empty, the mechanism is not offered.
    """

    mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    loopback_users: tuple[str, ...] = ("guest",)
    anonymous_user: str = ""


@dataclass(frozen=True)
class PeerIdentity:
    """Identity of the client at the other end of a socket.

    :param address: IP address of the client.
    :param certificate_user: user name in the client's certificate; empty without a certificate, None without TLS.
    """

    address: str
    certificate_user: str | None = None


class LoginRefused(Exception):
    """Refusal of a login. The text is for the log only; it is not sent to the client."""


def offered_mechanisms(login: LoginSettings, peer: PeerIdentity) -> tuple[str, ...]:
    """Return the SASL mechanisms that a client may choose from; EXTERNAL only over TLS, ANONYMOUS if configured."""
    return tuple(
        name
        for name in login.mechanisms
        if not (name == "EXTERNAL" and peer.certificate_user is None)
        and not (name == "ANONYMOUS" and not login.anonymous_user)
    )


def authenticate(
    access: Access, login: LoginSettings, peer: PeerIdentity, mechanism: str, response: bytes
) -> User:
    """Verify a client's SASL response, and return the user that it logs in as.

    :raises LoginRefused: if the credentials are wrong, or the user may not connect from the client's address.
    :raises AmqpError: 503 for a mechanism that is not offered, 502 for a malformed response.
    """
    if mechanism not in offered_mechanisms(login, peer):
        reason = "invalid" if mechanism in MECHANISMS else "unknown"
        raise AmqpError(Reply.COMMAND_INVALID, f"{reason} authentication mechanism '{mechanism}'")
    if mechanism == "EXTERNAL":
        user = _by_certificate(access, peer)
    elif mechanism == "ANONYMOUS":
        user = _find_user(access, login.anonymous_user)
    else:
        name, password = _parse_plain(response) if mechanism == "PLAIN" else _parse_amqplain(response)
        found = access.users.authenticate(name.decode(errors="replace"), password)
        if found is None:
            raise LoginRefused(f"user {name.decode(errors='replace')!r}: invalid credentials")
        user = found
    if user.name in login.loopback_users and not is_loopback(peer.address):
        raise LoginRefused(f"user {user.name!r} can only connect via localhost")
    return user


def _parse_plain(response: bytes) -> tuple[bytes, bytes]:
    """Return user name and password of a PLAIN response (RFC 4616).

    :raises LoginRefused: if the response is malformed or has an authorization identity, which is not supported.
    """
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise LoginRefused("the response to PLAIN is malformed")
    return parts[1], parts[2]


def _parse_amqplain(response: bytes) -> tuple[bytes, bytes]:
    """Return user name and password of an AMQPLAIN response.

    The response is a field table without its length prefix; its fields are LOGIN and PASSWORD.

    :raises AmqpError: 502 if the table is malformed, or one of the fields is missing or no string.
    """
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


def _by_certificate(access: Access, peer: PeerIdentity) -> User:
    if not peer.certificate_user:
        raise LoginRefused("the client has no certificate, or one without a user name")
    return _find_user(access, peer.certificate_user)


def _find_user(access: Access, name: str) -> User:
    if name not in access.users:
        raise LoginRefused(f"user {name!r}: invalid credentials")
    return access.users.get(name)


def is_loopback(address: str) -> bool:
    """Return whether an IP address, which may have an IPv6 zone, is a loopback address."""
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
