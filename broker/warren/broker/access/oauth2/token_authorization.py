"""Authorization of a user who logged in with an access token: the permissions that its scopes grant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from warren.broker.access.access_control import Access
from warren.broker.access.authorization import Authorization
from warren.broker.access.oauth2.scopes import permissions_in
from warren.broker.access.users import User
from warren.broker.model.rabbitmq_versions import VersionBehaviour


class TokenAuthorization(Authorization):
    """Permissions of one access token in one virtual host."""

    def __init__(
        self,
        access: Access,
        user: User,
        vhost: bytes,
        compat: VersionBehaviour,
        scopes: Sequence[str],
        claims: Mapping[str, Any],
    ) -> None:
        super().__init__(access, user, vhost, compat)
        self._granted = permissions_in(scopes, vhost.decode("utf-8", "surrogateescape"), claims)

    @property
    def user_exists(self) -> bool:
        """True: the user is none of the broker's."""
        return True

    @property
    def may_open_vhost(self) -> bool:
        """True if a scope grants a permission in the virtual host."""
        return bool(self._granted)

    @property
    def has_topic_permissions(self) -> bool:
        """True: each routing key on a topic exchange needs a scope."""
        return True

    @property
    def is_restricted(self) -> bool:
        """True: each operation needs a scope."""
        return True

    def _refresh(self) -> None:
        """Do nothing: the permissions of a token do not change."""

    def _allows(self, operation: str, kind: str, name: bytes) -> bool:
        return any(each.operation == operation and each.name.matches(name) for each in self._granted)

    def _allows_topic(self, operation: str, exchange: bytes, routing_key: bytes) -> bool:
        return any(
            each.operation == operation
            and each.routing_key is not None
            and each.name.matches(exchange)
            and each.routing_key.matches(routing_key)
            for each in self._granted
        )
