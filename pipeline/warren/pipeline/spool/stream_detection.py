"""Detection of streams through AMQP 0-9-1, which does not tell a queue's type, by the methods that a broker refuses."""

from __future__ import annotations

from warren.core.blocking_connection import CHANNEL, ClosedByBroker
from warren.pipeline.broker_connection import Address
from warren.wire import methods
from warren.wire.reply_codes import Reply


def is_stream(address: Address, queue: bytes) -> bool:
    """Return whether a queue is a stream. The caller must have an exclusive consumer on the queue.

    A second connection tries to consume. A classic queue refuses it (so does any queue of Warren's except a stream); a
    stream accepts it. RabbitMQ's quorum queues accept it as well, but unlike a stream they support basic.get.

    :raises PipelineError: if no connection can be made
    :raises ClosedByBroker: if the broker refuses for another reason
    :raises OSError: if the connection is lost
    """
    connection = address.open("warren pipeline spool")
    try:
        connection.call("basic.qos", 0, 1, False)
        connection.call("basic.consume", 0, queue, b"other", False, False, False, False, b"")
        connection.send(methods.frame(CHANNEL, "basic.get", 0, queue, False))
        # basic.get has two possible replies; the reply to the next method shows that it was processed.
        connection.call("basic.qos", 0, 1, False)
    except ClosedByBroker as error:
        if error.code == Reply.NOT_IMPLEMENTED:
            return True
        if error.code == Reply.ACCESS_REFUSED and "exclusive" in error.text:
            return False
        raise
    finally:
        connection.close()
    return False
