"""Login of the broker's own clients, such as shovels to the broker itself: without a user, with all permissions."""

from __future__ import annotations

from typing import Final

from warren.broker.access.access_control import Access
from warren.broker.access.authorization import Authorization
from warren.broker.access.login_chain import Login
from warren.broker.access.permissions import Permission
from warren.broker.access.users import User
from warren.broker.model.rabbitmq_versions import VersionBehaviour

NAME: Final = "none"
"""User name that lists show for such a connection, as in RabbitMQ."""


class InternalAuthorization(Authorization):
    """All permissions in one virtual host."""

    def __init__(self, access: Access, user: User, vhost: bytes, compat: VersionBehaviour) -> None:
        super().__init__(access, user, vhost, compat)
        self._permission = Permission(user.name, self._vhost, ".*", ".*", ".*")
        self._allows_everything = True

    @property
    def user_exists(self) -> bool:
        """True: no user can be deleted."""
        return True

    def _refresh(self) -> None:
        """Do nothing: changes of users and permissions have no effect."""


def internal_login(access: Access) -> Login:
    """Return a login with all permissions, which belongs to no user."""
    user = User(NAME, tags=("impersonator",))
    return Login(user, lambda vhost, compat: InternalAuthorization(access, user, vhost, compat))
