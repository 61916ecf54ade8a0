"""Context of one AMQP method: queue and exchange names in its arguments, its operation, and its reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from warren.broker.channel.channel import Channel
from warren.broker.operations.waiting import Operation, UntilWorkDone
from warren.wire.methods import Argument, Arguments, frame
from warren.wire.reply_codes import AmqpError, Reply

if TYPE_CHECKING:
    from warren.broker.connection.connection import Connection

T = TypeVar("T")

LINE_ENDS: Final = b"\r\n"
"""Line end characters, which RabbitMQ removes from queue and exchange names in some methods."""


class MethodContext:
    """Arguments of one AMQP method on a channel, the running of its operation, and the sending of its reply."""

    def __init__(self, connection: Connection, channel: Channel, arguments: Arguments) -> None:
        self.connection = connection
        self.channel = channel
        self.arguments = arguments
        self.principal = channel.principal
        self.declarations = channel.principal.declarations
        definitions = connection.node.definitions
        self._change_before = definitions.submitted if definitions is not None else 0
        self.is_waiting = False
        """True if the operation waits, and goes on later."""
        self.recorder: Callable[[Callable[[], None]], None] | None = None
        """Calls a function that performs the method or a part of it, and records the outcome; None if nobody wants it."""

    def run(self, operation: Operation[T], reply: Callable[[T], None]) -> None:
        """Run an operation, and call `reply` with its result; the client's next frames wait for it.

        If the operation ends consumers of the client, basic.cancel is sent after the reply.

        :raises AmqpError: if the operation is refused before it waits. Later, the client gets the error.
        """
        connection = self.connection
        connection.held_cancels = []
        self.is_waiting = False
        try:
            while (wait := next(operation)).is_over():
                pass
        except StopIteration as end:
            reply(end.value)
            return
        finally:
            # Those that no reply has taken along
            cancels, connection.held_cancels = connection.held_cancels, None
            for cancel in cancels or ():
                connection.send(cancel)
        self.is_waiting = True
        if isinstance(wait, UntilWorkDone):
            connection.after_bulk_work(lambda: self.attempt(lambda: self.run(operation, reply)))
        else:
            connection.await_reply()
            wait.call_when_over(
                lambda: connection.resume_with(lambda: self.attempt(lambda: self.run(operation, reply)))
            )

    def reply(self, name: str, *values: Argument) -> None:
        """Send the reply when the definitions that the method has changed are on disk.

        If the client set `nowait`, send no reply.

        :param name: AMQP method of the reply, such as `queue.declare-ok`.
        :param values: arguments of that method.
        """
        if self.arguments.get("nowait") is True:
            return
        connection = self.connection
        encoded = frame(int(self.channel.number), name, *values)
        if connection.held_cancels:
            encoded += b"".join(connection.held_cancels)
            connection.held_cancels = []
        definitions = connection.node.definitions
        if definitions is not None and definitions.submitted != self._change_before:
            connection.reply_when_committed(encoded, definitions.submitted)
        else:
            connection.send(encoded)

    def attempt(self, action: Callable[[], None]) -> None:
        """Call `action`, and report its error to the client; do nothing if the channel was closed meanwhile.

        A message that basic.get gave to a closed channel would stay unacknowledged.
        """
        if self.channel.closing:
            return
        try:
            if self.recorder is None:
                action()
            else:
                self.recorder(action)
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

    def routing_key(self, queue: bytes) -> bytes:
        """Return the routing key of queue.bind or queue.unbind; if it and the queue name are empty, return `queue`.

        :param queue: name of the queue last declared on the channel, to which an empty queue name refers.
        """
        key = self.arguments.data("routing_key")
        return key if key or self.arguments.data("queue") else queue

    def exchange_name(self, field: str = "exchange") -> bytes:
        """Return the exchange name in the argument `field`, without CR and LF, which RabbitMQ removes, too."""
        return self.arguments.data(field).translate(None, LINE_ENDS)
