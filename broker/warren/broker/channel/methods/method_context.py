"""Context of one AMQP method: queue and exchange names in its arguments, permission checks, and its reply."""

from __future__ import annotations

from collections.abc import Callable
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
"""Line end characters, which RabbitMQ removes from queue and exchange names in some methods."""


class MethodContext:
    """Arguments of one AMQP method on a channel, with permission checks and the sending of its reply."""

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
        """Send the reply when the definitions that the method has changed are on disk.

        If the client set `nowait`, send no reply.

        :param name: AMQP method of the reply, such as `queue.declare-ok`.
        :param values: arguments of that method.
        :param after: encoded frames to send right after the reply; with `nowait`, they are sent at once, alone.
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

    def when_not_held(self, queue: Queue, action: Callable[[], None]) -> None:
        """Call `action`, which replies, when no bulk work on the head of a queue is left, such as its expired messages.

        Until then the client's next frames wait.
        """
        if queue.is_held():
            # Expired messages, for example, have to be removed first: the reply waits, and the client's next frames.
            self.connection.await_reply()
            queue.waiters.append(lambda: self.resume_with(action))
        else:
            action()

    def when_settled(self, queue: Queue, action: Callable[[], None]) -> None:
        """Call `action`, which replies, when no message of a queue is being settled, dropped or dead-lettered any more.

        Until then the client's next frames wait.
        """
        # This begins the removal of expired messages, which then counts as unsettled.
        queue.is_held()
        if queue.is_settled:
            action()
        else:
            self.connection.await_reply()
            queue.when_settled(lambda: self.resume_with(action))

    def resume_with(self, action: Callable[[], None]) -> None:
        """Call `action` and process the client's next frames, which have waited."""
        self.connection.resume_with(lambda: self.attempt(action))

    def attempt(self, action: Callable[[], None]) -> None:
        """Call `action`, and report its error to the client; do nothing if the channel was closed meanwhile.

        A message that basic.get gave to a closed channel would stay unacknowledged.
        """
        if self.channel.closing:
            return
        try:
            action()
        except AmqpError as error:
            self.connection.channel_number = self.channel.number
            self.connection.lifecycle.handle_error(error)

    def queue_name(self) -> bytes:
        """Return the queue name in the arguments; if it is empty, the name of the queue last declared on the channel.

        :raises AmqpError: 404 if no queue was declared.
        """
        name = self.arguments.data("queue")
        if name:
            return name
        if not self.channel.last_queue:
            raise AmqpError(Reply.NOT_FOUND, "no previously declared queue")
        return self.channel.last_queue

    def stripped_queue_name(self) -> bytes:
        """Return the result of `queue_name` without CR and LF, which RabbitMQ removes in some methods."""
        return self.queue_name().translate(None, LINE_ENDS)

    def queue(self, operation: str = "") -> Queue:
        """Return the queue that the method names, after checking the user's permission.

        :param operation: the permission that the user needs: CONFIGURE, WRITE or READ; empty for none.
        :raises AmqpError: 404 if there is no such queue, 403 if the user lacks the permission, 405 if the queue is
            exclusive to another connection.
        """
        name = self.queue_name()
        if operation:
            self.authorization.check(operation, "queue", name)
        return self.declarations.queue(name, self.connection)

    def check_binding(self, kind: str, destination: bytes, source: bytes, routing_key: bytes) -> None:
        """Check that the user may write to the destination and read from the source of a binding.

        :param kind: type of the destination: `queue` or `exchange`.
        :param routing_key: routing key of the binding, for the topic permission on the source.
        :raises AmqpError: 403 if the user may not, or if source or destination is the default exchange.
        """
        self.authorization.check(WRITE, kind, destination)
        refuse_default_exchange(*((source, destination) if kind == "exchange" else (source,)))
        self.authorization.check(READ, "exchange", source)
        exchange = self.declarations.vhost.exchanges.get(source)
        if exchange is not None:
            self.authorization.check_topic(READ, exchange, routing_key)

    def routing_key(self, queue: bytes) -> bytes:
        """Return the routing key of queue.bind or queue.unbind; if it and the queue name are empty, return `queue`.

        :param queue: name of the queue last declared on the channel, to which an empty queue name refers.
        """
        key = self.arguments.data("routing_key")
        return key if key or self.arguments.data("queue") else queue

    def exchange_name(self, field: str = "exchange") -> bytes:
        """Return the exchange name in the argument `field`, without CR and LF, which RabbitMQ removes, too."""
        return self.arguments.data(field).translate(None, LINE_ENDS)
