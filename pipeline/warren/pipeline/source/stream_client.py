"""Stream operations over AMQP 0-9-1: find the first offset, the end offset or the offset at a time; read a range of
offsets.

A range is read by consuming from its first offset, acknowledging to grant credit, and stopping at its end; it can be
read again. Nothing is removed. The batch bounds memory: the socket is read only while a batch is being filled, and no
more messages are unacknowledged than the prefetch limit allows (RabbitMQ delivers whole chunks, somewhat more than the
limit).

AMQP has no method that returns a stream's offsets. The first delivery of a consumer that starts at `first` or at a time
reveals that offset; the last chunk reveals the end. A broker delivers a chunk before it replies to a later method
(RabbitMQ: handle_event of rabbit_stream_queue), so a reply proves that the chunk has arrived completely.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from warren.core.blocking_connection import ClosedByBroker
from warren.pipeline.broker_connection import (
    Address,
    Retries,
    describe_failure,
    is_transient,
    pipeline_errors,
    retry_while_transient,
)
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.blocking_consumer import BlockingConsumer
from warren.pipeline.source.delivery_parser import MessageColumns
from warren.pipeline.source.header_decoder import COLUMNS, OFFSET, Row
from warren.wire.field_tables import Timestamp, Value

Start: TypeAlias = int | str | datetime
"""Position in a stream from which to read: an offset, `first`, `last`, or a time."""

IDENTITY_ARGUMENT = "x-warren-show-stream-id"
"""Argument of a consumer that asks Warren's broker for the identity of the stream in each delivery."""
IDENTITY_HEADER = "x-warren-stream-id"
"""Header with that identity."""
PREFETCH = 2048
"""Number of unacknowledged messages that the broker sends ahead. If Spark is slower, further messages wait in the
broker and in sockets."""
MAX_ROUNDS = 16
"""Number of rounds (acknowledge, then receive what has arrived) after which the search for the end of a stream asks for
the next message. If one arrives soon, the stream may grow faster than it is read, so the search ends with the offset of
that message as the end."""
QUIET_ROUNDS = 6
"""Number of rounds without a delivery after which there is no message at the requested position. Each round ends with a
reply from the broker, so that the time for which a broker stands still does not count. Together the rounds are longer
than the 5 s after which RabbitMQ updates its message counts."""
QUIET_ROUND = 1.0
"""Seconds to wait for a delivery in each round."""
_HEADERS = COLUMNS.index("headers")


@dataclass(frozen=True)
class StreamEnd:
    """End of a stream: the offset after its last message, 0 if it never had one, and its identity.

    :param identity: text that a stream which is deleted and declared again does not keep; None if the broker gives none
        (RabbitMQ), or if the stream has no message
    """

    offset: int
    identity: str | None = None


