"""Principal of an operation: the client or operator on whose behalf it is performed, in one virtual host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from warren.broker.access.authorization import Authorization
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.queue.queue import Queue
    from warren.broker.model.vhost.declarations import Declarations
    from warren.broker.model.vhost.vhost import VirtualHost


class ClientConnection(Protocol):
    """Connection of a client, which owns its exclusive queues, and is the lane of the bulk work that it causes."""

    def shown_name(self) -> str:
        """Return the name of the connection as RabbitMQ forms it: client address `->` broker address."""


class Principal:
    """Client or operator who asks for operations in one virtual host.

    :param declarations: the virtual host.
    :param user: name of the user; empty for an operator at the control socket, who has none.
    :param authorization: permissions of the user; None for an operator, who may do everything.
    :param connection: connection of an AMQP client; None for others, who cannot use exclusive queues.
    :param origin: name for captured events and traces of a client that has no connection.
    :param channel: number of the client's channel; 0 if it has none.
    """

    def __init__(
        self,
        declarations: Declarations,
        user: bytes,
        authorization: Authorization | None,
        connection: ClientConnection | None = None,
        origin: str = "",
        channel: int = 0,
    ) -> None:
        self.declarations = declarations
        self.user = user
        self.authorization = authorization
        self.connection = connection
        self.channel = channel
        self._origin = origin

    @property
    def vhost(self) -> VirtualHost:
        """Virtual host that the operations concern."""
        return self.declarations.vhost

    @property
    def origin(self) -> str:
        """Name of the client's connection in captured events and in traces."""
        return self._origin if self.connection is None else self.connection.shown_name()

    @property
    def may_impersonate(self) -> bool:
        """True if the user may publish with another user's name in the property user-id.

        https://www.rabbitmq.com/docs/validated-user-id
        """
        return self.authorization is None or self.authorization.user.may_impersonate

    def check(self, operation: str, kind: str, name: bytes) -> None:
        """Check the permission for an operation on a queue or an exchange.

        :param operation: CONFIGURE, WRITE or READ.
        :param kind: `queue` or `exchange`.
        :raises AmqpError: 403 if the user lacks the permission.
        """
        if self.authorization is not None:
            self.authorization.check(operation, kind, name)

    def check_any(self, kind: str, name: bytes) -> None:
        """Check that the user may configure, write or read a queue or an exchange.

        :raises AmqpError: 403 if the user may do none of them.
        """
        if self.authorization is not None:
            self.authorization.check_any(kind, name)

    def check_topic(self, operation: str, exchange: Exchange, routing_key: bytes) -> None:
        """Check the permission for a routing key of a topic exchange.

        :param operation: WRITE to publish with it, READ to bind with it.
        :raises AmqpError: 403 if the user lacks it.
        """
        if self.authorization is not None:
            self.authorization.check_topic(operation, exchange, routing_key)

    def check_forwarding(self, kind: str, name: bytes, arguments: bytes, argument: str) -> None:
        """Check the permissions to declare an object that forwards messages to an exchange.

        :param arguments: arguments of the object, an encoded field table.
        :param argument: the one that names the exchange.
        :raises AmqpError: 403 without READ on the object, or WRITE on the exchange.
        """
        if self.authorization is not None:
            self.authorization.check_forwarding(kind, name, arguments, argument)

    def queue(self, name: bytes) -> Queue:
        """Return a queue that the client may use. Operators may use exclusive queues, too.

        :raises AmqpError: 404 if it does not exist, 405 if it is exclusive to another connection.
        """
        if self.authorization is None and name in self.vhost.queues:
            return self.vhost.queues[name]
        return self.declarations.queue(name, self.connection)

    def lane(self, queue: Queue) -> object:
        """Return the lane of bulk work on a queue that the principal causes."""
        return self.connection or queue
