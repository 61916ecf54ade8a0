"""Logins and permissions that an access-control service decides on."""

from __future__ import annotations

from warren.broker.access.access_control import Access
from warren.broker.access.access_service.access_service import AccessService
from warren.broker.access.access_service.questions import Question
from warren.broker.access.authorization import Authorization
from warren.broker.access.login_chain import Login, LoginRefused
from warren.broker.access.users import User
from warren.broker.model.rabbitmq_versions import VersionBehaviour


class ServiceBackend:
    """Back end that asks an access-control service."""

    def __init__(self, service: AccessService, access: Access) -> None:
        self._service = service
        self._access = access

    def authenticate(self, name: str, password: bytes, address: str) -> Login:
        """Return the login, if the service allows it.

        :raises LoginRefused: if it does not.
        :raises DecisionPending: if it has to be asked first.
        """
        # An empty password would be asked for as if there was none.
        answer = self._service.ask(Question("user", (("username", name),), password)) if password else None
        if answer is None or not answer.allowed:
            reason = "did not answer" if answer is not None and answer.has_failed else "denied the login"
            raise LoginRefused(f"user {name!r}: the access-control service {reason}")
        return self._login(User(name, tags=answer.tags), address)

    def authorize(self, user: User, password: bytes, address: str) -> Login:
        """Return the login of a user whom another back end has authenticated, if the service knows it.

        :raises LoginRefused: if it does not.
        :raises DecisionPending: if it has to be asked first.
        """
        self.authenticate(user.name, password, address)
        return self._login(user, address)

    def close(self) -> None:
        """Ask no more questions."""
        self._service.close()

    def _login(self, user: User, address: str) -> Login:
        return Login(
            user,
            lambda vhost, compat: ServiceAuthorization(
                self._service, self._access, user, vhost, compat, address
            ),
        )


class ServiceAuthorization(Authorization):
    """Permissions of one user in one virtual host, as an access-control service decides on them."""

    def __init__(
        self,
        service: AccessService,
        access: Access,
        user: User,
        vhost: bytes,
        compat: VersionBehaviour,
        address: str,
    ) -> None:
        super().__init__(access, user, vhost, compat)
        self._service = service
        self._name = vhost.decode("utf-8", "surrogateescape")
        self._tags = " ".join(user.tags)
        self._address = address

    @property
    def user_exists(self) -> bool:
        """True: the user is none of the broker's."""
        return True

    @property
    def may_open_vhost(self) -> bool:
        """True if the service allows the user to open the virtual host."""
        return self._ask("vhost", ("vhost", self._name), ("ip", self._address))

    @property
    def has_topic_permissions(self) -> bool:
        """True: the service decides on each routing key."""
        return True

    @property
    def is_restricted(self) -> bool:
        """True: the service decides on each operation."""
        return True

    def _refresh(self) -> None:
        """Do nothing: the service keeps the answers."""

    def _allows(self, operation: str, kind: str, name: bytes) -> bool:
        return self._ask("resource", *self._resource(kind, name, operation))

    def _allows_topic(self, operation: str, exchange: bytes, routing_key: bytes) -> bool:
        return self._ask(
            "topic",
            *self._resource("topic", exchange, operation),
            ("routing_key", routing_key.decode("utf-8", "surrogateescape")),
            ("variable_map.username", self._user.name),
            ("variable_map.vhost", self._name),
        )

    def _resource(self, kind: str, name: bytes, operation: str) -> tuple[tuple[str, str], ...]:
        return (
            ("vhost", self._name),
            ("resource", kind),
            ("name", name.decode("utf-8", "surrogateescape")),
            ("permission", operation),
        )

    def _ask(self, kind: str, *parameters: tuple[str, str]) -> bool:
        question = Question(kind, (("username", self._user.name), *parameters, ("tags", self._tags)))
        return self._service.ask(question).allowed
