"""Credentials of a connection: their expiry, which closes it, and their renewal with connection.update-secret.

https://www.rabbitmq.com/docs/oauth2#token-expiration
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from warren.broker.access.authorization import Authorization
from warren.broker.access.login_chain import Login, LoginRefused
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.connection.lifecycle import ConnectionLifecycle

logger = logging.getLogger(__name__)

LONGEST_WAIT: Final = 60.0
"""Longest time in seconds until the expiry is checked again: the machine's clock may be set meanwhile."""


class Credentials:
    """Credentials that one connection was opened with."""

    def __init__(self, connection: Connection, lifecycle: ConnectionLifecycle) -> None:
        self._connection = connection
        self._lifecycle = lifecycle
        self._login: Login | None = None
        self._timer: asyncio.TimerHandle | None = None

    def accept(self, login: Login) -> None:
        """Keep a login, and close the connection when it expires."""
        self._login = login
        self.stop()
        if login.expires_at is not None:
            left = login.expires_at - time.time()
            self._timer = self._connection.node.loop.call_later(
                max(0.0, min(left, LONGEST_WAIT)), self._check_expiry, login, login.expires_at
            )

    def stop(self) -> None:
        """Watch the expiry no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_expiry(self, login: Login, expires_at: float) -> None:
        if time.time() < expires_at:
            self.accept(login)
            return
        connection = self._connection
        logger.info("event=connection.credentials_expired peer=%s user=%r", connection.peer, login.user.name)
        self._lifecycle.shut_down(AmqpError(Reply.CONNECTION_FORCED, "credential expired"))

    def renew(self, secret: bytes) -> Authorization:
        """Verify a new secret, and return the permissions that hold from now on.

        :raises AmqpError: 530 if it is refused, or the user may no longer open the virtual host.
        :raises DecisionPending: if the answer of a back end has to be awaited.
        """
        connection, login = self._connection, self._login
        authorization = connection.authorization
        assert authorization is not None
        assert login is not None
        if login.renew is None:
            if not authorization.user_exists:
                raise AmqpError(Reply.NOT_ALLOWED, "New secret was refused by one of the backends")
            return authorization
        try:
            login = login.renew(secret)
        except LoginRefused as refusal:
            logger.warning(
                "event=connection.secret_refused peer=%s user=%r reason=%r",
                connection.peer,
                login.user.name,
                str(refusal),
            )
            raise AmqpError(Reply.NOT_ALLOWED, "New secret was refused by one of the backends") from None
        authorization = login.authorize(
            connection.vhost, connection.node.vhosts[connection.vhost].vhost.compat
        )
        if authorization.may_open_vhost:
            connection.authorization = authorization
            connection.forget_target()
            for channel in connection.channels.values():
                channel.principal.authorization = authorization
                channel.writable.clear()
            self.accept(login)
        return authorization
