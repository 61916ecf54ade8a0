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

from warren.core.blocking_connection import ClosedByBroker
from warren.pipeline.broker_connection import Address, Link, explained, telling
from warren.pipeline.errors import PipelineError
from warren.pipeline.options import queue_name
from warren.pipeline.source.consumer import Consuming
from warren.pipeline.source.delivery_batches import Messages
from warren.wire.reply_codes import Reply

PROBE = 1.0
"""Seconds without a delivery after which the queue is asked whether it holds any more."""
WAIT = 0.1
"""Seconds between two attempts to become the only consumer."""
EMPTY = 3
"""How often a queue has to say that it is empty: RabbitMQ says so as well of a quorum queue whose leader has not answered
within 250 ms."""
PREFETCH_LIMIT = 65_535
"""basic.qos carries the prefetch in 16 bits; 0 is no limit."""


@dataclass(frozen=True)
class Browse:
    """A queue of a broker.

    :raises PipelineError: if it has no name
    """

    address: Address
    queue: str

    def __post_init__(self) -> None:
        if not self.queue:
            raise PipelineError("no queue is named")
        queue_name("queue", self.queue)

    def batches(self) -> Iterator[Messages]:
        """What waits in the queue now, in the queue's order, about 4,096 messages or 4 MiB at a time.

        All of it stays there. What expires or is purged after it was counted is left out.

        :raises PipelineError: no broker, wrong password, no such queue, another consumer, a connection that is
            lost on the way, or no progress for the address's timeout
        """
        with telling(f"cannot read queue {self.queue!r} at {self.address.shown}"):
            link = self.address.open()
            try:
                wanted, consuming = self._start(link)
            except BaseException:
                link.close()
                raise
            if consuming is None:
                link.close()
                return
            browsing = Browsing(consuming, wanted)
            try:
                while messages := browsing.fill():
                    yield messages
            finally:
                consuming.close()

    def _start(self, link: Link) -> tuple[int, Consuming | None]:
        """Count, then consume; wait while somebody else consumes, for then the count is not the whole."""
        deadline = time.monotonic() + self.address.timeout
        queue, empty = self.queue.encode(), 0
        while True:
            declared = link.call("queue.declare", 0, queue, True, False, False, False, False, b"")
            wanted = declared.number("message_count")
            if not declared.number("consumer_count"):
                if wanted:
                    try:
                        return wanted, Consuming(
                            link, self.queue, wanted if wanted <= PREFETCH_LIMIT else 0, exclusive=True
                        )
                    except ClosedByBroker as error:
                        if error.code != Reply.ACCESS_REFUSED or "exclusive" not in error.text:
                            raise
                        link.reopen()
                elif (empty := empty + 1) == EMPTY:
                    return 0, None
                else:
                    time.sleep(WAIT)
                    continue
            if time.monotonic() >= deadline:
                raise PipelineError(f"it has another consumer (waited {self.address.timeout:g} s)")
            time.sleep(WAIT)


class Browsing:
    """A browse under way."""

    def __init__(self, consuming: Consuming, wanted: int) -> None:
        self._consuming = consuming
        self._wanted = wanted

    def fill(self) -> Messages | None:
        """The next batch; none once all that was counted has been read."""
        consuming = self._consuming
        deliveries, timeout = consuming.deliveries, consuming.link.timeout
        moved, empty = time.monotonic(), False
        try:
            while not consuming.full and deliveries.count < self._wanted:
                count = deliveries.count
                heard = consuming.hear(PROBE)
                if deliveries.count > count or heard:
                    moved, empty = time.monotonic(), False
                elif time.monotonic() - moved >= timeout:
                    raise PipelineError(f"nothing arrived for {timeout:g} s {self._progress}")
                elif not consuming.waiting() and deliveries.count == count:
                    # What was counted has expired, or was purged, since. Asked twice, for a queue may have an
                    # answer on the way before its deliveries.
                    if empty:
                        self._wanted = count
                    empty = True
        except (OSError, ClosedByBroker) as error:
            raise PipelineError(explained(error, self._progress)) from None
        messages = deliveries.take()
        # What came after the count is for the next browse.
        surplus = deliveries.count - self._wanted
        if surplus > 0:
            messages = messages.cut(0, len(messages.bodies) - surplus)
            self._wanted = deliveries.count
        return messages if messages.bodies else None

    @property
    def _progress(self) -> str:
        return f"after {self._consuming.deliveries.count} of {self._wanted} messages"
