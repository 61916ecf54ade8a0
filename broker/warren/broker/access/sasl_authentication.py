"""SASL authentication: mechanisms offered to clients, and verification of their responses.

https://www.rabbitmq.com/docs/access-control#mechanisms
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from warren.broker.access.login_chain import Login, LoginChain, LoginRefused
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
    :param login: login of a client inside the broker's process, which needs no credentials; None for all others.
    """

    address: str
    certificate_user: str | None = None
    login: Login | None = None


def offered_mechanisms(login: LoginSettings, peer: PeerIdentity) -> tuple[str, ...]:
    """Return the SASL mechanisms that a client may choose from; EXTERNAL only over TLS, ANONYMOUS if configured."""
    return tuple(
        name
        for name in login.mechanisms
        if not (name == "EXTERNAL" and peer.certificate_user is None)
        and not (name == "ANONYMOUS" and not login.anonymous_user)
    )


def authenticate(
    logins: LoginChain, login: LoginSettings, peer: PeerIdentity, mechanism: str, response: bytes
) -> Login:
    """Verify a client's SASL response, and return the login.

    :raises LoginRefused: if the credentials are wrong, or the user may not connect from the client's address.
    :raises DecisionPending: if the answer of a back end has to be awaited.
    :raises AmqpError: 503 for a mechanism that is not offered, 502 for a malformed response.
    """
    if peer.login is not None:
        return peer.login
    if mechanism not in offered_mechanisms(login, peer):
        reason = "invalid" if mechanism in MECHANISMS else "unknown"
        raise AmqpError(Reply.COMMAND_INVALID, f"{reason} authentication mechanism '{mechanism}'")
    if mechanism == "EXTERNAL":
        found = _by_certificate(logins, peer)
    elif mechanism == "ANONYMOUS":
        found = _find_user(logins, login.anonymous_user)
    else:
        name, password = _parse_plain(response) if mechanism == "PLAIN" else _parse_amqplain(response)
        found = logins.authenticate(name.decode(errors="replace"), password, peer.address)
    check_loopback(login, found, peer.address)
    return found


def check_loopback(settings: LoginSettings, login: Login, address: str) -> None:
    """Check that a user may connect from an address.

    :raises LoginRefused: if it may connect from loopback addresses only, and this is none.
    """
    if login.user.name in settings.loopback_users and not is_loopback(address):
        raise LoginRefused(f"user {login.user.name!r} can only connect via localhost")


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


def _by_certificate(logins: LoginChain, peer: PeerIdentity) -> Login:
    if not peer.certificate_user:
        raise LoginRefused("the client has no certificate, or one without a user name")
    return _find_user(logins, peer.certificate_user)


def _find_user(logins: LoginChain, name: str) -> Login:
    found = logins.internal.find(name)
    if found is None:
        raise LoginRefused(f"user {name!r}: invalid credentials")
    return found


def is_loopback(address: str) -> bool:
    """Return whether an IP address, which may have an IPv6 zone, is a loopback address."""
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
