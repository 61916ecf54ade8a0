"""Reads what waits in a classic queue without taking it: consumes, acknowledges nothing, closes.

The messages are delivered, held unacknowledged while the browse lasts, and go back to their places when its
connection closes (RabbitMQ, "Consumer Acknowledgements": what was not acknowledged is requeued, at its
original position if possible, and marked redelivered). Three things follow from that:

- Prefetch cannot bound memory here: nothing is acknowledged, so a limit below the number of messages would
  stop the deliveries for good. The limit is the number that the passive declare counted; what arrives later
  stays where it is.
- Memory is bounded by the batch instead. The socket is read only while a batch is being filled; between
  batches TCP holds the broker back.
- Two browses at once would share the messages between them, and each would see a part. So the consumer is
  exclusive: a second one waits until the first has closed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from warren.core.blocking_connection import Refused
from warren.pipeline.broker_connection import Address, BrokerConnection, describe_failure, pipeline_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import queue_name
from warren.pipeline.source.blocking_consumer import BlockingConsumer
from warren.pipeline.source.delivery_parser import MessageColumns
from warren.wire.reply_codes import Reply

PROBE_INTERVAL = 1.0
"""Seconds without a delivery after which the queue is asked whether it holds any more."""
RETRY_INTERVAL = 0.1
"""Seconds between two attempts to become the only consumer."""
EMPTY_ANSWERS = 3
"""How often a queue has to say that it is empty: RabbitMQ says so as well of a quorum queue whose leader has not answered
within 250 ms."""
PREFETCH_LIMIT = 65_535
"""basic.qos carries the prefetch in 16 bits; 0 is no limit."""


@dataclass(frozen=True)
class QueueBrowser:
    """A queue of a broker.

    :raises PipelineError: if it has no name
    """

    address: Address
    queue: str

    def __post_init__(self) -> None:
        if not self.queue:
            raise PipelineError("no queue is named")
        queue_name("queue", self.queue)

    def batches(self) -> Iterator[MessageColumns]:
        """What waits in the queue now, in the queue's order, about 4,096 messages or 4 MiB at a time.

        All of it stays there. What expires or is purged after it was counted is left out.

        :raises PipelineError: no broker, wrong password, no such queue, another consumer, a connection that is
            lost on the way, or no progress for the address's timeout
        """
        with pipeline_errors(f"cannot read queue {self.queue!r} at {self.address.masked_url}"):
            connection = self.address.open()
            try:
                expected, consumer = self._start(connection)
            except BaseException:
                connection.close()
                raise
            if consumer is None:
                connection.close()
                return
            session = BrowseSession(consumer, expected)
            try:
                while messages := session.next_batch():
                    yield messages
            finally:
                consumer.close()

    def _start(self, connection: BrokerConnection) -> tuple[int, BlockingConsumer | None]:
        """Count, then consume; wait while somebody else consumes, for then the count is not the whole."""
        deadline = time.monotonic() + self.address.timeout
        queue, empty = self.queue.encode(), 0
        while True:
            declared = connection.call("queue.declare", 0, queue, True, False, False, False, False, b"")
            expected = declared.number("message_count")
            if not declared.number("consumer_count"):
                if expected:
                    try:
                        return expected, BlockingConsumer(
                            connection,
                            self.queue,
                            expected if expected <= PREFETCH_LIMIT else 0,
                            exclusive=True,
                        )
                    except ClosedByBroker as error:
                        if error.code != Reply.ACCESS_REFUSED or "exclusive" not in error.text:
                            raise
                        connection.reopen()
                elif (empty := empty + 1) == EMPTY_ANSWERS:
                    return 0, None
                else:
                    time.sleep(RETRY_INTERVAL)
                    continue
            if time.monotonic() >= deadline:
                raise PipelineError(f"it has another consumer (waited {self.address.timeout:g} s)")
            time.sleep(RETRY_INTERVAL)


class BrowseSession:
    """A browse under way."""

    def __init__(self, consumer: BlockingConsumer, expected: int) -> None:
        self._consumer = consumer
        self._expected = expected

    def next_batch(self) -> MessageColumns | None:
        """The next batch; none once all that was counted has been read."""
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
                elif not consumer.message_count() and deliveries.count == count:
                    # What was counted has expired, or was purged, since. Asked twice, for a queue may have an
                    # answer on the way before its deliveries.
                    if empty:
                        self._expected = count
                    empty = True
        except (OSError, Refused) as error:
            raise PipelineError(describe_failure(error, self._progress)) from None
        messages = deliveries.take()
        # What came after the count is for the next browse.
        surplus = deliveries.count - self._expected
        if surplus > 0:
            messages = messages.slice(0, len(messages.bodies) - surplus)
            self._expected = deliveries.count
        return messages if messages.bodies else None

    @property
    def _progress(self) -> str:
        return f"after {self._consumer.deliveries.count} of {self._expected} messages"
