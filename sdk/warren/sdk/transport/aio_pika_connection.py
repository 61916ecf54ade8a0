"""The connection of aio-pika, with a socket that the SDK reads as well."""

from __future__ import annotations

from typing import Any

import aio_pika
from aio_pika.abc import ConnectionParameter
from aiormq.abc import AbstractChannel
from aiormq.connection import Connection as AiormqConnection
from yarl import URL

from warren.sdk.transport.socket_stream import SocketFactory

AmqpChannel = AbstractChannel
"""The channel of the AMQP library: synchronous methods only; messages pass through `DataChannel`."""


def _unchanged(value: Any) -> Any:
    return value


class SharedSocketConnection(aio_pika.Connection):
    """A connection of aio-pika that opens its socket with a factory of the SDK.

    aio-pika creates an `aiormq.Connection` and passes to it the arguments that `PARAMETERS` lists. The entry that is
    added here, `transport_factory`, is an argument of aiormq.
    """

    PARAMETERS: tuple[ConnectionParameter, ...] = (
        *aio_pika.Connection.PARAMETERS,
        ConnectionParameter(name="transport_factory", parser=_unchanged, is_kwarg=True),
    )

    def __init__(self, url: URL, socket: SocketFactory) -> None:
        super().__init__(url, transport_factory=socket)

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
