"""A method in the middle of being answered: its names as they are meant, who asks, and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.channel.authorization import READ, WRITE, Authorization
from warren.broker.channel.channel import Channel
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import refuse_default_exchange
from warren.wire.methods import Argument, Arguments, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.model.vhost.declarations import Declarations

LINE_ENDS = b"\r\n"


class MethodContext:
    """One method in the middle of being answered."""

    def __init__(self, connection: Connection, channel: Channel, arguments: Arguments) -> None:
        self.connection = connection
        self.channel = channel
        self.arguments = arguments
        self.topology: Declarations = connection.node.vhosts[connection.vhost]
        assert connection.authorization is not None
        self.authorization: Authorization = connection.authorization
        definitions = connection.node.definitions
        self._before = definitions.submitted if definitions is not None else 0

    def reply(self, name: str, *values: Argument, after: bytes = b"") -> None:
        """Answer now, or when the definitions that this method changed are on disk; not at all if nowait.

        :param after: frames that follow the answer, and are sent without it as well.
        """
        if self.arguments.get("nowait") is True:
            if after:
                self.connection.send(after)
            return
        encoded = frame(int(self.channel.number), name, *values) + after
        definitions = self.connection.node.definitions
        if definitions is not None and definitions.submitted != self._before:
            self.connection.reply_when_committed(encoded, definitions.submitted)
        else:
            self.connection.send(encoded)

    def queue_name(self) -> bytes:
        """The name given, or that of the channel's last declared queue if it is empty."""
        name = self.arguments.data("queue")
        if name:
            return name
        if not self.channel.last_queue:
            raise AmqpError(Reply.NOT_FOUND, "no previously declared queue")
        return self.channel.last_queue

    def plain_queue_name(self) -> bytes:
        """The same without line ends, which RabbitMQ takes out where queues are declared, bound and deleted."""
        return self.queue_name().translate(None, LINE_ENDS)

    def queue(self, what: str = "") -> Queue:
        """The queue that is named; with `what`, only if the user may do that with it."""
        name = self.queue_name()
        if what:
            self.authorization.check(what, "queue", name)
        return self.topology.queue(name, self.connection)

    def check_binding(self, kind: str, destination: bytes, source: bytes, routing_key: bytes) -> None:
        """Whether the user may write to the destination and read from the source, neither of them the default exchange.

        :raises AmqpError: 403 if not.
        """
        self.authorization.check(WRITE, kind, destination)
        refuse_default_exchange(*((source, destination) if kind == "exchange" else (source,)))
        self.authorization.check(READ, "exchange", source)
        exchange = self.topology.vhost.exchanges.get(source)
        if exchange is not None:
            self.authorization.check_topic(READ, exchange, routing_key)

    def routing_key(self, queue: bytes) -> bytes:
        """The routing key given, or the queue's name if neither a queue nor a key is named."""
        key = self.arguments.data("routing_key")
        return key if key or self.arguments.data("queue") else queue

    def exchange_name(self, field: str = "exchange") -> bytes:
        return self.arguments.data(field).translate(None, LINE_ENDS)
