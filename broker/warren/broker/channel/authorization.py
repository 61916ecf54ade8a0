"""What one connection may do: its user's permissions in its virtual host, and RabbitMQ's words for what it may not.

https://www.rabbitmq.com/docs/access-control#authorisation tells which permission on what each method needs.
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
"""The name that permissions know the default exchange by."""


class Authorization:
    """Decided anew whenever users or permissions have changed."""

    def __init__(self, access: Access, user: User, vhost: bytes, compat: VersionBehaviour) -> None:
        self._user = user
        self._names = compat.names_missing_permission
        self._access = access
        self._vhost = vhost.decode(errors="replace")
        self._epoch = -1
        self._permission: Permission | None = None
        self._topics: dict[str, TopicPermission] = {}
        self._everything = False

    @property
    def user(self) -> User:
        """As it is now; as it was, if it has been deleted."""
        self._renew()
        return self._user

    @property
    def open(self) -> bool:
        """The user may be in this virtual host at all."""
        self._renew()
        return self._permission is not None

    @property
    def by_topic(self) -> bool:
        """On some topic exchange it is the routing key that decides."""
        self._renew()
        return bool(self._topics)

    @property
    def limited(self) -> bool:
        """There is something that the user may not do."""
        self._renew()
        return not self._everything or bool(self._topics)

    def check(self, what: str, kind: str, name: bytes, class_id: int = 0, method_id: int = 0) -> None:
        """
        :param what: CONFIGURE, WRITE or READ; `kind`: `queue` or `exchange`.
        :param class_id: of the method that needs it, as `method_id`, where the session does not know them.
        :raises AmqpError: 403 if the user may not.
        """
        self._renew()
        if self._everything:
            return
        if not name and kind == "exchange":
            name = DEFAULT_EXCHANGE
        if self._permission is None or not self._permission.allows(what, name):
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"{self._access_of(what)} to {kind} '{name.decode(errors='replace')}' in vhost '{self._vhost}' refused "
                f"for user '{self._user.name}'",
                class_id,
                method_id,
            )

    def check_topic(
        self, what: str, exchange: Exchange, routing_key: bytes, class_id: int = 0, method_id: int = 0
    ) -> None:
        """
        :param what: WRITE to publish with this routing key, READ to bind with it.
        :raises AmqpError: 403 if the user may not.
        """
        self._renew()
        if not self._topics or exchange.kind != b"topic":
            return
        name = exchange.name.decode(errors="replace")
        topic = self._topics.get(name)
        if topic is not None and not topic.allows(what, routing_key):
            raise AmqpError(
                Reply.ACCESS_REFUSED,
                f"{self._access_of(what)} to topic '{routing_key.decode(errors='replace')}' in exchange '{name}' in vhost "
                f"'{self._vhost}' refused for user '{self._user.name}'",
                class_id,
                method_id,
            )

    def check_successor(self, kind: str, name: bytes, raw: bytes, argument: str) -> None:
        """Whoever names the exchange that takes over must be allowed to read this one and to write that one.

        :param raw: the arguments of what is being declared.
        :param argument: the one that names the dead letter exchange or the alternate exchange.
        """
        if not self.limited:
            return
        field = argument_fields(raw).get(argument)
        if field is not None and field.kind == "S":
            self.check(READ, kind, name)
            self.check(WRITE, "exchange", field.raw[5:])

    def _access_of(self, what: str) -> str:
        return f"{what} access" if self._names else "access"

    def _renew(self) -> None:
        access = self._access
        if self._epoch == access.epoch:
            return
        self._epoch = access.epoch
        if self._user.name in access.users:
            self._user = access.users.get(self._user.name)
        permission = access.permissions.of(self._user.name, self._vhost)
        self._permission = permission
        self._topics = access.permissions.topics_of(self._user.name, self._vhost)
        self._everything = (
            permission is not None and permission.configure == permission.write == permission.read == ".*"
        )


__all__ = ["CONFIGURE", "READ", "WRITE", "Authorization"]
