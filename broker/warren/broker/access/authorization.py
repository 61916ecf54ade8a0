"""Authorization of a connection: permissions of its user in its virtual host, and RabbitMQ's errors if one is missing.

https://www.rabbitmq.com/docs/access-control#authorisation lists the permissions that each method needs.
"""

from __future__ import annotations

from warren.broker.access.access_control import Access
from warren.broker.access.permissions import CONFIGURE, READ, WRITE, Permission, TopicPermission
from warren.broker.access.users import User
from warren.broker.model.argument_checks import argument_fields
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.rabbitmq_versions import VersionBehaviour
from warren.wire.reply_codes import AmqpError, Reply

DEFAULT_EXCHANGE = b"amq.default"
"""Name of the default exchange in permission checks and error texts."""


class Authorization:
    """Permissions of one user in one virtual host, cached until users or permissions change."""

    def __init__(self, access: Access, user: User, vhost: bytes, compat: VersionBehaviour) -> None:
        self._user = user
        self._names_permission = compat.names_missing_permission
        self._access = access
        self._vhost = vhost.decode(errors="replace")
        self._epoch = -1
        self._permission: Permission | None = None
        self._topics: dict[str, TopicPermission] = {}
        self._allows_everything = False

    @property
    def user(self) -> User:
        """User of the connection, with its current tags and limits; a deleted user keeps those it had last."""
        self._refresh()
        return self._user

    @property
    def user_exists(self) -> bool:
        """True unless the user was deleted."""
        return self._user.name in self._access.users

    @property
    def may_open_vhost(self) -> bool:
        """True if a permission is set for the user in the virtual host, even one whose patterns match no name."""
        self._refresh()
        return self._permission is not None

    @property
    def has_topic_permissions(self) -> bool:
        """True if topic permissions restrict the user's routing keys on some topic exchange."""
        self._refresh()
        return bool(self._topics)

    @property
    def is_restricted(self) -> bool:
        """True unless the user may configure, write and read everything in the virtual host, with any routing key."""
        self._refresh()
        return not self._allows_everything or bool(self._topics)

    def check(self, operation: str, kind: str, name: bytes, class_id: int = 0, method_id: int = 0) -> None:
        """Check the permission for an operation on a queue or an exchange.

        :param operation: CONFIGURE, WRITE or READ.
        :param kind: `queue` or `exchange`.
        :param name: name of the queue or exchange; empty for the default exchange.
        :param class_id: class id to report to the client in the error; 0 for that of the method being processed.
        :param method_id: method id to report; 0 for that of the method being processed.
        :raises AmqpError: 403 if the user lacks the permission.
        """
        self._refresh()
        if self._allows_everything:
            return
        if not name and kind == "exchange":
            name = DEFAULT_EXCHANGE
        if not self._allows(operation, kind, name):
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"{self._refused_access(operation)} to {kind} '{name.decode(errors='replace')}' in vhost '{self._vhost}' "
                f"refused for user '{self._user.name}'",
                class_id,
                method_id,
            )

    def check_any(self, kind: str, name: bytes) -> None:
        """Check that the user may configure, write or read a queue or an exchange.

        :param kind: `queue` or `exchange`.
        :raises AmqpError: 403 if the user may do none of them. As in RabbitMQ, its text names the first.
        """
        self._refresh()
        if self._allows_everything or any(
            self._allows(operation, kind, name) for operation in (CONFIGURE, WRITE, READ)
        ):
            return
        self.check(CONFIGURE, kind, name)

    def check_topic(
        self, operation: str, exchange: Exchange, routing_key: bytes, class_id: int = 0, method_id: int = 0
    ) -> None:
        """Check the topic permission for a routing key on a topic exchange; on other exchanges, allow every key.

        :param operation: WRITE to publish with the routing key, READ to bind with it.
        :param class_id: class id to report to the client in the error; 0 for that of the method being processed.
        :param method_id: method id to report; 0 for that of the method being processed.
        :raises AmqpError: 403 if the user lacks the permission.
        """
        self._refresh()
        if not self.has_topic_permissions or exchange.kind != b"topic":
            return
        if not self._allows_topic(operation, exchange.name, routing_key):
            name = exchange.name.decode(errors="replace")
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"{self._refused_access(operation)} to topic '{routing_key.decode(errors='replace')}' in exchange '{name}' "
                f"in vhost '{self._vhost}' refused for user '{self._user.name}'",
                class_id,
                method_id,
            )

    def check_forwarding(self, kind: str, name: bytes, raw: bytes, argument: str) -> None:
        """Check the permissions for declaring a queue or exchange with an alternate or dead letter exchange.

        The user needs READ on the declared object and WRITE on the alternate or dead letter exchange.

        :param kind: type of the object being declared: `queue` or `exchange`.
        :param name: name of the object being declared.
        :param raw: its arguments, an encoded field table.
        :param argument: key of the argument that names that exchange, such as `alternate-exchange`.
        :raises AmqpError: 403 if the user lacks one of the two permissions.
        """
        if not self.is_restricted:
            return
        field = argument_fields(raw).get(argument)
        if field is not None and field.kind == "S":
            self.check(READ, kind, name)
            self.check(WRITE, "exchange", field.raw[5:])

    def _allows(self, operation: str, kind: str, name: bytes) -> bool:
        """Return whether the user may do an operation on a queue or exchange."""
        return self._permission is not None and self._permission.allows(operation, name)

    def _allows_topic(self, operation: str, exchange: bytes, routing_key: bytes) -> bool:
        """Return whether the user may publish (WRITE) or bind (READ) with a routing key on a topic exchange."""
        topic = self._topics.get(exchange.decode(errors="replace"))
        return topic is None or topic.allows(operation, routing_key)

    def _refused_access(self, operation: str) -> str:
        return f"{operation} access" if self._names_permission else "access"

    def _refresh(self) -> None:
        access = self._access
        if self._epoch == access.epoch:
            return
        self._epoch = access.epoch
        if self._user.name in access.users:
            self._user = access.users.get(self._user.name)
        permission = access.permissions.of(self._user.name, self._vhost)
        self._permission = permission
        self._topics = access.permissions.topics_of(self._user.name, self._vhost)
        self._allows_everything = (
            permission is not None and permission.configure == permission.write == permission.read == ".*"
        )


__all__ = ["CONFIGURE", "READ", "WRITE", "Authorization"]
