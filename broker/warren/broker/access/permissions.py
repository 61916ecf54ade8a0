"""Permissions of users in virtual hosts: regular expressions over names and routing keys.

https://www.rabbitmq.com/docs/access-control#authorisation and #topic-authorisation. The expressions are not anchored:
one that matches any part of a name, in bytes, allows it. The empty expression allows nothing, nor does one of an older
data folder that is no longer supported (`NamePattern`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from warren.broker.model.operator_errors import ObjectNotFound, OperationRefused
from warren.broker.store.definitions.definition_rows import PermissionRow, TopicPermissionRow
from warren.broker.store.definitions.definitions_database import Definitions
from warren.core.name_pattern import InvalidPattern, NamePattern, quote

logger = logging.getLogger(__name__)

CONFIGURE: Final = "configure"
WRITE: Final = "write"
READ: Final = "read"


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission of a user in a virtual host.

    It has three regular expressions: for the names of queues and exchanges to configure, to write to, and to read from.
    """

    user: str
    vhost: str
    configure: str
    write: str
    read: str

    def allows(self, operation: str, name: bytes) -> bool:
        """Return whether the permission allows an operation on a queue or exchange of this name.

        :param operation: CONFIGURE, WRITE or READ.
        """
        return _matches(
            self.configure if operation == CONFIGURE else self.write if operation == WRITE else self.read,
            name,
        )


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """Permission of a user on a topic exchange: regular expressions for routing keys to publish and bind with.

    `{username}` and `{vhost}` in an expression stand for the user and virtual host of the connection.
    """

    user: str
    vhost: str
    exchange: str
    write: str
    read: str

    def allows(self, operation: str, routing_key: bytes) -> bool:
        """Return whether the permission allows to publish (WRITE) or bind (READ) with a routing key.

        :param operation: WRITE or READ.
        """
        pattern = self.write if operation == WRITE else self.read
        if "{" in pattern:
            # Quoted: a user name such as `.*` must not match everything.
            for variable, value in (("{username}", self.user), ("{vhost}", self.vhost)):
                pattern = pattern.replace(variable, quote(value))
        return _matches(pattern, routing_key)


