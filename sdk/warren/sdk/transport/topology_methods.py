"""Topology methods of a channel: declare, bind, and check exchanges and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal

from warren.sdk.transport.aio_pika_connection import AmqpChannel
from warren.sdk.transport.named_methods import ExchangeBind, ExchangeDeclare, QueueBind, QueueDeclare


class TopologyMethods:
    """Declares topology on a channel of aiormq.

    A method has to fit into one frame (AMQP 0-9-1 section 4.2.3). One that does not is not sent, because the broker would
    close the connection over it, and again after each reconnect.

    :param channel: an open channel.
    :param frame_max: largest size of a frame in bytes; 0 for no limit.
    :param timeout: seconds for each reply; None for no limit. The channel is closed after it.
    """

    def __init__(self, channel: AmqpChannel, frame_max: int, timeout: float | None = None) -> None:
        self._channel = channel
        self._frame_max = frame_max
        self._timeout = timeout

    async def declare_exchange(
        self, name: str, properties: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """Declare an exchange.

        :param properties: `type`, `durable`, `auto_delete`, `internal`.
        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        fields = {name: value for name, value in properties.items() if name != "type"}
        await self._call(
            ExchangeDeclare(
                exchange=name, exchange_type=properties["type"], **fields, arguments=dict(arguments)
            )
        )

    async def declare_queue(
        self, name: str, properties: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """Declare a queue.

        :param properties: `durable`, `exclusive`, `auto_delete`.
        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        await self._call(QueueDeclare(queue=name, **properties, arguments=dict(arguments)))

    async def bind_queue(self, queue: str, exchange: str, key: str, arguments: Mapping[str, Any]) -> None:
        """Bind a queue to an exchange.

        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        await self._call(
            QueueBind(queue=queue, exchange=exchange, routing_key=key, arguments=dict(arguments))
        )

    async def bind_exchange(
        self, destination: str, source: str, key: str, arguments: Mapping[str, Any]
    ) -> None:
        """Bind one exchange to another: `source` then routes messages to `destination`.

        :raises ValueError: if the arguments cannot be encoded, or do not fit into one frame.
        """
        await self._call(
            ExchangeBind(destination=destination, source=source, routing_key=key, arguments=dict(arguments))
        )

    async def check_exchange(self, name: str) -> None:
        """Check that an exchange exists (a passive declaration); the broker closes the channel if it does not."""
        await self._call(ExchangeDeclare(exchange=name, passive=True))

    async def check_queue(self, name: str) -> tuple[int, int]:
        """Check that a queue exists (a passive declaration); the broker closes the channel if it does not.

        Return its number of ready messages and its number of consumers.
        """
        answer = await self._call(QueueDeclare(queue=name, passive=True))
        assert isinstance(answer, commands.Queue.DeclareOk)
        return answer.message_count or 0, answer.consumer_count or 0

    async def _call(self, method: Frame) -> object:
        """Send a method and return the reply.

        :raises ValueError: if the method cannot be encoded, or does not fit into one frame.
        """
        try:
            # Channel numbers have a fixed width, so that any of them gives the size.
            size = len(marshal(method, 1))
        except TypeError as error:
            raise ValueError(f"its arguments cannot be encoded: {error}") from error
        if 0 < self._frame_max < size:
            raise ValueError(
                f"with its arguments it takes {size} bytes, and a frame of this broker holds at most {self._frame_max}"
            )
        return await self._channel.rpc(method, timeout=self._timeout)
