"""Limits on the number of connections and channels: of the broker, of virtual hosts, and of users.

https://www.rabbitmq.com/docs/vhosts#limits and .../docs/user-limits. Connections and channels are only counted when a
limit has to be checked, so broker, virtual hosts and users without limits cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from warren.broker.access.access_control import Access
from warren.broker.access.authorization import Authorization
from warren.broker.access.login_chain import Login
from warren.broker.connection.connection_settings import ConnectionSettings
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.model.vhost.declarations import Declarations


class ConnectionLimits:
    """Checks of connection and channel limits, before a connection or channel is opened."""

    def __init__(
        self,
        connections: Mapping[ClientSession, bool],
        vhosts: Mapping[bytes, Declarations],
        access: Access,
        settings: ConnectionSettings,
    ) -> None:
        self._connections = connections
        self._vhosts = vhosts
        self._access = access
        self._settings = settings

    def authorize(self, session: ClientSession, login: Login, vhost: bytes) -> Authorization:
        """Check that a session may be opened to the virtual host `vhost`, and return the user's permissions there.

        :raises AmqpError: 530 if there is no such virtual host, a limit is reached, or the user may not access it.
        """
        name, shown = login.user.name, vhost.decode(errors="replace")
        limit = self._settings.max_connections
        if limit is not None and sum(1 for _ in self._others(session)) >= limit:
            raise _refused(f"connection refused: node connection limit ({limit}) is reached")
        declarations = self._vhosts.get(vhost)
        if declarations is None:
            raise _refused(f"vhost {shown} not found")
        limit = declarations.settings.max_connections
        if limit is not None and sum(other.vhost == vhost for other in self._others(session)) >= limit:
            raise _refused(
                f"access to vhost '{shown}' refused for user '{name}': connection limit ({limit}) is reached"
            )
        authorization = login.authorize(vhost, declarations.vhost.compat)
        limit = authorization.user.max_connections
        if limit is not None and sum(other.user == session.user for other in self._others(session)) >= limit:
            raise _refused(
                f"connection refused for user '{name}': user connection limit ({limit}) is reached"
            )
        if not authorization.may_open_vhost:
            raise vhost_access_refused(vhost, name)
        return authorization

    def check_new_channel(self, session: ClientSession) -> None:
        """Check that the session's user may open another channel.

        :raises AmqpError: 530 if the user has reached its limit of open channels.
        """
        assert session.authorization is not None
        user = session.authorization.user
        limit = user.max_channels
        if limit is None:
            return
        if sum(len(other.channels) for other in self._connections if other.user == session.user) >= limit:
            raise _refused(
                f"number of channels opened for user '{user.name}' has reached the maximum allowed user limit of ({limit})"
            )

    def _others(self, session: ClientSession) -> Iterator[ClientSession]:
        return (
            other for other in self._connections if other.authorization is not None and other is not session
        )


def vhost_access_refused(vhost: bytes, user: str) -> AmqpError:
    """Return the error 530 of a user who has no permissions in a virtual host, with RabbitMQ's text."""
    return _refused(f"access to vhost '{vhost.decode(errors='replace')}' refused for user '{user}'")


def _refused(text: str) -> AmqpError:
    return AmqpError(Reply.NOT_ALLOWED, text)
