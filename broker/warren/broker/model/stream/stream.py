"""A stream: a queue that keeps its messages, in which each consumer has a position of its own.

Consumers get a message when it is on disk: after a crash, every delivered message has the same offset as before
(https://www.rabbitmq.com/docs/streams).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.message import Message
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.queue import ACCEPTED, STORED, Queue, count_deliveries
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.stream.entry_codec import entry_head, with_offset
from warren.broker.model.stream.publishing_ids import find_publishing_id, with_publishing_id
from warren.broker.model.stream.stream_reader import StreamMessage, StreamReader
from warren.broker.model.stream.tail_cache import StreamTail
from warren.broker.store.stream.chunk_format import SEGMENT_HEADER, Chunk
from warren.broker.store.stream.chunk_reader import BY_OFFSET, BY_POSITION, BY_TIME, StreamRead
from warren.broker.store.stream.producer_ids import MAX_PRODUCERS
from warren.broker.store.stream.stream_log import SEGMENT_SIZE, StreamLog
from warren.wire.content import header_table

if TYPE_CHECKING:
    from warren.broker.model.clock import Timer
    from warren.broker.model.stream.stream_filter import StreamFilter
    from warren.broker.model.vhost.vhost import VirtualHost
    from warren.broker.store.stream.stream_store import StreamStore

logger = logging.getLogger(__name__)

REPORTED: Final = 1000
"""Largest number of damaged places in a stream's files that are logged."""


