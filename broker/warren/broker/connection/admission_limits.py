"""Whether one more connection or channel is let in: limits of the node, of virtual hosts and of users.

https://www.rabbitmq.com/docs/vhosts#limits and .../docs/user-limits. They are counted when they are
asked for: without a limit nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from warren.broker.access.users import User
from warren.broker.channel.authorization import Authorization
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.connection.node import Node
    from warren.broker.model.vhost.declarations import Declarations


def admit(node: Node, connection: Connection, user: User, vhost: bytes) -> Authorization:
    """Let a connection into a virtual host: what it may do there.

    :raises AmqpError: 530 if there is no such virtual host, a limit is reached, or the user may not be in it.
    """
    name, shown = user.name, vhost.decode(errors="replace")
    limit = node.limits.max_connections
    if limit is not None and len(node.connections) > limit:
        raise _refused(f"connection refused: node connection limit ({limit}) is reached")
    topology = node.vhosts.get(vhost)
    if topology is None:
        raise _refused(f"vhost {shown} not found")
    limit = topology.settings.max_connections
    if limit is not None and sum(other.vhost == vhost for other in _others(node, connection)) >= limit:
        raise _refused(
            f"access to vhost '{shown}' refused for user '{name}': connection limit ({limit}) is reached"
        )
    user = node.access.users.get(name) if name in node.access.users else user
    limit = user.max_connections
    if (
        limit is not None
        and sum(other.user == connection.user for other in _others(node, connection)) >= limit
    ):
        raise _refused(f"connection refused for user '{name}': user connection limit ({limit}) is reached")
    authorization = Authorization(node.access, user, vhost, topology.vhost.compat)
    if not authorization.open:
        raise refused_in(vhost, name)
    return authorization


def admit_channel(node: Node, connection: Connection, authorization: Authorization) -> None:
    """
    :raises AmqpError: 530 if the user has as many channels as it may.
    """
    limit = authorization.user.max_channels
    if limit is None:
        return
    if sum(len(other.channels) for other in node.connections if other.user == connection.user) >= limit:
        raise _refused(
            f"number of channels opened for user '{authorization.user.name}' has reached the maximum allowed user limit of "
            f"({limit})"
        )


def admit_queue(topology: Declarations, name: bytes) -> None:
    """
    :raises AmqpError: 406 if the virtual host has as many queues as it may.
    """
    settings = topology.settings
    if settings.max_queues is not None and len(topology.vhost.queues) >= settings.max_queues:
        raise AmqpError(
            Reply.PRECONDITION_FAILED,
            f"cannot declare queue '{name.decode(errors='replace')}': queue limit in vhost '{settings.name}' "
            f"({settings.max_queues}) is reached",
        )


def _others(node: Node, connection: Connection) -> Iterator[Connection]:
    return (other for other in node.connections if other.open and other is not connection)


def refused_in(vhost: bytes, user: str) -> AmqpError:
    return _refused(f"access to vhost '{vhost.decode(errors='replace')}' refused for user '{user}'")


def _refused(text: str) -> AmqpError:
    return AmqpError(Reply.NOT_ALLOWED, text)
