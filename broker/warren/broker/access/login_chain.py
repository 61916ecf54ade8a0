"""Logins with a user name and a password or token: the back ends that verify them, asked one after the other.

https://www.rabbitmq.com/docs/access-control#combined-backends
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from warren.broker.access.access_control import Access
from warren.broker.access.authorization import Authorization
from warren.broker.access.users import User
from warren.broker.model.rabbitmq_versions import VersionBehaviour

Authorize: TypeAlias = Callable[[bytes, VersionBehaviour], Authorization]
"""Function that returns the permissions of a logged-in user in a virtual host."""


class LoginRefused(Exception):
    """Refusal of a login. The text is for the log only; it is not sent to the client."""


@dataclass(frozen=True)
class Login:
    """User that a client has logged in as.

    :param authorize: returns the user's permissions in a virtual host.
    :param expires_at: Unix time at which the credentials expire; None if they do not.
    :param renew: verifies new credentials of the same user, from connection.update-secret; None if there are none.
    """

    user: User
    authorize: Authorize
    expires_at: float | None = None
    renew: Callable[[bytes], Login] | None = None


class LoginBackend(Protocol):
    """Back end that verifies a user name and a password or token."""

    def authenticate(self, name: str, password: bytes, address: str) -> Login:
        """Return the login.

        :param address: IP address of the client.
        :raises LoginRefused: if the credentials are wrong.
        :raises DecisionPending: if the answer has to be awaited.
        """

    def close(self) -> None:
        """Release what the back end uses."""


class AuthorizationBackend(Protocol):
    """Back end that decides on the permissions of a user whom another one has authenticated."""

    def authorize(self, user: User, password: bytes, address: str) -> Login:
        """Return the login.

        :raises LoginRefused: if the back end does not know the user.
        :raises DecisionPending: if the answer has to be awaited.
        """


class InternalBackend:
    """Back end of the broker's own users and permissions."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def authenticate(self, name: str, password: bytes, _address: str = "") -> Login:
        """Return the login of a user of the broker.

        :raises LoginRefused: if name or password are wrong.
        """
        user = self._access.users.authenticate(name, password)
        if user is None:
            raise LoginRefused(f"user {name!r}: invalid credentials")
        return self.login(user)

    def authorize(self, user: User, _password: bytes, _address: str) -> Login:
        """Return the login of a user whom another back end has authenticated; its tags stay.

        :raises LoginRefused: if the broker has no such user.
        """
        if user.name not in self._access.users:
            raise LoginRefused(
                f"user {user.name!r} is authenticated, but the broker has no user of that name"
            )
        return self.login(user)

    def close(self) -> None:
        """Do nothing: the back end uses nothing of its own."""

    def find(self, name: str) -> Login | None:
        """Return the login of a user whose identity is verified; None if the broker has no such user."""
        return self.login(self._access.users.get(name)) if name in self._access.users else None

    def login(self, user: User) -> Login:
        """Return the login of a user of the broker whose identity is verified."""
        access = self._access
        return Login(user, lambda vhost, compat: Authorization(access, user, vhost, compat))


class SplitBackend:
    """Two back ends as one: the first verifies the credentials, the second decides on permissions."""

    def __init__(self, authentication: LoginBackend, authorization: AuthorizationBackend) -> None:
        self._authentication = authentication
        self._authorization = authorization

    def authenticate(self, name: str, password: bytes, address: str) -> Login:
        """Return the login, with the tags and the expiry of the first back end.

        :raises LoginRefused: if one of the two refuses it.
        :raises DecisionPending: if the answer of one has to be awaited.
        """
        return self._combined(self._authentication.authenticate(name, password, address), password, address)

    def _combined(self, first: Login, password: bytes, address: str) -> Login:
        second = self._authorization.authorize(first.user, password, address)
        renew = first.renew
        return Login(
            first.user,
            second.authorize,
            first.expires_at,
            None if renew is None else lambda secret: self._combined(renew(secret), secret, address),
        )

    def close(self) -> None:
        """Do nothing: the chain closes both back ends."""


class LoginChain:
    """Back ends in the order in which they are asked; the first that accepts a login also decides on its permissions."""

    def __init__(
        self,
        internal: InternalBackend,
        backends: Sequence[LoginBackend] | None = None,
        owned: Iterable[LoginBackend] = (),
    ) -> None:
        """:param owned: back ends to close in the end"""
        self.internal = internal
        self._backends = [internal] if backends is None else list(backends)
        self._owned = list(owned)

    def authenticate(self, name: str, password: bytes, address: str) -> Login:
        """Return the login that the first back end accepts.

        :param address: IP address of the client.
        :raises LoginRefused: if all refuse it, with their reasons.
        :raises DecisionPending: if the answer of one has to be awaited.
        """
        reasons = []
        for backend in self._backends:
            try:
                return backend.authenticate(name, password, address)
            except LoginRefused as refusal:
                reasons.append(str(refusal))
        raise LoginRefused("; ".join(reasons))

    def close(self) -> None:
        """Release what the back ends use."""
        for backend in self._owned:
            backend.close()