@dataclass(frozen=True)
class StreamClient:
    """Client that finds offsets and reads messages of one stream of a broker. Each operation opens a connection.

    An unreachable broker, and a lost connection, are tried again for the address's timeout.

    :raises PipelineError: if the stream name is empty
    """

    address: Address
    stream: str

    def __post_init__(self) -> None:
        if not self.stream:
            raise PipelineError("the name of the stream is empty")

    def end_offset(self) -> int:
        """Return the end offset: the offset after the last message, 0 if the stream never had one.

        Messages that arrive during the call may be before or after it.

        :raises PipelineError: if the stream cannot be read
        """
        return self.end().offset

    def end(self) -> StreamEnd:
        """Return the end offset, as `end_offset` does, and the identity of the stream.

        :raises PipelineError: if the stream cannot be read
        """
        with self._pipeline_errors():
            return retry_while_transient(self.address.timeout, self._end)

    def _end(self) -> StreamEnd:
        with self._open_consumer("last", PREFETCH, counting=True) as consumer:
            if not self._has_message(consumer, "last"):
                return StreamEnd(0)
            count = rounds = 0
            while consumer.deliveries.count > count:
                count = consumer.deliveries.count
                consumer.acknowledge()
                consumer.message_count()
                rounds += 1
                # A stream too busy to follow soon has a new message, whose offset is after all earlier ones.
                if rounds % MAX_ROUNDS == 0 and (next_offset := self._find_offset("next")) is not None:
                    return StreamEnd(next_offset, self._identity(consumer))
            identity = self._identity(consumer)
            return StreamEnd(self._offsets(consumer.deliveries.take())[-1] + 1, identity)

    def _identity(self, consumer: BlockingConsumer) -> str | None:
        """Return the identity of the stream, from the last delivery to a counting consumer; None without one.

        Only Warren's broker is asked: on another one, the header would be that of the stream from which a message was
        copied.
        """
        row = consumer.deliveries.last_row
        if row is None or not consumer.connection.counts_are_exact:
            return None
        return identity_in(row)

    def find_offset(self, start: Start) -> int | None:
        """Return the offset of the first message at or after a position; None if there is none yet.

        :param start: an offset, `first`, `last`, `next`, or a time
        :raises PipelineError: if the stream cannot be read
        """
        with self._pipeline_errors():
            return retry_while_transient(self.address.timeout, lambda: self._find_offset(start))

    def _find_offset(self, start: Start) -> int | None:
        with self._open_consumer(start, 1) as consumer:
            if not self._has_message(consumer, start):
                return None
            return self._offsets(consumer.deliveries.take())[0]

    def consume_from(self, offset: int) -> BlockingConsumer:
        """Start a consumer at an offset, usually the end, where it waits for the next message. The caller closes it.

        Its prefetch is one message.

        :raises PipelineError: if the stream cannot be read
        """
        with self._pipeline_errors():
            return retry_while_transient(self.address.timeout, lambda: self._consume(offset, 1))

    def read_batches(self, start: int, stop: int, fail_on_data_loss: bool = True) -> Iterator[MessageColumns]:
        """Yield the messages from offset `start` to before `stop`, about 4,096 messages or 4 MiB at a time.

        :param fail_on_data_loss: fail if retention removed some of them, before or during the read
        :raises PipelineError: if the stream cannot be read, or if messages of the range are gone
        """
        following, retries = start, Retries(self.address.timeout)
        with self._pipeline_errors():
            while following < stop:
                try:
                    with self._open_consumer(following, PREFETCH) as consumer:
                        while following < stop:
                            messages = self._fill(consumer, following, stop)
                            offsets = self._offsets(messages)
                            missing = first_gap(offsets, following, stop) if fail_on_data_loss else None
                            if missing is not None:
                                self._check_retention(missing)
                            retries.succeeded()
                            # Chunks are delivered whole: the first message may be before the range, the last one after
                            # it.
                            first, last = bisect_left(offsets, following), bisect_left(offsets, stop)
                            following = max(following, offsets[-1] + 1)
                            if first < last:
                                yield messages.slice(first, last)
                except (PipelineError, ClosedByBroker, OSError) as error:
                    # A stream keeps its messages: the rest is read on a new connection.
                    retries.wait(error)

    def _fill(self, consumer: BlockingConsumer, following: int, stop: int) -> MessageColumns:
        """Receive messages until a batch is full, the range ends, or nothing arrives for a while; return the batch,
        which has at least one message.

        :param following: offset of the next message to read
        :param stop: offset after the range
        :raises PipelineError: if no message arrives within the address's timeout, or the connection is lost
        """
        deliveries, timeout = consumer.deliveries, self.address.timeout
        try:
            while not consumer.batch_is_full and not (
                deliveries.offsets and deliveries.offsets[-1] + 1 >= stop
            ):
                if not consumer.receive(timeout):
                    if deliveries.bodies:
                        break
                    raise PipelineError(f"nothing arrived for {timeout:g} s, at offset {following}")
        except (OSError, ClosedByBroker) as error:
            progress = f"at offset {following}"
            raise PipelineError(describe_failure(error, progress), transient=is_transient(error)) from None
        return deliveries.take()

    def _check_retention(self, missing: int) -> None:
        """Raise an error if the stream now begins after a missing offset, which means that retention has removed it."""
        # A gap alone is not data loss: RabbitMQ assigns offsets to internal records too.
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
        arguments: dict[str, Value] = {OFFSET: place}
        if counting and connection.counts_are_exact:
            arguments[IDENTITY_ARGUMENT] = True
        try:
            return BlockingConsumer(
                connection,
                self.stream,
                prefetch,
                ack_every=(prefetch + 3) // 4,
                counting=counting,
                arguments=arguments,
            )
        except BaseException:
            connection.close()
            raise

    def _has_message(self, consumer: BlockingConsumer, start: Start) -> bool:
        """Wait for a message at the position at which the consumer started, and return whether one arrived.

        A stream that the broker reports as empty may have messages whose delivery is late: only a broker that counts
        exactly is believed at once.

        :param start: position at which the consumer started
        :raises PipelineError: if nothing arrives although the stream must have a message at that position
        """
        for _ in range(QUIET_ROUNDS):
            reported_count = consumer.message_count()
            if not reported_count and consumer.connection.counts_are_exact:
                break
            # There may be no message from a time on; a stream that reports messages has a first and a last one.
            if reported_count and start in ("first", "last"):
                if self._receives_message(consumer, self.address.timeout):
                    return True
                # RabbitMQ counts its internal records too, which are all that is left if retention removes the rest.
                raise PipelineError(
                    f"nothing arrived for {self.address.timeout:g} s, although the broker reports {reported_count} "
                    "messages: it is too slow, or retention has removed all of them"
                )
            if self._receives_message(consumer, QUIET_ROUND):
                return True
        # Messages may have arrived before the last reply.
        consumer.message_count()
        return consumer.deliveries.count > 0

    def _receives_message(self, consumer: BlockingConsumer, limit: float) -> bool:
        """Wait up to `limit` seconds for a message, and return whether one arrived."""
        deadline = time.monotonic() + limit
        while not consumer.deliveries.count:
            wait = deadline - time.monotonic()
            if wait <= 0:
                return False
            consumer.receive(wait)
        return True

    def _offsets(self, messages: MessageColumns) -> list[int]:
        if messages.offsets[-1] < 0:
            raise PipelineError(
                "the queue is not a stream: its messages have no offset; browse it with the option 'queue'"
            )
        return messages.offsets


def identity_in(row: Row) -> str | None:
    """Return the identity of a stream from the decoded properties of one of its messages; None without one."""
    headers = row[_HEADERS]
    return dict(zip(*headers, strict=True)).get(IDENTITY_HEADER) if headers else None


def first_gap(offsets: list[int], following: int, stop: int) -> int | None:
    """Return the first offset before `stop` that is missing between the messages of a batch, or before the first of
    them; None if none is missing.

    :param offsets: ascending offsets of the batch, of which the first may be before `following`
    :param following: offset that should come next
    :param stop: offset after the range to read
    """
    if offsets[0] <= following and offsets[-1] - offsets[0] == len(offsets) - 1:
        return None
    for offset in offsets[bisect_left(offsets, following) :]:
        if offset != following:
            break
        following += 1
    return following if following < min(stop, offsets[-1]) else None
