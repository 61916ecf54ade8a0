"""Who may come in: SASL PLAIN against the users of the configuration."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping

LOOPBACK_ONLY = frozenset(("guest",))
"""RabbitMQ's rule for its default user (https://www.rabbitmq.com/docs/access-control#loopback-users)."""


class Access:
    """The broker's users and their passwords."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = {name.encode(): password.encode() for name, password in users.items()}

    def plain(self, response: bytes, peer: str) -> bytes | None:
        """The user's name if a PLAIN response (RFC 4616) is right and the peer may be that user, else None."""
        parts = response.split(b"\0")
        # Nobody may act for another user, so the identity to act for stays empty.
        if len(parts) != 3 or parts[0]:
            return None
        _, name, password = parts
        known = self._users.get(name)
        # The comparison takes its time for unknown names as well, so that a peer cannot find out which exist.
        right = hmac.compare_digest(password, known if known is not None else b"\0" * 16)
        if known is None or not right:
            return None
        if name.decode(errors="replace") in LOOPBACK_ONLY and not is_loopback(peer):
            return None
        return name


def is_loopback(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)
