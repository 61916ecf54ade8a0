"""Caller of the HTTP API: the user that a request authenticates as, and what this user may see and do.

User tags decide (https://www.rabbitmq.com/docs/management#permissions). `management` shows the virtual hosts that the
user may open; `policymaker` may set their policies and parameters, too; `monitoring` lists all virtual hosts, and shows
all connections, consumers and the node, but not the objects of virtual hosts that the user may not open; `administrator`
sees everything, but needs permissions as over AMQP to change queues, exchanges and bindings.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from warren.broker.access.authorization import Authorization
from warren.broker.access.login_chain import Login, LoginRefused
from warren.broker.access.pending_decisions import DecisionPending
from warren.broker.access.sasl_authentication import check_loopback
from warren.broker.access.users import User
from warren.broker.connection.broker_node import BrokerNode
from warren.broker.http_api.api_error import ApiError, not_authorised, not_found
from warren.broker.model.rabbitmq_versions import VersionBehaviour

logger = logging.getLogger(__name__)

T = TypeVar("T")

ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"
ANYBODY: Final = "anybody"
"""Role of paths that need no login."""

IMPLIED: Final = {
    MANAGEMENT: (MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR),
    POLICYMAKER: (POLICYMAKER, ADMINISTRATOR),
    MONITORING: (MONITORING, ADMINISTRATOR),
    ADMINISTRATOR: (ADMINISTRATOR,),
}
"""Tags that include a role, by role."""

NAMES: Final = {
    MANAGEMENT: "Not management user",
    POLICYMAKER: "User not authorised to access object",
    MONITORING: "Not monitor user",
    ADMINISTRATOR: "Not administrator user",
}
"""RabbitMQ's reasons for a user who lacks a role, by role."""


class Caller:
    """User that a request was authenticated as."""

    def __init__(self, login: Login, compat: VersionBehaviour) -> None:
        self.user = login.user
        self._login = login
        self._compat = compat
        self._authorizations: dict[str, Authorization] = {}

    def has_role(self, role: str) -> bool:
        """Return whether the user's tags include a role: ADMINISTRATOR, MONITORING, POLICYMAKER or MANAGEMENT."""
        return not set(IMPLIED[role]).isdisjoint(self.user.tags)

    def require(self, role: str) -> None:
        """Check that the user's tags include a role.

        :raises ApiError: 401 if they do not.
        """
        if not self.has_role(role):
            raise not_authorised(NAMES[role])

    def require_self_or(self, role: str, name: str) -> None:
        """Check that the user has a name, or that the user's tags include a role.

        :raises ApiError: 401 if neither holds.
        """
        if name != self.user.name and not self.has_role(role):
            raise not_authorised("User not authorised to access object")

    def may_open(self, vhost: str) -> bool:
        """Return whether the user may open a virtual host: some permission is set for the user there."""
        return self.authorization(vhost).may_open_vhost

    def may_see(self, vhost: str) -> bool:
        """Return whether the user may see the objects of a virtual host."""
        return self.has_role(ADMINISTRATOR) or self.may_open(vhost)

    def may_monitor(self, vhost: str) -> bool:
        """Return whether the user may see a virtual host in lists, its limits, connections and consumers."""
        return self.has_role(MONITORING) or self.may_open(vhost)

    def require_open(self, vhost: str) -> None:
        """Check that the user may open a virtual host.

        :raises ApiError: 401 if an administrator may not; 404 for others, so that the answer does not reveal which virtual
            hosts exist.
        """
        if self.may_open(vhost):
            return
        if self.has_role(ADMINISTRATOR):
            raise not_authorised("Access refused.")
        raise not_found("Not Found")

    def require_see(self, vhost: str) -> None:
        """Check that the user may see the objects of a virtual host.

        :raises ApiError: 404 if not.
        """
        if not self.may_see(vhost):
            raise not_found("Not Found")

    def require_monitor(self, vhost: str) -> None:
        """Check that the user may see a virtual host in lists.

        :raises ApiError: 404 if not.
        """
        if not self.may_monitor(vhost):
            raise not_found("Not Found")

    def authorization(self, vhost: str) -> Authorization:
        """Return the permissions of the user in a virtual host, which hold for the API's operations, too."""
        found = self._authorizations.get(vhost)
        if found is None:
            found = self._login.authorize(vhost.encode("utf-8", "surrogateescape"), self._compat)
            self._authorizations[vhost] = found
        return found


def parse_basic(header: str) -> tuple[str, bytes] | None:
    """Return user name and password of an `Authorization` header (RFC 7617); None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (ValueError, binascii.Error):
        return None
    return (name.decode(errors="replace"), password) if colon else None


def parse_credentials(header: str) -> tuple[str, bytes] | None:
    """Return user name and password of an `Authorization` header; a bearer token is a password without a name."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer":
        return "", token.strip().encode("utf-8", "surrogateescape")
    return parse_basic(header)


async def decided(operation: Callable[[], T]) -> T:
    """Call a function again until its access decisions are known, and return its result."""
    while True:
        try:
            return operation()
        except DecisionPending as pending:
            await asyncio.wait([pending.answered])


class Authenticator:
    """Logins of requests: they are counted, logged if they are refused, and refused after a delay, as over AMQP."""

    def __init__(self, node: BrokerNode, compat: VersionBehaviour) -> None:
        self._node = node
        self._compat = compat

    async def login(self, address: str, name: str, password: bytes) -> Caller:
        """Verify name and password, and return the caller.

        :param address: IP address of the client.
        :raises ApiError: 401 if they are wrong, or the user may not connect from this address.
        """
        node = self._node
        try:
            login = await decided(lambda: node.logins.authenticate(name, password, address))
            check_loopback(node.login_settings, login, address)
        except LoginRefused as refusal:
            reason = str(refusal)
        else:
            node.churn.logins["http"] += 1
            return Caller(login, self._compat)
        node.churn.logins_refused["http"] += 1
        logger.warning("event=http_api.login_refused peer=%s user=%r reason=%r", address, name, reason)
        await asyncio.sleep(node.login_delays.next_delay(address))
        raise ApiError(401, "not_authorized", "Not_Authorized")

    def nobody(self) -> Caller:
        """Return the caller of a request without a login: it may see nothing."""
        return Caller(self._node.logins.internal.login(User("")), self._compat)
