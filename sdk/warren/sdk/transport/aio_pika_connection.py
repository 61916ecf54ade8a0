"""The connection of aio-pika, with a socket that the SDK reads as well."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple, cast

import aio_pika
from aio_pika.abc import ConnectionParameter, TimeoutType, UnderlayConnection
from aiormq.auth import AuthBase, AuthMechanism
from aiormq.channel import Channel
from aiormq.connection import Connection as AiormqConnection
from pamqp.commands import Connection as ConnectionMethods
from yarl import URL

from warren.sdk.transport.socket_stream import SocketFactory
from warren.wire.amqp_url import AmqpUrl

AmqpChannel = Channel
"""The channel of the AMQP library: synchronous methods only; messages pass through `DataChannel`."""


def _unchanged(value: Any) -> Any:
    return value


class PlainLogin(AuthBase):
    """Response of the mechanism PLAIN (RFC 4616) with the user and password of the URL, which may be empty."""

    def encode(self) -> str:
        assert isinstance(self.connector, UrlConnection)
        address = self.connector.address
        return f"\0{address.user}\0{address.password}"


class LoginMechanism(NamedTuple):
    """Login mechanism in the form of aiormq's `AuthMechanism`, an enum, to which no member can be added."""

    name: str
    value: type[AuthBase]


PLAIN: Final = LoginMechanism("PLAIN", PlainLogin)


class UrlConnection(AiormqConnection):
    """A connection of aiormq whose user, password and virtual host are those that `parse_url` returns.

    From its own URL, aiormq would decode the virtual host a second time, with `.` and `..` as folders, and would replace an
    empty password by `guest`.
    """

    def __init__(self, url: URL, *, address: AmqpUrl, **keywords: Any) -> None:
        super().__init__(url, **keywords)
        self.address = address
        self.vhost: str = address.virtual_host

    def _credentials_class(self, start_frame: ConnectionMethods.Start) -> AuthMechanism:
        chosen = super()._credentials_class(start_frame)
        return cast(AuthMechanism, PLAIN) if chosen is AuthMechanism.PLAIN else chosen


class UrlUnderlay(UnderlayConnection):
    """The part of an aio-pika connection that creates the connection of aiormq: a `UrlConnection`."""

    @classmethod
    async def make_connection(cls, url: URL, timeout: TimeoutType = None, **kwargs: Any) -> UrlConnection:
        connection = UrlConnection(url, **kwargs)
        async with asyncio.timeout(timeout):
            await connection.connect()
        await connection.ready()
        return connection


class SharedSocketConnection(aio_pika.Connection):
    """A connection of aio-pika that opens its socket with a factory of the SDK.

    aio-pika passes the arguments that `PARAMETERS` lists to the connection of aiormq. The entries that are added here are
    `transport_factory`, an argument of aiormq, and `address`, an argument of `UrlConnection`.

    :param url: the URL without its virtual host, from which aiormq takes host, port and query.
    :param address: the parsed URL, with user, password and virtual host.
    """

    PARAMETERS: tuple[ConnectionParameter, ...] = (
        *aio_pika.Connection.PARAMETERS,
        ConnectionParameter(name="transport_factory", parser=_unchanged, is_kwarg=True),
        ConnectionParameter(name="address", parser=_unchanged, is_kwarg=True),
    )

    def __init__(self, url: URL, address: AmqpUrl, socket: SocketFactory) -> None:
        super().__init__(url, transport_factory=socket, address=address)

    async def connect(self, timeout: TimeoutType = None) -> None:
        """Connect, log in, open the virtual host."""
        self.transport: UnderlayConnection | None = await UrlUnderlay.connect(
            self.url, self._on_connection_close, timeout=timeout, **self.kwargs
        )
        await self._on_connected()

    def __del__(self) -> None:
        """Do nothing: `Session` closes the connection.

        aio-pika would close it on the event loop of the collecting thread, and warns if that has none.
        """

    @property
    def underlay(self) -> AiormqConnection:
        """The `aiormq.Connection` that aio-pika uses; its channels carry
        messages. Available only while the connection is open.
        """
        assert self.transport is not None
        connection = self.transport.connection
        assert isinstance(connection, AiormqConnection)
        return connection
