"""Topology methods of a control channel: declare, bind, and check exchanges and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aio_pika.abc import AbstractChannel
from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal


class TopologyMethods:
    """Declares topology on a channel of aio-pika.

    A method has to fit into one frame (AMQP 0-9-1 section 4.2.3). One that does not is not sent, because the broker would
    close the connection over it, and again after each reconnect.

    :param channel: an open channel without publisher confirms.
    :param frame_max: largest size of a frame in bytes; 0 for no limit.
    """

    def __init__(self, channel: AbstractChannel, frame_max: int) -> None:
        self._channel = channel
        self._frame_max = frame_max

    async def declare_exchange(
        self, name: str, properties: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """Declare an exchange.

        :param properties: `type`, `durable`, `auto_delete`, `internal`.
        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        table = dict(arguments)
        fields = {name: value for name, value in properties.items() if name != "type"}
        kind = properties["type"]
        self._check_size(
            commands.Exchange.Declare(exchange=name, exchange_type=kind, **fields, arguments=table)
        )
        await self._channel.declare_exchange(name, kind, **fields, arguments=table)

    async def declare_queue(
        self, name: str, properties: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """Declare a queue.

        :param properties: `durable`, `exclusive`, `auto_delete`.
        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        table = dict(arguments)
        self._check_size(commands.Queue.Declare(queue=name, **properties, arguments=table))
        await self._channel.declare_queue(name, **properties, arguments=table)

    async def bind_queue(self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any]) -> None:
        """Bind a queue to an exchange.

        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        table = dict(arguments)
        self._check_size(
            commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key, arguments=table)
        )
        destination = await self._channel.get_queue(queue, ensure=False)
        await destination.bind(exchange, key, arguments=table)

    async def bind_exchange(
        self, destination: str, source: str, key: str, arguments: Mapping[str, Any]
    ) -> None:
        """Bind one exchange to another: `source` then routes messages to `destination`.

        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        table = dict(arguments)
        self._check_size(
            commands.Exchange.Bind(destination=destination, source=source, routing_key=key, arguments=table)
        )
        exchange = await self._channel.get_exchange(destination, ensure=False)
        await exchange.bind(source, key, arguments=table)

    async def check_exchange(self, name: str) -> None:
        """Check that an exchange exists (a passive declaration); the broker closes the channel if it does not."""
        await self._channel.declare_exchange(name, passive=True)

    async def check_queue(self, name: str) -> None:
        """Check that a queue exists (a passive declaration); the broker closes the channel if it does not."""
        await self._channel.declare_queue(name, passive=True)

    def _check_size(self, method: Frame) -> None:
        try:
            # Channel numbers have a fixed width, so that any of them gives the size.
            size = len(marshal(method, 1))
        except TypeError as error:
            raise ValueError(f"its arguments cannot be encoded: {error}") from error
        if 0 < self._frame_max < size:
            raise ValueError(
                f"with its arguments it takes {size} bytes, and a frame of this broker holds at most {self._frame_max}"
            )
