"""Browsing of a classic queue: consume without acknowledging, then close, so that all messages stay.

The messages are delivered, remain unacknowledged during the browse, and return to their places when its connection
closes (RabbitMQ, "Consumer Acknowledgements": unacknowledged messages are requeued, at their original position if
possible, and marked redelivered). Three things follow:

- Prefetch cannot bound memory here: nothing is acknowledged, so a limit below the number of messages would stop the
  deliveries for good. The prefetch is the number of messages that the passive declare counted; messages that arrive
  later stay where they are.
- Reading in batches bounds memory instead. The socket is read only while a batch is being filled; between batches TCP's
  flow control keeps the broker from sending more.
- Two browses at once would share the messages, and each would return a part. The consumer is therefore exclusive: a
  second browse waits until the first has closed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from warren.core.blocking_connection import ClosedByBroker, FetchedDelivery
from warren.pipeline.broker_connection import (
    Address,
    BrokerConnection,
    describe_failure,
    pipeline_errors,
    retry_while_transient,
)
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import queue_name
from warren.pipeline.source.blocking_consumer import BlockingConsumer
from warren.pipeline.source.delivery_parser import MessageColumns
from warren.wire.reply_codes import Reply

PROBE_INTERVAL = 1.0
"""Seconds without a delivery after which the broker is asked for the queue's message count again, because the missing
messages may have expired or been purged."""
RETRY_INTERVAL = 0.1
"""Seconds between two attempts to become the queue's exclusive consumer."""
PREFETCH_LIMIT = 65_535
"""Largest prefetch, because `basic.qos` carries 16 bits. For longer queues 0 is used, which is no limit."""


@dataclass(frozen=True)
class QueueBrowser:
    """Browser that reads all messages of a queue without removing them.

    :raises PipelineError: if the queue name is empty or too long
    """

    address: Address
    queue: str

    def __post_init__(self) -> None:
        if not self.queue:
            raise PipelineError("the name of the queue is empty")
        queue_name("queue", self.queue)

    def batches(self) -> Iterator[MessageColumns]:
        """Yield the messages that are in the queue now, in its order, about 4,096 messages or 4 MiB at a time.

        All of them stay in the queue. Messages that expire or are purged after they were counted are left out.

        A broker that is unreachable at the beginning is tried again for the address's timeout.

        :raises PipelineError: if there is no broker or no such queue, the password is wrong, the queue has another
            consumer, the connection is lost, or nothing arrives for the address's timeout
        """
        with pipeline_errors(f"cannot read queue {self.queue!r} at {self.address.masked_url}"):
            expected, consumer = retry_while_transient(self.address.timeout, self._open)
            if consumer is None:
                return
            session = BrowseSession(consumer, expected)
            try:
                while messages := session.next_batch():
                    yield messages
            finally:
                consumer.close()

    def _open(self) -> tuple[int, BlockingConsumer | None]:
        """Connect, count the messages of the queue and start an exclusive consumer.

        :return: the number of messages and the consumer; 0 and None, without a connection, if the queue is empty
        """
        connection = self.address.open()
        consumer: BlockingConsumer | None = None
        try:
            expected, consumer = self._start(connection)
            return expected, consumer
        finally:
            if consumer is None:
                connection.close()

    def _start(self, connection: BrokerConnection) -> tuple[int, BlockingConsumer | None]:
        """Count the messages of the queue and start an exclusive consumer; wait while the queue has another consumer.

        A declared count of 0 proves nothing, because RabbitMQ reports it also for a quorum queue without a leader. Then a
        basic.get finds out; the message that it may fetch is the first one of the browse.

        :return: the number of messages and the consumer; 0 and None if the queue is empty
        """
        deadline = time.monotonic() + self.address.timeout
        queue = self.queue.encode()
        while True:
            declared = connection.call("queue.declare", 0, queue, True, False, False, False, False, b"")
            if not declared.number("consumer_count"):
                expected, frames = declared.number("message_count"), b""
                if not expected:
                    fetched = self._fetch(connection)
                    if fetched is None:
                        return 0, None
                    expected, frames = 1 + fetched.remaining, fetched.frames
                prefetch = expected if expected <= PREFETCH_LIMIT else 0
                try:
                    consumer = BlockingConsumer(connection, self.queue, prefetch, exclusive=True)
                except ClosedByBroker as error:
                    if error.code != Reply.ACCESS_REFUSED or "exclusive" not in error.text:
                        raise
                    connection.reopen()
                else:
                    consumer.deliveries.feed(frames)
                    return expected, consumer
            if time.monotonic() >= deadline:
                raise PipelineError(f"it has another consumer (waited {self.address.timeout:g} s)")
            time.sleep(RETRY_INTERVAL)

    def _fetch(self, connection: BrokerConnection) -> FetchedDelivery | None:
        """Fetch the first message; return None if the queue is empty.

        :raises PipelineError: if the queue is a quorum queue with a single active consumer, which refuses basic.get
        """
        try:
            return connection.get(self.queue.encode())
        except ClosedByBroker as error:
            if error.code != Reply.RESOURCE_LOCKED:
                raise
            raise PipelineError(
                "the broker cannot confirm that it is empty, because it has a single active consumer"
            ) from None


class BrowseSession:
    """Browse in progress: an exclusive consumer, and the number of messages that are still to be read."""

    def __init__(self, consumer: BlockingConsumer, expected: int) -> None:
        self._consumer = consumer
        self._expected = expected

    def next_batch(self) -> MessageColumns | None:
        """Return the next batch of messages; None after as many as were counted at the beginning have been read."""
        consumer = self._consumer
        deliveries, timeout = consumer.deliveries, consumer.connection.timeout
        last_progress_at, empty = time.monotonic(), False
        try:
            while not consumer.batch_is_full and deliveries.count < self._expected:
                count = deliveries.count
                received = consumer.receive(PROBE_INTERVAL)
                if deliveries.count > count or received:
                    last_progress_at, empty = time.monotonic(), False
                elif time.monotonic() - last_progress_at >= timeout:
                    raise PipelineError(f"nothing arrived for {timeout:g} s {self._progress}")
                elif consumer.reports_empty_queue() and deliveries.count == count:
                    # The counted messages have expired or were purged. Two answers are needed, because an answer
                    # may overtake deliveries.
                    if empty:
                        self._expected = count
                    empty = True
        except (OSError, ClosedByBroker) as error:
            raise PipelineError(describe_failure(error, self._progress)) from None
        messages = deliveries.take()
        # Messages that arrived after the count are left to the next browse.
        surplus = deliveries.count - self._expected
        if surplus > 0:
            messages = messages.slice(0, len(messages.bodies) - surplus)
            self._expected = deliveries.count
        return messages if messages.bodies else None

    @property
    def _progress(self) -> str:
        return f"after {self._consumer.deliveries.count} of {self._expected} messages"
