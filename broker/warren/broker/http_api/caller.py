"""Caller of the HTTP API: the user that a request authenticates as, and what this user may see and do.

User tags decide (https://www.rabbitmq.com/docs/management#permissions). `management` shows the virtual hosts that the
user may open; `policymaker` may set their policies and parameters, too; `monitoring` shows all virtual hosts, all
connections and the node; `administrator` may do everything.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from warren.broker.access.access_control import Access
from warren.broker.access.authorization import Authorization
from warren.broker.access.sasl_authentication import LoginSettings, is_loopback
from warren.broker.access.users import User
from warren.broker.http_api.api_error import ApiError, not_authorised, not_found
from warren.broker.model.rabbitmq_versions import VersionBehaviour

ADMINISTRATOR: Final = "administrator"
MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"

IMPLIED: Final = {
    MANAGEMENT: (MANAGEMENT, POLICYMAKER, MONITORING, ADMINISTRATOR),
    POLICYMAKER: (POLICYMAKER, ADMINISTRATOR),
    MONITORING: (MONITORING, ADMINISTRATOR),
    ADMINISTRATOR: (ADMINISTRATOR,),
}
"""Tags that include a role, by role."""

NAMES: Final = {
    MANAGEMENT: "Not management user",
    POLICYMAKER: "Not policymaker user",
    MONITORING: "Not monitor user",
    ADMINISTRATOR: "Not administrator user",
}
"""RabbitMQ's reasons for a user who lacks a role, by role."""


class Caller:
    """User that a request was authenticated as."""

    def __init__(self, user: User, access: Access, compat: VersionBehaviour) -> None:
        self.user = user
        self._access = access
        self._compat = compat

    def has_role(self, role: str) -> bool:
        """Return whether the user's tags include a role: ADMINISTRATOR, MONITORING, POLICYMAKER or MANAGEMENT."""
        return not set(IMPLIED[role]).isdisjoint(self.user.tags)

    def require(self, role: str) -> None:
        """Check that the user's tags include a role.

        :raises ApiError: 401 if they do not.
        """
        if not self.has_role(role):
            raise not_authorised(NAMES[role])

    def may_open(self, vhost: str) -> bool:
        """Return whether the user may open a virtual host: some permission is set for the user there."""
        return self._access.permissions.of(self.user.name, vhost) is not None

    def may_see(self, vhost: str) -> bool:
        """Return whether the user may see the objects of a virtual host."""
        return self.has_role(MONITORING) or self.may_open(vhost)

    def require_open(self, vhost: str) -> None:
        """Check that the user may open a virtual host.

        :raises ApiError: 404, as RabbitMQ answers, so that the answer does not reveal which virtual hosts exist.
        """
        if not self.may_open(vhost):
            raise not_found("Not Found")

    def require_see(self, vhost: str) -> None:
        """Check that the user may see the objects of a virtual host.

        :raises ApiError: 404 if not.
        """
        if not self.may_see(vhost):
            raise not_found("Not Found")

    def authorization(self, vhost: str) -> Authorization:
        """Return the permissions of the user in a virtual host, which hold for the API's operations, too."""
        return Authorization(self._access, self.user, vhost.encode("utf-8", "surrogateescape"), self._compat)


class LoginFailed(Exception):
    """A request has credentials that are wrong. The text is for the log."""


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


def authenticate(access: Access, login: LoginSettings, address: str, name: str, password: bytes) -> User:
    """Verify name and password of a request, and return the user.

    :param address: IP address of the client.
    :raises LoginFailed: if they are wrong, or the user may not connect from this address.
    """
    user = access.users.authenticate(name, password)
    if user is None:
        raise LoginFailed(f"user {name!r}: invalid credentials")
    if user.name in login.loopback_users and not is_loopback(address):
        raise LoginFailed(f"user {name!r} can only connect via localhost")
    return user


def login_refused() -> ApiError:
    """Return the response to a failed login."""
    return ApiError(401, "not_authorized", "Not_Authorized")
