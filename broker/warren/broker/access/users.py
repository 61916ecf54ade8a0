"""The users: names, passwords, tags and limits (https://www.rabbitmq.com/docs/access-control)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from warren.broker.access import passwords
from warren.broker.model.operator_errors import ObjectAlreadyExists, ObjectNotFound, OperationRefused
from warren.broker.model.vhost.vhost_settings import normalize_limit
from warren.broker.store.definitions.definition_rows import UserRow
from warren.broker.store.definitions.definitions_database import Definitions

logger = logging.getLogger(__name__)

TAGS: Final = ("administrator", "monitoring", "policymaker", "management", "impersonator")
"""The tags that mean something; others are kept."""
_NOBODY: Final = passwords.salted("")


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    :param password: salt and hash; empty for a user who cannot log in with a password.
    :param algorithm: what made the hash, as `passwords.ALGORITHMS` names it.
    :param max_connections: how many connections the user may have open; None is no limit, 0 none at all.
    :param max_channels: how many channels, over all of them; the same.
    """

    name: str
    password: bytes = field(default=b"", repr=False)
    algorithm: str = passwords.SHA256
    tags: tuple[str, ...] = ()
    max_connections: int | None = None
    max_channels: int | None = None

    @property
    def impersonator(self) -> bool:
        """May publish with another user's name in the `user_id` property."""
        return "impersonator" in self.tags


class Users:
    """The users of one broker. Every change is stored; it raises `OperationRefused` where it cannot be made."""

    def __init__(self, definitions: Definitions | None, on_changed: Callable[[], None]) -> None:
        self.on_deleted: list[Callable[[str], None]] = []
        """Called when a user is gone."""
        self._definitions = definitions
        self._on_changed = on_changed
        self._users: dict[str, User] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._users

    def all(self) -> list[User]:
        """All of them, by name."""
        return [self._users[name] for name in sorted(self._users)]

    def get(self, name: str) -> User:
        """
        :raises ObjectNotFound: if there is none of that name.
        """
        user = self._users.get(name)
        if user is None:
            raise ObjectNotFound(f"user '{name}' does not exist")
        return user

    def authenticate(self, name: str, password: bytes) -> User | None:
        """The user, if this is its password. An empty password is nobody's."""
        user = self._users.get(name)
        known = user is not None and user.password
        # Unknown names take as long, so that a peer cannot find out which exist.
        right = passwords.matches(
            password,
            user.password if user and known else _NOBODY,
            user.algorithm if user else passwords.SHA256,
        )
        return user if known and right and password else None

    def add(
        self,
        name: str,
        password: str | None = None,
        *,
        tags: Iterable[str] = (),
        password_hash: str | None = None,
        algorithm: str = passwords.SHA256,
    ) -> None:
        """Make a user, with a password, its hash as definitions have it, or neither.

        :raises ObjectAlreadyExists: if there is one of that name.
        """
        if name in self._users:
            raise ObjectAlreadyExists(f"user '{name}' already exists")
        if not name:
            raise OperationRefused("a user needs a name")
        self._put(User(name, _stored(password, password_hash, algorithm), algorithm, _tags(tags)))
        logger.debug("event=user_added name=%r", name)

    def change_password(self, name: str, password: str) -> None:
        self._put(replace(self.get(name), password=passwords.salted(password), algorithm=passwords.SHA256))

    def set_password_hash(self, name: str, password_hash: str, algorithm: str = passwords.SHA256) -> None:
        """Set the password that a hash in the form of definitions stands for."""
        self._put(
            replace(
                self.get(name), password=passwords.imported(password_hash, algorithm), algorithm=algorithm
            )
        )

    def clear_password(self, name: str) -> None:
        """Nobody logs in with a password as this user any more."""
        self._put(replace(self.get(name), password=b""))

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        self._put(replace(self.get(name), tags=_tags(tags)))

    def set_limits(self, name: str, *, max_connections: int | None, max_channels: int | None) -> None:
        """Set both limits; None, as any negative number, is no limit, and 0 allows nothing."""
        self._put(
            replace(
                self.get(name),
                max_connections=normalize_limit(max_connections),
                max_channels=normalize_limit(max_channels),
            )
        )

    def delete(self, name: str) -> None:
        """Delete a user with its permissions; its connections are closed."""
        self.get(name)
        del self._users[name]
        if self._definitions is not None:
            self._definitions.delete_user(name)
        logger.info("event=user_deleted name=%r", name)
        for told in self.on_deleted:
            told(name)
        self._on_changed()

    def restore(self, rows: Sequence[UserRow]) -> None:
        """Take what was stored, without storing it."""
        for row in rows:
            tags = tuple(row.tags.split(",")) if row.tags else ()
            self._users[row.name] = User(
                row.name, row.password, row.algorithm, tags, row.max_connections, row.max_channels
            )

    def _put(self, user: User) -> None:
        self._users[user.name] = user
        if self._definitions is not None:
            self._definitions.put(
                UserRow(
                    user.name,
                    user.password,
                    user.algorithm,
                    ",".join(user.tags),
                    user.max_connections,
                    user.max_channels,
                )
            )
        self._on_changed()


def _stored(password: str | None, password_hash: str | None, algorithm: str) -> bytes:
    if password_hash is not None:
        return passwords.imported(password_hash, algorithm)
    return passwords.salted(password, algorithm) if password else b""


def _tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Each once, in their order."""
    found = tuple(dict.fromkeys(tags))
    for tag in found:
        if not tag or "," in tag:
            raise OperationRefused(f"'{tag}' is no tag: a tag is not empty and has no comma")
    return found
