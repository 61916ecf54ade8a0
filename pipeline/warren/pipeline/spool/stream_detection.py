"""Whether a queue is a stream: a broker says so only by what it refuses."""

from __future__ import annotations

from warren.core.blocking_connection import CHANNEL, ClosedByBroker
from warren.pipeline.broker_connection import Address
from warren.wire import methods
from warren.wire.reply_codes import Reply


def is_stream(address: Address, queue: bytes) -> bool:
    """Ask, on a connection of its own, while the queue has an exclusive consumer.

    A classic queue refuses another consumer then (so does any queue of Warren's); a stream takes it. Of the quorum queues of
    RabbitMQ, which take it as well, a stream differs in that it knows no basic.get.

    :raises PipelineError: if no connection can be made
    :raises ClosedByBroker: if the broker does not let it
    :raises OSError: if the connection is lost
    """
    connection = address.open("warren pipeline spool")
    try:
        connection.call("basic.qos", 0, 1, False)
        connection.call("basic.consume", 0, queue, b"other", False, False, False, False, b"")
        connection.send(methods.frame(CHANNEL, "basic.get", 0, queue, False))
        # Its answer may be one of two, and comes before this one's.
        connection.call("basic.qos", 0, 1, False)
    except Refused as error:
        if error.code == Reply.NOT_IMPLEMENTED:
            return True
        if error.code == Reply.ACCESS_REFUSED and "exclusive" in error.text:
            return False
        raise
    finally:
        connection.close()
    return False