class Stream(Queue):
    """A stream of a virtual host. Its messages are in files of their own and not in the backing queue of `Queue`."""

    age_timer: Optional[Timer] = None  # noqa: UP045
    max_age: i64 = -1
    """Milliseconds after which messages may be removed (x-max-age); -1 is no limit."""
    segments: i64 = 0
    """Number of segment files when retention was last applied; -1 if it has to be applied again."""
    streams: Optional[StreamStore] = None  # noqa: UP045
    stored: Optional[StreamLog] = None  # noqa: UP045

    def __init__(
        self,
        vhost: VirtualHost,
        name: bytes,
        raw_arguments: bytes,
        arguments: QueueArguments,
        incarnation: i64,
        streams: StreamStore,
    ) -> None:
        super().__init__(vhost, name, True, False, None, raw_arguments, arguments, incarnation)
        self.is_stream = True
        self.identity = streams.new_identity(int(incarnation))
        """Text that no other stream has or had, also not one that was declared with the same name before."""
        log = streams.log(int(incarnation), self.now_ms)
        self.streams = streams
        self.stored = log
        self.messages: StreamLog = log
        self.readers: dict[Consumer, StreamReader] = {}
        self.tail = StreamTail()
        self.producer = b""
        self.publishing_id = 0
        self.has_forgotten_producers = False
        """True if the last publishing id of a producer was forgotten since the start, because there are too many."""
        self.reported_damage: set[tuple[int, int]] = set()
        log.on_committed = self.chunks_committed
        self.configure(arguments)

    def configure(self, arguments: QueueArguments) -> None:
        """Apply arguments that a policy may have changed: the retention limits, and the size of new segment files."""
        self.arguments = arguments
        self.rejects_publishes = False
        self.has_length_limit = False
        self.message_ttl = -1
        self.delivery_limit = -1
        log = self.stored
        if log is None:
            return
        log.max_bytes = arguments.max_length_bytes
        log.segment_size = arguments.stream_max_segment_size_bytes
        if log.segment_size < 0:
            log.segment_size = SEGMENT_SIZE
        self.max_age = arguments.max_age_ms
        self.apply_retention()

    def reconfigure(self, arguments: QueueArguments) -> None:
        self.configure(arguments)

    def message_count(self) -> i64:
        """Return the number of messages that are on disk."""
        return self.messages.committed - min(self.messages.first, self.messages.committed)

    def arrived(self) -> i64:
        return self.messages.next_offset

    def stored_bytes(self) -> i64:
        """Return the bytes that the stream takes on disk, or in memory if there is no data folder."""
        return self.messages.size()

    # -- publishing

    def publish(self, message: Message) -> i64:
        if not message.has_publishing_id or not self.drop_duplicate(message):
            if self.capture is not None:
                self.capture.enqueued(self, message)
            self.append(message)
        return STORED if self.messages.log is not None else ACCEPTED

    def assign_sequence(self, message: Message) -> None:
        return

    def accept(self, message: Message) -> None:
        if not message.has_publishing_id or not self.drop_duplicate(message):
            self.append(message)

    def drop_duplicate(self, message: Message) -> bool:
        """Return True if a message's publishing id, or a higher one, was there before: the message is dropped.

        It counts as stored: its confirm waits for the next batch, and with it for the message that it repeats.
        """
        identity = find_publishing_id(header_table(message.content))
        if identity is None:
            message.has_publishing_id = False
            return False
        if self.messages.producers.is_duplicate(identity[0], identity[1]):
            self.messages.write_soon()
            return True
        self.producer, self.publishing_id = identity
        return False

    def append(self, message: Message) -> None:
        """Append a message that is no duplicate.

        If it has a publishing id, `drop_duplicate` has set the attributes `producer` and `publishing_id`.
        """
        if message.exchange is self.last_exchange and message.routing_key is self.last_key:
            head = self.last_head
        else:
            head = entry_head(message.exchange, message.routing_key)
            self.last_exchange = message.exchange
            self.last_key = message.routing_key
            self.last_head = head
        log = self.messages
        if not message.has_publishing_id:
            log.append(head, with_offset(message, log.next_offset))
            return
        producer, number = self.producer, self.publishing_id
        content = with_publishing_id(message.content, int(log.next_offset), producer, number)
        log.append(head, content)
        forgotten = log.producers.add(producer, number)
        if forgotten and not self.has_forgotten_producers:
            self.has_forgotten_producers = True
            logger.warning(
                "event=stream.producer_forgotten stream=%r producer=%r limit=%d",
                self.name_text(),
                forgotten.decode(errors="replace"),
                MAX_PRODUCERS,
            )

    def chunks_committed(self, chunks: list[Chunk]) -> None:
        """Deliver the messages in chunks (batches) that have been written to disk.

        Apply retention if the number of segment files has changed since the last time.
        """
        if self.readers:
            self.tail.add(chunks)
            self.drain()
        if len(self.messages.segments) != self.segments:
            self.apply_retention()

    # -- delivering

    def drain(self) -> None:
        # All consumers with a filter share one slice.
        end = self.vhost.bulk_work.slice_end()
        for consumer in self.ready_consumers.in_order():
            self.deliver_to(consumer, end)

    def resume_consumer(self, consumer: Consumer) -> None:
        self.scheduler.insert(consumer)
        self.deliver_to(consumer)

    def deliver_to(self, consumer: Consumer, end: float = 0.0) -> None:
        """Deliver messages to a consumer until it cannot take more, or no more messages for it are in memory.

        For a consumer with a filter, many messages may have to be looked at: this is bulk work, done in slices.

        :param end: end of the slice by `time.monotonic()`; 0 for one that begins now.
        """
        reader = self.readers.get(consumer)
        if reader is None or reader.filtering:
            return
        if reader.filter is None:
            self.deliver_until(reader, 0.0)
        elif not self.deliver_until(reader, end or self.vhost.bulk_work.slice_end()):
            reader.filtering = True
            self.vhost.bulk_work.later(reader, reader.continue_filtering)

    def deliver_until(self, reader: StreamReader, end: float) -> bool:
        """Deliver messages to a consumer. Return False if there may be more, and a time has come.

        :param end: the time by `time.monotonic()`, for a consumer with a filter; it is looked at only when messages are
            passed over.
        """
        consumer = reader.consumer
        while not consumer.stalled and not reader.closed:
            message = reader.take()
            has_searched = False
            if message is None:
                if not self.prepare_chunk(reader):
                    break
                # If the chunk is at its end, the filter has passed over the whole of it, which may be large.
                has_searched = reader.filter is not None and reader.at_end()
            elif reader.filter is not None and not reader.filter.accepts(message.content):
                reader.pass_over()
                has_searched = True
            else:
                self.unacked += 1
                room = consumer.deliver(message)
                # An acknowledgement needs the offset only. Without the content, unacknowledged messages take little
                # memory.
                message.content = b""
                if not room:
                    self.ready_consumers.remove(consumer)
                    consumer.stalled = True
            # After each message: a pattern may be searched for in a header of 100 kB.
            if has_searched and time.monotonic() >= end:
                reader.store_progress(self.messages)
                return False
        if reader.passed_over and not reader.closed:
            reader.store_progress(self.messages)
        return True

    def prepare_chunk(self, reader: StreamReader) -> bool:
        """Select the chunk (batch of messages) with a consumer's next message, if the chunk is in memory.

        Search the chunks that were read from disk for the consumer, then the cache of the newest chunks. Return True if
        the chunk is in one of them. Otherwise return False, and begin to read from disk, unless a read is in progress
        or the consumer has reached the end of the stream.

        :param reader: the consumer's position in the stream.
        """
        ready = reader.ready_chunks
        while ready:
            if reader.open(ready.popleft()):
                if not ready and not reader.reading:
                    self.read_next(reader)
                return True
        if reader.reading:
            return False
        if reader.start_time < 0:
            if reader.next_offset >= self.messages.committed:
                return False
            chunk = self.tail.find(reader.next_offset)
            if chunk is not None and reader.open(chunk):
                reader.segment = None
                return True
        self.read_next(reader)
        return False

    # -- reading

    def read_next(self, reader: StreamReader) -> None:
        """Begin to read the consumer's next chunks (batches of messages) from the segment files, if there are any more.

        :param reader: the consumer's position in the stream.
        """
        segments = self.messages.segments
        if not segments:
            return
        segment = reader.segment
        if segment is None:
            if reader.start_time >= 0:
                found = segments[0]
                for found in segments:
                    if found.timestamp >= reader.start_time:
                        break
                self.read(reader, StreamRead(found, BY_TIME, reader.start_time, 0))
                return
            found = segments[0]
            for candidate in reversed(segments):
                if candidate.first <= reader.next_offset:
                    found = candidate
                    break
            if reader.next_offset < self.messages.committed:
                self.read(reader, StreamRead(found, BY_OFFSET, reader.next_offset, 0))
            return
        position = reader.position
        while position >= segment.end and segment.closed:
            following = [candidate for candidate in segments if candidate.first > segment.first]
            if not following:
                return
            # It may hold nothing at all, if its file was truncated.
            segment = following[0]
            position = SEGMENT_HEADER
        if position < segment.end:
            self.read(reader, StreamRead(segment, BY_POSITION, 0, position))

    def read(self, reader: StreamReader, read: StreamRead) -> None:
        reader.reading = True
        streams = self.streams
        assert streams is not None
        streams.read(read, reader.read_done)

    def read_finished(self, reader: StreamReader, read: StreamRead) -> None:
        """Deliver the messages that were read from disk for a consumer. If the read has failed, cancel the consumer.

        :param reader: the consumer's position in the stream.
        :param read: the finished read, with its chunks (batches of messages) or its error.
        """
        reader.reading = False
        if reader.closed or self.deleted:
            return
        segment = read.segment
        for position, text in read.damage:
            self.report_damage(segment.first, position, text)
        if read.error:
            logger.error("event=stream.read_failed stream=%r error=%r", self.name_text(), read.error)
            self.unsubscribe(reader.consumer)
            reader.consumer.cancel_from_server()
            return
        if read.segment_removed:
            self.skip_missing_segment(reader, read)
        else:
            reader.start_time = -1
            reader.segment = segment
            reader.position = read.position
            reader.ready_chunks.extend(read.chunks)
        if not reader.consumer.stalled:
            self.deliver_to(reader.consumer)

    def skip_missing_segment(self, reader: StreamReader, read: StreamRead) -> None:
        """Let a consumer continue after a segment file that was removed during a read.

        If retention removed it, this is normal. Otherwise its messages are lost, and the loss is logged.
        """
        segment = read.segment
        reader.segment = None
        if segment not in self.messages.segments:
            reader.next_offset = max(reader.next_offset, self.messages.first)
            return
        self.report_damage(segment.first, 0, "the file is missing")
        reader.start_time = -1
        # Its messages are lost. The next segment, if there is one, follows.
        reader.segment = segment
        reader.position = segment.end

    def report_damage(self, first: i64, position: int, text: str) -> None:
        """Log a damaged place in the stream's files, once for each place.

        :param first: the first offset of the segment, by which its file is named.
        :param position: the byte in the file at which the damage begins.
        :param text: description of the damage.
        """
        place = (int(first), position)
        if place in self.reported_damage or len(self.reported_damage) >= REPORTED:
            return
        self.reported_damage.add(place)
        logger.error(
            "event=stream.damage_found stream=%r segment=%d position=%d damage=%r",
            self.name_text(),
            int(first),
            position,
            text,
        )

    def name_text(self) -> str:
        """Return the name of the stream as text, for log events."""
        return self.name.decode(errors="replace")

    # -- settlement

    def acknowledge(self, message: Message) -> None:
        self.unacked -= 1
        if isinstance(message, StreamMessage):
            reader = message.reader
            if reader.name and not self.deleted:
                reader.acknowledge(message.sequence, self.messages)

    def reject(self, messages: list[Message]) -> None:
        self.unacked -= len(messages)
        self.counts.given_back += len(messages)

    def reinsert_all(self, messages: list[Message], failed: bool) -> None:
        """Settle unacknowledged messages that a client requeues or whose channel ends.

        A stream keeps its messages, so that nothing is put back.

        :param failed: ignored; `Queue.reinsert_all` uses it.
        """
        self.unacked -= len(messages)
        self.counts.given_back += len(messages)

    def after_requeue(self) -> None:
        """Do nothing: a stream keeps its messages."""

    # -- consumers and deletion

    def attach_reader(
        self,
        consumer: Consumer,
        name: bytes,
        offset: i64,
        since: i64,
        chosen: Optional[StreamFilter] = None,  # noqa: UP045
        shows_identity: bool = False,
    ) -> None:
        """Set the position at which a consumer begins, before it subscribes.

        :param name: name under which the server stores how far the consumer has acknowledged; empty to store nothing.
        :param offset: the first offset to deliver.
        :param since: time of the first message to deliver, in milliseconds since 1970; -1 to begin at `offset`.
        :param chosen: the consumer's filter, or None.
        :param shows_identity: True to add a header with the stream's identity to each message.
        """
        log = self.messages
        if since >= 0 and log.timestamp < since:
            # No message is that new: the consumer gets the next ones, as in RabbitMQ.
            since = -1
            offset = log.next_offset
        reader = StreamReader(self, consumer, name, max(offset, log.first), since)
        reader.filter = chosen
        reader.shows_identity = shows_identity
        self.readers[consumer] = reader
        log.keep_chunks = True

    def unsubscribe(self, consumer: Consumer) -> None:
        reader = self.readers.pop(consumer, None)
        if reader is not None:
            reader.close()
        if not self.readers:
            self.messages.keep_chunks = False
            self.tail.clear()
        if self.scheduler.remove(consumer):
            count_deliveries(self.counts, consumer)
            if self.capture is not None:
                self.capture.consumer_cancelled(consumer)

    def purge(self, lane: object) -> i64:
        return 0

    def stop(self) -> None:
        self.stop_timer()

    def mark_deleted(self) -> None:
        self.deleted = True
        if self.capture is not None:
            self.capture.queue_deleted(self)
        self.stop_timer()
        for reader in self.readers.values():
            reader.close()
        self.readers.clear()
        self.tail.clear()
        for consumer in self.scheduler.clear():
            if self.capture is not None:
                self.capture.consumer_cancelled(consumer)
            consumer.cancel_from_server()

    def delete_files(self) -> None:
        """Delete the stream's files as soon as the definitions database has recorded the deletion of the stream."""
        assert self.streams is not None
        self.streams.drop(self.messages)

    # -- retention

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self.vhost.clock.now() * 1000 + 0.001)

    def apply_retention(self) -> None:
        """Remove the oldest segment files if they are beyond the limits of size and age.

        RabbitMQ does so only when a segment begins; here a timer checks the age as well.
        """
        log = self.messages
        held_back = log.apply_retention(self.now_ms() - int(self.max_age) if self.max_age >= 0 else -1)
        count = len(log.segments)
        self.segments = -1 if held_back else count
        self.stop_timer()
        if self.max_age >= 0 and count > 1 and not self.deleted:
            # A due segment that is still needed is removed with the next commit: the timer waits at least a second.
            due = max(int(log.segments[0].timestamp + self.max_age) + 1, self.now_ms() + 1000)
            self.age_timer = self.vhost.clock.call_at(due / 1000, self.aged)

    def aged(self) -> None:
        """Apply retention because the oldest segment has reached its age; called by the timer."""
        self.age_timer = None
        if not self.deleted:
            self.apply_retention()

    def stop_timer(self) -> None:
        """Cancel the timer that removes segments by their age."""
        if self.age_timer is not None:
            self.age_timer.cancel()
            self.age_timer = None


__all__ = ["Stream"]
