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

from warren.core.blocking_connection import ClosedByBroker
from warren.pipeline.broker_connection import Address, explained, telling
from warren.pipeline.errors import PipelineError
from warren.pipeline.source.consumer import Consuming
from warren.pipeline.source.delivery_batches import Messages
from warren.pipeline.source.header_decoder import OFFSET
from warren.wire.field_tables import Timestamp

Start: TypeAlias = int | str | datetime
"""An offset, `first`, `last`, or a time."""

PREFETCH = 2048
"""Messages that the broker sends ahead; what Spark does not take waits in the broker and in sockets."""
EMPTY = 1.0
"""Seconds after which a stream that counts no message is taken for empty: RabbitMQ counts every few seconds."""
ROUNDS = 16
"""How often more may have come, of a stream whose end is looked for, until it counts as faster than who follows it."""
LATE = 5.0
"""Seconds after which no message is taken to be as young as a time."""


@dataclass(frozen=True)
class Replay:
    """A stream of a broker.

    :raises PipelineError: if it has no name
    """

    address: Address
    stream: str

    def __post_init__(self) -> None:
        if not self.stream:
            raise PipelineError("no stream is named")

    def end(self) -> int:
        """The offset behind the last message, 0 if there has never been one; what comes meanwhile may be left out.

        :raises PipelineError: the stream cannot be read
        """
        with self._telling(), self._consuming("last", PREFETCH, counting=True) as consuming:
            if not self._arrives(consuming, "last"):
                return 0
            count = rounds = 0
            while consuming.deliveries.count > count:
                count = consuming.deliveries.count
                consuming.acknowledge()
                consuming.waiting()
                rounds += 1
                # Too busy to be followed, it soon has a message that is behind all that there was.
                if rounds % ROUNDS == 0 and (behind := self._find("next")) is not None:
                    return behind
            return self._offsets(consuming.deliveries.take())[-1] + 1

    def find(self, start: Start) -> int | None:
        """The offset of the first message from there on; None if there is none yet.

        :raises PipelineError: the stream cannot be read
        """
        with self._telling():
            return self._find(start)

    def _find(self, start: Start) -> int | None:
        with self._consuming(start, 1) as consuming:
            if not self._arrives(consuming, start):
                return None
            return self._offsets(consuming.deliveries.take())[0]

    def wait_at(self, offset: int) -> Consuming:
        """A consumer of what will come from an offset on, which has room for one message; its owner closes it.

        :raises PipelineError: the stream cannot be read
        """
        with self._telling():
            return self._consume(offset, 1)

    def batches(self, start: int, stop: int, whole: bool = True) -> Iterator[Messages]:
        """The messages from one offset to before another, about 4,096 or 4 MiB at a time.

        :param whole: fail if retention has removed some of them, before or meanwhile
        :raises PipelineError: the stream cannot be read, or not all of it is there any more
        """
        if start >= stop:
            return
        with self._telling(), self._consuming(start, PREFETCH) as consuming:
            following = start
            while following < stop:
                messages = self._fill(consuming, following, stop)
                found = self._offsets(messages)
                if whole and (missing := gap(found, following, stop)) is not None:
                    self._assert_whole(missing)
                following = max(following, found[-1] + 1)
                # A chunk comes whole: its first may be before the range, its last behind it.
                first, last = bisect_left(found, start), bisect_left(found, stop)
                if first < last:
                    yield messages.cut(first, last)

    def _fill(self, consuming: Consuming, following: int, stop: int) -> Messages:
        """The next batch, at least a message."""
        deliveries, timeout = consuming.deliveries, self.address.timeout
        try:
            while not consuming.full and not (deliveries.offsets and deliveries.offsets[-1] + 1 >= stop):
                if not consuming.hear(timeout):
                    if deliveries.bodies:
                        break
                    raise PipelineError(f"nothing arrived for {timeout:g} s, at offset {following}")
        except (OSError, ClosedByBroker) as error:
            raise PipelineError(explained(error, f"at offset {following}")) from None
        return deliveries.take()

    def _assert_whole(self, missing: int) -> None:
        # A gap is no loss by itself: RabbitMQ gives offsets to records of its own.
        first = self._find("first")
        if first is None or first > missing:
            raise PipelineError(
                f"messages from offset {missing} on are gone, it begins at {first}: retention has removed them; "
                "read from there on, or set failOnDataLoss to false"
            )

    def _telling(self) -> AbstractContextManager[None]:
        return telling(f"cannot read stream {self.stream!r} at {self.address.shown}")

    @contextmanager
    def _consuming(self, start: Start, prefetch: int, counting: bool = False) -> Iterator[Consuming]:
        consuming = self._consume(start, prefetch, counting)
        try:
            yield consuming
        finally:
            consuming.close()

    def _consume(self, start: Start, prefetch: int, counting: bool = False) -> Consuming:
        link = self.address.open()
        place = Timestamp(start.timestamp()) if isinstance(start, datetime) else start
        try:
            return Consuming(
                link,
                self.stream,
                prefetch,
                ack_every=(prefetch + 3) // 4,
                counting=counting,
                arguments={OFFSET: place},
            )
        except BaseException:
            link.close()
            raise

    def _arrives(self, consuming: Consuming, start: Start) -> bool:
        """Whether a message is there, or comes before long."""
        counted = consuming.waiting()
        # At a time there may be none; of a stream that counts some, the first and the last are there.
        sure = counted > 0 and start in ("first", "last")
        limit = self.address.timeout if sure else LATE if counted else EMPTY
        deadline = time.monotonic() + limit
        while not consuming.deliveries.count:
            if time.monotonic() >= deadline:
                if sure:
                    raise PipelineError(f"nothing arrived for {limit:g} s")
                # A busy broker takes longer for the answer too.
                return bool(consuming.waiting() != counted or consuming.deliveries.count) and self._arrives(
                    consuming, start
                )
            consuming.hear(max(deadline - time.monotonic(), 0))
        return True

    def _offsets(self, messages: Messages) -> list[int]:
        if messages.offsets[-1] < 0:
            raise PipelineError(
                "the queue is no stream: its messages have no offset; browse it with the option 'queue'"
            )
        return messages.offsets


def gap(found: list[int], following: int, stop: int) -> int | None:
    """The first offset that is missing before `stop`; None if there is none.

    :param found: rising offsets, of which the first may be before the one that should follow
    """
    if found[0] <= following and found[-1] - found[0] == len(found) - 1:
        return None
    for offset in found[bisect_left(found, following) :]:
        if offset != following:
            break
        following += 1
    return following if following < min(stop, found[-1]) else None
