"""Reads a stream between two offsets, as often as asked: consumes from one on, acknowledges to make room, and stops.

Nothing is taken away. Memory is bounded by the batch: the socket is read only while one is being filled, and no more is
outstanding than the prefetch limit (RabbitMQ delivers whole chunks, somewhat more than the limit).

AMQP has no way to ask a stream for its offsets. Where it begins, and where a time leads, is told by the first delivery from
there; where it ends, by the last chunk. A broker delivers a chunk before it answers what was asked afterwards (RabbitMQ:
handle_event of rabbit_stream_queue), so an answer says that the chunk has come whole.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from warren.core.blocking_connection import Refused
from warren.pipeline.broker_connection import Address, describe_failure, pipeline_errors
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.blocking_consumer import BlockingConsumer
from warren.pipeline.source.delivery_parser import MessageColumns
from warren.pipeline.source.header_decoder import OFFSET
from warren.wire.field_tables import Timestamp

Start: TypeAlias = int | str | datetime
"""An offset, `first`, `last`, or a time."""

PREFETCH = 2048
"""Messages that the broker sends ahead; what Spark does not take waits in the broker and in sockets."""
EMPTY_TIMEOUT = 1.0
"""Seconds after which a stream that counts no message is taken for empty: RabbitMQ counts every few seconds."""
MAX_ROUNDS = 16
"""How often more may have come, of a stream whose end is looked for, until it counts as faster than who follows it."""
YOUNG_TIMEOUT = 5.0
"""Seconds after which no message is taken to be as young as a time."""


@dataclass(frozen=True)
class StreamClient:
    """A stream of a broker.

    :raises PipelineError: if it has no name
    """

    address: Address
    stream: str

    def __post_init__(self) -> None:
        if not self.stream:
            raise PipelineError("no stream is named")

    def end_offset(self) -> int:
        """The offset behind the last message, 0 if there has never been one; what comes meanwhile may be left out.

        :raises PipelineError: the stream cannot be read
        """
        with self._pipeline_errors(), self._open_consumer("last", PREFETCH, counting=True) as consumer:
            if not self._has_message(consumer, "last"):
                return 0
            count = rounds = 0
            while consumer.deliveries.count > count:
                count = consumer.deliveries.count
                consumer.acknowledge()
                consumer.message_count()
                rounds += 1
                # Too busy to be followed, it soon has a message that is behind all that there was.
                if rounds % MAX_ROUNDS == 0 and (next_offset := self._find_offset("next")) is not None:
                    return next_offset
            return self._offsets(consumer.deliveries.take())[-1] + 1

    def find_offset(self, start: Start) -> int | None:
        """The offset of the first message from there on; None if there is none yet.

        :raises PipelineError: the stream cannot be read
        """
        with self._pipeline_errors():
            return self._find_offset(start)

    def _find_offset(self, start: Start) -> int | None:
        with self._open_consumer(start, 1) as consumer:
            if not self._has_message(consumer, start):
                return None
            return self._offsets(consumer.deliveries.take())[0]

    def consume_from(self, offset: int) -> BlockingConsumer:
        """A consumer of what will come from an offset on, which has room for one message; its owner closes it.

        :raises PipelineError: the stream cannot be read
        """
        with self._pipeline_errors():
            return self._consume(offset, 1)

    def read_batches(self, start: int, stop: int, fail_on_data_loss: bool = True) -> Iterator[MessageColumns]:
        """The messages from one offset to before another, about 4,096 or 4 MiB at a time.

        :param whole: fail if retention has removed some of them, before or meanwhile
        :raises PipelineError: the stream cannot be read, or not all of it is there any more
        """
        if start >= stop:
            return
        with self._pipeline_errors(), self._open_consumer(start, PREFETCH) as consumer:
            following = start
            while following < stop:
                messages = self._fill(consumer, following, stop)
                offsets = self._offsets(messages)
                if fail_on_data_loss and (missing := first_gap(offsets, following, stop)) is not None:
                    self._check_retention(missing)
                following = max(following, offsets[-1] + 1)
                # A chunk comes whole: its first may be before the range, its last behind it.
                first, last = bisect_left(offsets, start), bisect_left(offsets, stop)
                if first < last:
                    yield messages.slice(first, last)

    def _fill(self, consumer: BlockingConsumer, following: int, stop: int) -> MessageColumns:
        """The next batch, at least a message."""
        deliveries, timeout = consumer.deliveries, self.address.timeout
        try:
            while not consumer.batch_is_full and not (
                deliveries.offsets and deliveries.offsets[-1] + 1 >= stop
            ):
                if not consumer.receive(timeout):
                    if deliveries.bodies:
                        break
                    raise PipelineError(f"nothing arrived for {timeout:g} s, at offset {following}")
        except (OSError, Refused) as error:
            raise PipelineError(describe_failure(error, f"at offset {following}")) from None
        return deliveries.take()

    def _check_retention(self, missing: int) -> None:
        # A gap is no loss by itself: RabbitMQ gives offsets to records of its own.
        first = self._find_offset("first")
        if first is None or first > missing:
            raise PipelineError(
                f"messages from offset {missing} on are gone, it begins at {first}: retention has removed them; "
                "read from there on, or set failOnDataLoss to false"
            )

    def _pipeline_errors(self) -> AbstractContextManager[None]:
        return pipeline_errors(f"cannot read stream {self.stream!r} at {self.address.masked_url}")

    @contextmanager
    def _open_consumer(
        self, start: Start, prefetch: int, counting: bool = False
    ) -> Iterator[BlockingConsumer]:
        consumer = self._consume(start, prefetch, counting)
        try:
            yield consumer
        finally:
            consumer.close()

    def _consume(self, start: Start, prefetch: int, counting: bool = False) -> BlockingConsumer:
        connection = self.address.open()
        place = Timestamp(start.timestamp()) if isinstance(start, datetime) else start
        try:
            return BlockingConsumer(
                connection,
                self.stream,
                prefetch,
                ack_every=(prefetch + 3) // 4,
                counting=counting,
                arguments={OFFSET: place},
            )
        except BaseException:
            connection.close()
            raise

    def _has_message(self, consumer: BlockingConsumer, start: Start) -> bool:
        """Whether a message is there, or comes before long."""
        reported_count = consumer.message_count()
        # At a time there may be none; of a stream that counts some, the first and the last are there.
        message_expected = reported_count > 0 and start in ("first", "last")
        limit = (
            self.address.timeout if message_expected else YOUNG_TIMEOUT if reported_count else EMPTY_TIMEOUT
        )
        deadline = time.monotonic() + limit
        while not consumer.deliveries.count:
            if time.monotonic() >= deadline:
                if message_expected:
                    raise PipelineError(f"nothing arrived for {limit:g} s")
                # A busy broker takes longer for the answer too.
                return bool(
                    consumer.message_count() != reported_count or consumer.deliveries.count
                ) and self._has_message(consumer, start)
            consumer.receive(max(deadline - time.monotonic(), 0))
        return True

    def _offsets(self, messages: MessageColumns) -> list[int]:
        if messages.offsets[-1] < 0:
            raise PipelineError(
                "the queue is no stream: its messages have no offset; browse it with the option 'queue'"
            )
        return messages.offsets


def first_gap(offsets: list[int], following: int, stop: int) -> int | None:
    """The first offset that is missing before `stop`; None if there is none.

    :param found: rising offsets, of which the first may be before the one that should follow
    """
    if offsets[0] <= following and offsets[-1] - offsets[0] == len(offsets) - 1:
        return None
    for offset in offsets[bisect_left(offsets, following) :]:
        if offset != following:
            break
        following += 1
    return following if following < min(stop, offsets[-1]) else None
