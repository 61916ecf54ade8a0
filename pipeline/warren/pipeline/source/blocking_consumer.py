"""Blocking AMQP consumer. It collects parsed deliveries, and returns the broker's replies to methods, which arrive
between the deliveries.
"""

from __future__ import annotations

import time

from warren.pipeline.broker_connection import BrokerConnection
from warren.pipeline.source.delivery_parser import DeliveryParser
from warren.pipeline.source.header_decoder import OFFSET
from warren.wire import field_tables, methods

BATCH_MESSAGES = 4096
"""Number of received messages that make a full batch."""
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of received message bodies that make a full batch."""
TAG = b"r"


class BlockingConsumer:
    """Consumer of one queue or stream with manual acknowledgements. Received messages collect in `deliveries`.

    :param prefetch: number of unacknowledged messages allowed; 0 is no limit, which streams refuse
    :param counting: discard the messages, and keep only their number, and the last offset and properties
    :param ack_every: number of received messages after which a `basic.ack` is sent, which on a stream grants
        credit; 0 sends none
    :raises ClosedByBroker: if the broker refuses the consumer
    """

    def __init__(
        self,
        connection: BrokerConnection,
        queue: str,
        prefetch: int,
        *,
        ack_every: int = 0,
        exclusive: bool = False,
        counting: bool = False,
        arguments: dict[str, field_tables.Value] | None = None,
    ) -> None:
        self.connection = connection
        self.deliveries = DeliveryParser(connection.frame_max, streamed=OFFSET in (arguments or {}))
        self._queue = queue.encode()
        self._ack_every = ack_every
        self._counting = counting
        self._acknowledged = 0
        self._answers: list[bytes] = []
        connection.call("basic.qos", 0, prefetch, False)
        table = field_tables.encode(arguments or {})
        connection.call("basic.consume", 0, self._queue, TAG, False, False, exclusive, False, table)

    @property
    def batch_is_full(self) -> bool:
        """True if the messages in `deliveries`, which the caller has not taken yet, make a full batch: about 4,096
        messages, or 4 MiB.
        """
        return len(self.deliveries.bodies) >= BATCH_MESSAGES or self.deliveries.size >= BATCH_BYTES

    def receive(self, wait: float) -> bool:
        """Wait up to `wait` seconds for data, and parse it; return False if nothing but heartbeats arrived.

        :raises PipelineError: if the queue was deleted
        :raises ClosedByBroker: if the broker closed the channel or the connection
        :raises OSError: if the connection is lost
        """
        deadline = time.monotonic() + wait
        deliveries = self.deliveries
        came = False
        while not came:
            data = self.connection.receive(max(deadline - time.monotonic(), 0))
            if not data:
                return False
            deliveries.feed(data)
            if self._counting:
                deliveries.forget()
            came = not deliveries.other or self._store_replies(deliveries.other, len(data))
        if self._ack_every and deliveries.count - self._acknowledged >= self._ack_every:
            self.acknowledge()
        return True

    def _store_replies(self, frames: list[bytes], size: int) -> bool:
        """Store the method frames among the given frames as replies for `call`, and empty the list `frames`.

        :param frames: frames that are not part of a delivery
        :param size: number of bytes that were received
        :return: whether these bytes contained more than heartbeats
        """
        for frame in frames:
            self.connection.check_frame(frame)
            if frame[0] == 1:
                self._answers.append(frame)
            elif frame[0] == 8:
                size -= len(frame)
        frames.clear()
        return size > 0

    def acknowledge(self) -> None:
        """Acknowledge all messages received so far."""
        if self.deliveries.count == self._acknowledged:
            # Acknowledging a delivery tag twice is a channel error.
            return
        self._acknowledged = self.deliveries.count
        self.connection.send(methods.frame(1, "basic.ack", self.deliveries.tag, True))

    def call(self, name: str, *values: methods.Argument) -> methods.Arguments:
        """Send a method and return its `-ok` reply. Deliveries that arrive before it are received as usual.

        All deliveries that the broker sent before the reply have been received when it returns.

        :param name: name of the method, such as `basic.cancel`
        :param values: all its fields in the order of the specification, reserved ones included
        :return: fields of the reply
        :raises TimeoutError: if there is no reply within the connection's timeout
        """
        self._answers.clear()
        self.connection.send(methods.frame(1, name, *values))
        wanted = methods.BY_NAME[f"{name}-ok"]
        deadline = time.monotonic() + self.connection.timeout
        while True:
            for frame in self._answers:
                if int.from_bytes(frame[7:11]) == wanted.class_id << 16 | wanted.method_id:
                    return methods.decode(wanted, frame[7:-1])
            if not self.receive(max(deadline - time.monotonic(), 0)) and time.monotonic() >= deadline:
                raise TimeoutError

    def message_count(self) -> int:
        """Ask the broker for the number of ready messages in the queue, without the unacknowledged ones."""
        return self._counts().number("message_count")

    def reports_empty_queue(self) -> bool:
        """Ask the broker whether the queue has no ready messages. Do not use it for streams.

        A reply without any consumer does not count, because this one is attached: RabbitMQ reports 0 messages and 0
        consumers for a quorum queue whose leader has not answered within 250 ms.
        """
        counts = self._counts()
        return not counts.number("message_count") and counts.number("consumer_count") > 0

    def _counts(self) -> methods.Arguments:
        """Return the reply to a passive `queue.declare`, which has the counts of messages and consumers."""
        return self.call("queue.declare", 0, self._queue, True, False, False, False, False, b"")

    def close(self) -> None:
        """Close the connection, which also ends the consumer. The broker then requeues the unacknowledged messages,
        except those of a stream.
        """
        self.connection.close(self.deliveries.rest)
