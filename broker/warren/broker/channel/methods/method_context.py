"""Context of one method call: resolved names, permissions of the caller, reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.broker.access.authorization import READ, WRITE, Authorization
from warren.broker.channel.channel import Channel
from warren.broker.model.queue.queue import Queue
from warren.broker.model.server_names import refuse_default_exchange
from warren.wire.methods import Argument, Arguments, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection
    from warren.broker.model.vhost.declarations import Declarations

LINE_ENDS: Final = b"\r\n"
"""Octets that RabbitMQ removes from names where queues and exchanges are declared, bound and deleted."""


class MethodContext:
    """Context of one method call on a channel."""

    def __init__(self, connection: Connection, channel: Channel, arguments: Arguments) -> None:
        self.connection = connection
        self.channel = channel
        self.arguments = arguments
        self.declarations: Declarations = connection.node.vhosts[connection.vhost]
        assert connection.authorization is not None
        self.authorization: Authorization = connection.authorization
        definitions = connection.node.definitions
        self._change_before = definitions.submitted if definitions is not None else 0

    def reply(self, name: str, *values: Argument, after: bytes = b"") -> None:
        """Send the reply, once the definitions that the method changed are on disk; send none with `nowait`.

        :param name: method of the reply.
        :param after: frames to send after the reply; with `nowait`, without it.
        """
        if self.arguments.get("nowait") is True:
            if after:
                self.connection.send(after)
            return
        encoded = frame(int(self.channel.number), name, *values) + after
        definitions = self.connection.node.definitions
        if definitions is not None and definitions.submitted != self._change_before:
            self.connection.reply_when_committed(encoded, definitions.submitted)
        else:
            self.connection.send(encoded)

    def queue_name(self) -> bytes:
        """Return the queue name given; if it is empty, that of the queue last declared on the channel.

        :raises AmqpError: 404 if no queue was declared.
        """
        name = self.arguments.data("queue")
        if name:
            return name
        if not self.channel.last_queue:
            raise AmqpError(Reply.NOT_FOUND, "no previously declared queue")
        return self.channel.last_queue

    def stripped_queue_name(self) -> bytes:
        """Return `queue_name` without line ends."""
        return self.queue_name().translate(None, LINE_ENDS)

    def queue(self, operation: str = "") -> Queue:
        """Return the queue that is named.

        :param operation: the permission that the user needs: CONFIGURE, WRITE or READ; empty for none.
        :raises AmqpError: 404 without the queue, 403 without the permission, 405 if another connection has it exclusively.
        """
        name = self.queue_name()
        if operation:
            self.authorization.check(operation, "queue", name)
        return self.declarations.queue(name, self.connection)

    def check_binding(self, kind: str, destination: bytes, source: bytes, routing_key: bytes) -> None:
        """Check that the user may write to the destination and read from the source of a binding.

        :param kind: `queue` or `exchange`: the destination.
        :raises AmqpError: 403 if not, or if one of them is the default exchange.
        """
        self.authorization.check(WRITE, kind, destination)
        refuse_default_exchange(*((source, destination) if kind == "exchange" else (source,)))
        self.authorization.check(READ, "exchange", source)
        exchange = self.declarations.vhost.exchanges.get(source)
        if exchange is not None:
            self.authorization.check_topic(READ, exchange, routing_key)

    def routing_key(self, queue: bytes) -> bytes:
        """Return the routing key given; if neither a key nor a queue is named, the name of the channel's last queue.

        :param queue: that name.
        """
        key = self.arguments.data("routing_key")
        return key if key or self.arguments.data("queue") else queue

    def exchange_name(self, field: str = "exchange") -> bytes:
        """Return the exchange name in an argument, without line ends."""
        return self.arguments.data(field).translate(None, LINE_ENDS)