class Permissions:
    """Permissions and topic permissions of all users of a broker.

    Changes are stored in the data folder, if there is one. A change that cannot be made raises `OperationRefused`.

    :param definitions: definitions in the data folder; None without a data folder.
    :param on_changed: called after each change.
    :param user_exists: returns whether there is a user of that name.
    :param vhost_exists: returns whether there is a virtual host of that name.
    """

    def __init__(
        self,
        definitions: Definitions | None,
        on_changed: Callable[[], None],
        user_exists: Callable[[str], bool],
        vhost_exists: Callable[[str], bool],
    ) -> None:
        self._definitions = definitions
        self._on_changed = on_changed
        self._user_exists = user_exists
        self._vhost_exists = vhost_exists
        self._permissions: dict[tuple[str, str], Permission] = {}
        self._topics: dict[tuple[str, str], dict[str, TopicPermission]] = {}

    # -- queries

    def of(self, user: str, vhost: str) -> Permission | None:
        """Return a user's permission in a virtual host; None if it has none, and thus may not open the virtual host."""
        return self._permissions.get((user, vhost))

    def topics_of(self, user: str, vhost: str) -> dict[str, TopicPermission]:
        """Return a user's topic permissions in a virtual host, by the name of the exchange.

        On a topic exchange without such a permission, every routing key is allowed.
        """
        return self._topics.get((user, vhost), {})

    def all(self, *, user: str | None = None, vhost: str | None = None) -> list[Permission]:
        """Return permissions, sorted by user and virtual host.

        :param user: return only those of this user; None for all users.
        :param vhost: return only those in this virtual host; None for all virtual hosts.
        """
        return [
            self._permissions[key]
            for key in sorted(self._permissions)
            if user in (None, key[0]) and vhost in (None, key[1])
        ]

    def topics(self, *, user: str | None = None, vhost: str | None = None) -> list[TopicPermission]:
        """Return topic permissions, sorted by user, virtual host and exchange.

        :param user: return only those of this user; None for all users.
        :param vhost: return only those in this virtual host; None for all virtual hosts.
        """
        return [
            self._topics[key][exchange]
            for key in sorted(self._topics)
            for exchange in sorted(self._topics[key])
            if user in (None, key[0]) and vhost in (None, key[1])
        ]

    # -- changes

    def set(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Set a user's permission in a virtual host, in place of an earlier one.

        :param configure: regular expression for the names of queues and exchanges that the user may declare and delete.
        :param write: regular expression for those that the user may publish to.
        :param read: regular expression for those that the user may consume from or bind to.
        :raises OperationRefused: if there is no such user or virtual host, or a pattern is no regular expression.
        """
        self._check(user, vhost, configure, write, read)
        self._permissions[user, vhost] = Permission(user, vhost, configure, write, read)
        if self._definitions is not None:
            self._definitions.put(PermissionRow(user, vhost, configure, write, read))
        self._on_changed()

    def clear(self, user: str, vhost: str) -> None:
        """Remove a user's permission in a virtual host, if it has one.

        :raises OperationRefused: if there is no such user or virtual host.
        """
        self._check(user, vhost)
        if self._permissions.pop((user, vhost), None) is not None:
            if self._definitions is not None:
                self._definitions.remove(PermissionRow, user, vhost)
            self._on_changed()

    def set_topic(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Restrict the routing keys with which a user may publish to, and bind to, a topic exchange.

        :param write: regular expression for the routing keys of publishes.
        :param read: regular expression for the routing keys of bindings.
        :raises OperationRefused: if there is no such user or virtual host, or a pattern is no regular expression.
        """
        self._check(user, vhost, write, read)
        row = TopicPermissionRow(user, vhost, exchange, write, read)
        self._topics.setdefault((user, vhost), {})[exchange] = _topic(row)
        if self._definitions is not None:
            self._definitions.put(row)
        self._on_changed()

    def clear_topic(self, user: str, vhost: str, exchange: str | None = None) -> None:
        """Remove a user's topic permission on one exchange, or on all exchanges of the virtual host.

        :param exchange: name of the exchange; None for all.
        :raises OperationRefused: if there is no such user or virtual host.
        """
        self._check(user, vhost)
        topics = self._topics.get((user, vhost), {})
        if exchange is None:
            topics.clear()
        else:
            topics.pop(exchange, None)
        if not topics:
            self._topics.pop((user, vhost), None)
        if self._definitions is not None:
            key = (user, vhost) if exchange is None else (user, vhost, exchange)
            self._definitions.remove(TopicPermissionRow, *key)
        self._on_changed()

    def forget(self, *, user: str | None = None, vhost: str | None = None) -> None:
        """Remove the permissions of a deleted user, or those in a deleted virtual host, from memory.

        On disk, they were removed with the user or virtual host itself.

        :param user: name of the deleted user; None if a virtual host was deleted.
        :param vhost: name of the deleted virtual host; None if a user was deleted.
        """
        for table in (self._permissions, self._topics):
            for key in [key for key in table if user == key[0] or vhost == key[1]]:
                del table[key]
        self._on_changed()

    def restore(
        self, permissions: Sequence[PermissionRow], topic_permissions: Sequence[TopicPermissionRow]
    ) -> None:
        """Load permissions from the data folder, without storing them again."""
        for row in permissions:
            _report_unsupported(row)
            self._permissions[row.user, row.vhost] = Permission(
                row.user, row.vhost, row.configure, row.write, row.read
            )
        for topic in topic_permissions:
            _report_unsupported(topic)
            self._topics.setdefault((topic.user, topic.vhost), {})[topic.exchange] = _topic(topic)

    def _check(self, user: str, vhost: str, *patterns: str) -> None:
        if not self._user_exists(user):
            raise ObjectNotFound(f"user '{user}' does not exist")
        if not self._vhost_exists(vhost):
            raise ObjectNotFound(f"virtual host '{vhost}' does not exist")
        for pattern in patterns:
            try:
                _compiled(pattern)
            except InvalidPattern as reason:
                raise OperationRefused(f"'{pattern}' is no regular expression: {reason}") from None


def _topic(row: TopicPermissionRow) -> TopicPermission:
    return TopicPermission(row.user, row.vhost, row.exchange, row.write, row.read)


def _report_unsupported(row: PermissionRow | TopicPermissionRow) -> None:
    """Log the patterns of a stored permission that an older version took, and that now allow nothing."""
    patterns = (
        (row.configure, row.write, row.read) if isinstance(row, PermissionRow) else (row.write, row.read)
    )
    for pattern in patterns:
        try:
            _compiled(pattern)
        except InvalidPattern as reason:
            logger.error(
                "event=permission.pattern_refused user=%r vhost=%r pattern=%r reason=%r",
                row.user,
                row.vhost,
                pattern,
                str(reason),
            )


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> NamePattern:
    return NamePattern(pattern or "^$")


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: bytes) -> bool:
    if pattern == ".*":
        return True
    try:
        return _compiled(pattern).found_in(name)
    except InvalidPattern:
        return False
