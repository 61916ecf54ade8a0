"""Users: names, passwords, tags and limits (https://www.rabbitmq.com/docs/access-control)."""

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
"""User tags that have a meaning in RabbitMQ; any other tag is stored, too, but without effect."""
_UNKNOWN_USER: Final = passwords.hash_password("")
"""Hash to verify a password against if no user has the name, so that a login takes equally long for unknown names."""


@dataclass(frozen=True, slots=True)
class User:
    """User that may log in to the broker.

    :param password: salt and hash; empty for a user who cannot log in with a password.
    :param algorithm: algorithm of the hash, one of `passwords.ALGORITHMS`.
    :param max_connections: connections that the user may have open; None is no limit, 0 allows none.
    :param max_channels: channels that the user may have open, over all connections; None is no limit, 0 allows none.
    """

    name: str
    password: bytes = field(default=b"", repr=False)
    algorithm: str = passwords.SHA256
    tags: tuple[str, ...] = ()
    max_connections: int | None = None
    max_channels: int | None = None

    @property
    def may_impersonate(self) -> bool:
        """True if the user may publish with another user's name in the property `user_id`."""
        return "impersonator" in self.tags


class Users:
    """Users of one broker.

    Changes are stored in the data folder, if there is one. A change that cannot be made raises `OperationRefused`.
    """

    def __init__(self, definitions: Definitions | None, on_changed: Callable[[], None]) -> None:
        self.on_deleted: list[Callable[[str], None]] = []
        """Callbacks that are called with the name of each deleted user."""
        self._definitions = definitions
        self._on_changed = on_changed
        self._users: dict[str, User] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._users

    def all(self) -> list[User]:
        """Return all users, sorted by name."""
        return [self._users[name] for name in sorted(self._users)]

    def get(self, name: str) -> User:
        """Return the user with this name.

        :raises ObjectNotFound: if there is none of that name.
        """
        user = self._users.get(name)
        if user is None:
            raise ObjectNotFound(f"user '{name}' does not exist")
        return user

    def authenticate(self, name: str, password: bytes) -> User | None:
        """Return the user if name and password are right, else None. An empty password is never accepted."""
        user = self._users.get(name)
        has_password = user is not None and user.password
        # Always hashed, so that the time that it takes does not reveal which users exist.
        matches = passwords.matches(
            password,
            user.password if user and has_password else _UNKNOWN_USER,
            user.algorithm if user else passwords.SHA256,
        )
        return user if has_password and matches and password else None

    def add(
        self,
        name: str,
        password: str | None = None,
        *,
        tags: Iterable[str] = (),
        password_hash: str | None = None,
        algorithm: str = passwords.SHA256,
    ) -> None:
        """Add a user.

        :param password: None for a user with a `password_hash`, or without a password.
        :param tags: tags such as `administrator`; duplicates are removed.
        :param password_hash: salt and hash of the password, in Base64 as definitions contain them.
        :param algorithm: algorithm of the hash, one of `passwords.ALGORITHMS`.
        :raises ObjectAlreadyExists: if there is a user of that name.
        :raises OperationRefused: if the name or a tag is empty, a tag contains a comma, or the hash is invalid.
        """
        if name in self._users:
            raise ObjectAlreadyExists(f"user '{name}' already exists")
        if not name:
            raise OperationRefused("the name of a user must not be empty")
        self._put(User(name, _stored(password, password_hash, algorithm), algorithm, _tags(tags)))
        logger.debug("event=user.added user=%r", name)

    def change_password(self, name: str, password: str) -> None:
        """Set a user's password. It applies to the next login; open connections stay.

        :raises ObjectNotFound: if there is no such user.
        """
        self._put(
            replace(self.get(name), password=passwords.hash_password(password), algorithm=passwords.SHA256)
        )

    def set_password_hash(self, name: str, password_hash: str, algorithm: str = passwords.SHA256) -> None:
        """Set a user's password by its hash.

        :param password_hash: salt and hash in Base64, as definitions contain them; empty for no password.
        :param algorithm: algorithm of the hash, one of `passwords.ALGORITHMS`.
        :raises ObjectNotFound: if there is no such user.
        :raises OperationRefused: if the hash is invalid.
        """
        self._put(
            replace(
                self.get(name),
                password=passwords.from_definitions(password_hash, algorithm),
                algorithm=algorithm,
            )
        )

    def clear_password(self, name: str) -> None:
        """Remove a user's password, so that nobody can log in with one as this user.

        :raises ObjectNotFound: if there is no such user.
        """
        self._put(replace(self.get(name), password=b""))

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        """Replace the tags of a user.

        :raises ObjectNotFound: if there is no such user.
        :raises OperationRefused: if a tag is empty or contains a comma.
        """
        self._put(replace(self.get(name), tags=_tags(tags)))

    def set_limits(self, name: str, *, max_connections: int | None, max_channels: int | None) -> None:
        """Set both limits of a user. None or a negative number is no limit; 0 allows none.

        :param max_connections: connections that the user may have open.
        :param max_channels: channels that the user may have open, over all connections.
        :raises ObjectNotFound: if there is no such user.
        """
        self._put(
            replace(
                self.get(name),
                max_connections=normalize_limit(max_connections),
                max_channels=normalize_limit(max_channels),
            )
        )

    def delete(self, name: str) -> None:
        """Delete a user and its permissions, and close its connections.

        :raises ObjectNotFound: if there is no such user.
        """
        self.get(name)
        del self._users[name]
        if self._definitions is not None:
            self._definitions.delete_user(name)
        logger.info("event=user.deleted user=%r", name)
        for callback in self.on_deleted:
            callback(name)
        self._on_changed()

    def restore(self, rows: Sequence[UserRow]) -> None:
        """Load users from the data folder, without storing them again."""
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
        return passwords.from_definitions(password_hash, algorithm)
    return passwords.hash_password(password, algorithm) if password else b""


def _tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags of a user in the given order, without duplicates.

    :raises OperationRefused: if a tag is empty or contains a comma.
    """
    found = tuple(dict.fromkeys(tags))
    for tag in found:
        if not tag or "," in tag:
            raise OperationRefused(f"'{tag}' cannot be a tag; a tag is not empty and contains no comma")
    return found
