"""Consumer that moves messages from a queue into a spool, whose files keep them until Spark has processed them: it
writes messages to a file, syncs the file, and acknowledges them.

It runs in a thread of the driver. Between two syncs it receives all that has arrived, so that one sync covers as many
messages as arrive during another (group commit). A lost connection is opened again; unacknowledged messages are
redelivered and recognised by their deduplication keys.
"""

from __future__ import annotations

import threading
import time

from warren.core.blocking_connection import CHANNEL, ClosedByBroker
from warren.pipeline.broker_connection import (
    TRANSIENT_REPLIES,
    BrokerConnection,
    BrokerUnreachable,
    describe_failure,
    pipeline_errors,
)
from warren.pipeline.errors import PipelineError
from warren.pipeline.spool.deduplication_key import key_extractor
from warren.pipeline.spool.pending_messages import PendingMessages
from warren.pipeline.spool.segments import Segments
from warren.pipeline.spool.spool_options import SpoolOptions
from warren.pipeline.spool.stream_detection import is_stream
from warren.wire import methods
from warren.wire.delivery_scanner import DeliveryScanner, StreamError
from warren.wire.reply_codes import Reply

BATCH_MESSAGES = 10_000
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of received messages from which on they are written to disk and acknowledged, even if more are arriving."""
MAX_PENDING_BYTES = 16 * 1024 * 1024
"""Bytes of received messages that are not yet written to disk, from which on nothing more is read from the connection.
They accumulate while the spool has reached its size limit."""
POLL_INTERVAL = 0.2
"""Longest wait in seconds for data from the broker or for space in the spool; then the consumer checks whether it was
stopped."""
PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before the first attempt to reconnect, and the longest pause between later ones; the pause doubles."""
_TRANSIENT_REPLIES = (*TRANSIENT_REPLIES, Reply.PRECONDITION_FAILED)
"""Reply codes after which the consumer reconnects. RabbitMQ replies PRECONDITION_FAILED when a message is
unacknowledged for longer than its `consumer_timeout`, here because the spool has reached its size limit."""
_IS_STREAM = "it is a stream, which needs no spool: name it with the option 'stream'"


class SpoolConsumer:
    """Exclusive consumer that moves the messages of a queue into a spool's files, in a thread of its own.

    :param segments: files of the open spool; while the consumer runs, nobody else appends to them
    """

    def __init__(self, options: SpoolOptions, segments: Segments) -> None:
        self._options = options
        self._segments = segments
        self._key_extractor = key_extractor(options.key)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._read_to = segments.first
        self._wanted: int | None = None
        """Value of `_taken` at which the queue counts as drained; None if it is not known."""
        self._taken = 0
        self._drained = False
        self._empty_answers = 0
        self._unknown_since: float | None = None
        """Time of the first of the last replies without a consumer; None if the last reply had one."""
        self._asked_at: float | None = None
        """Time at which the queue's message count was requested, or at which the last message has arrived since then;
        None if no reply is awaited."""
        self._checked_not_stream = False
        self._lost_at: float | None = None
        self._full = False
        self._error: PipelineError | None = None

    @property
    def error(self) -> PipelineError | None:
        """Error that ended the consumer; None if it has not failed."""
        return self._error

    def start(self) -> None:
        """Start the thread that moves messages from the queue to the spool's files.

        Errors are not raised but stored in `error`, because the messages that are already in the spool can still be
        read.
        """
        self._thread = threading.Thread(target=self._run, name="warren spool", daemon=True)
        self._thread.start()

    def read_to(self, position: int) -> None:
        """Record that Spark has processed the messages before a position, so they no longer count against the spool's
        size limit.

        :param position: number of a message since the spool was created
        """
        with self._changed:
            self._read_to = max(self._read_to, position)
            self._full = False
            self._changed.notify_all()

    def wait(self, position: int) -> bool:
        """Wait until one of four conditions is met: the spool contains the messages before a position, all messages
        that were in the queue when the consumer connected are spooled, the spool has reached its size limit, or the
        consumer has failed.

        :param position: number of a message since the spool was created
        :return: whether all messages that were in the queue when the consumer connected are spooled
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._drained or self._full or self._error or self._segments.end >= position
            )
            return self._drained

    def stop(self) -> None:
        """Close the connection, which requeues unacknowledged messages, and end the thread."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with pipeline_errors(f"cannot read {self._options.description}"):
                if self._connect_first():
                    self._consume_until_stopped()
        except PipelineError as error:
            self._error = error
        except Exception as error:
            # Store it: a thread that ends without an error would look like an empty queue.
            self._error = PipelineError(f"cannot read {self._options.description}: {error!r}")
        finally:
            with self._changed:
                self._changed.notify_all()

    def _connect_first(self) -> bool:
        """Make the first connection; return False if the consumer is stopped before it is made.

        If the broker is unreachable, retry as after a lost connection. An error that only the user can correct is
        raised at once.
        """
        try:
            self._connect()
            return True
        except (OSError, ClosedByBroker, BrokerUnreachable) as error:
            return self._reconnect(error)

    def _consume_until_stopped(self) -> None:
        """Move messages to the spool until `stop` is called, and reconnect when the connection is lost."""
        try:
            while not self._stopping.is_set():
                try:
                    self._take_deliveries()
                except (OSError, ClosedByBroker, BrokerUnreachable) as error:
                    self._connection.close()
                    self._reconnect(error)
        finally:
            self._connection.close(self._scanner.rest)

    def _take_deliveries(self) -> None:
        """Receive data from the broker once. Then write the pending messages to the spool, if they fill a batch or
        nothing arrived.

        Ask for the queue's message count if it is not known, or if messages that the queue had at the connection do not
        arrive, because they expired or were purged.
        """
        pending = self._pending
        if pending.size < MAX_PENDING_BYTES:
            data = self._connection.receive(0 if pending.count else POLL_INTERVAL)
            self._lost_at = None
            if data:
                self._parse(data)
                if pending.may_be_stream and not self._checked_not_stream:
                    self._check_not_stream()
                if pending.count < BATCH_MESSAGES and pending.size < BATCH_BYTES:
                    return
        quiet = not pending.count
        if pending.count:
            self._empty_answers, self._unknown_since = 0, None
            if self._asked_at is not None:
                self._asked_at = time.monotonic()
            self._spool_pending()
        if self._asked_at is not None:
            if time.monotonic() - self._asked_at > self._connection.timeout:
                raise TimeoutError
        elif not self._drained and (quiet or self._wanted is None):
            self._connection.send(
                methods.frame(CHANNEL, "queue.declare", *passive_declare(self._options.queue.encode()))
            )
            self._asked_at = time.monotonic()

    def _check_not_stream(self) -> None:
        """Check that the queue is not a stream. It is called once, for the first message that looks like one of a
        stream.

        :raises PipelineError: if the queue is a stream
        """
        if is_stream(self._options.address, self._options.queue.encode()):
            raise PipelineError(_IS_STREAM)
        self._checked_not_stream = True

    def _spool_pending(self) -> None:
        """Write the received messages to the spool and acknowledge them. If the spool has reached its size limit, only
        wait up to `POLL_INTERVAL` for Spark to process some.
        """
        options, segments, pending = self._options, self._segments, self._pending
        with self._changed:
            self._full = segments.bytes_from(self._read_to) >= options.max_bytes
            if self._full:
                self._changed.notify_all()
                self._changed.wait(POLL_INTERVAL)
                return
        tag, count = pending.tag, pending.count
        if new := pending.take(segments.known_keys):
            segments.append(new)
        self._connection.send(methods.frame(CHANNEL, "basic.ack", tag, True))
        with self._changed:
            self._taken += count
            self._check_drained()

    def _check_drained(self) -> None:
        """Set `_drained` if as many messages are spooled as are wanted. Call it with the lock of `_changed`."""
        if self._wanted is not None and self._taken >= self._wanted:
            self._drained = True
        self._changed.notify_all()

    def _parse(self, data: bytes) -> None:
        """Parse received bytes: add deliveries to the pending messages, and process other frames.

        :param data: bytes as they were received, which may end in the middle of a frame
        :raises PipelineError: if they are not AMQP 0-9-1
        """
        try:
            other_frames = self._scanner.feed(data)
        except (StreamError, ValueError) as error:
            raise PipelineError(f"the broker sent data that is not AMQP 0-9-1: {error}") from None
        while other_frames:
            end = 8 + int.from_bytes(other_frames[3:7], "big")
            self._handle_frame(other_frames[:end])
            other_frames = other_frames[end:]

    def _handle_frame(self, frame: bytes) -> None:
        """Process a frame that is not part of a delivery: the reply with the queue's message count, or a frame that
        closes the channel or connection, which raises an error.
        """
        method = methods.BY_ID.get(int.from_bytes(frame[7:11], "big")) if frame[0] == 1 else None
        if method is None or method.name != "queue.declare-ok":
            self._connection.check_frame(frame)
            return
        self._asked_at = None
        declared = methods.decode(method, frame[7:-1])
        self._use_counts(declared.number("message_count"), declared.number("consumer_count"))

    def _use_counts(self, messages: int, consumers: int) -> None:
        """Update the number of messages to spool from the counts in a reply that was requested while consuming.

        The count 0 is trusted only with a consumer, because this one is attached: RabbitMQ reports 0 messages and 0
        consumers for a quorum queue whose leader has not answered within 250 ms.

        :raises PipelineError: if all replies are such for the timeout
        """
        if not messages and not consumers:
            now, timeout = time.monotonic(), self._connection.timeout
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since > timeout:
                raise PipelineError(
                    f"the broker reports no consumer of it, so it seems to have no leader (waited {timeout:g} s)",
                    transient=True,
                )
            return
        self._unknown_since = None
        # Require two empty replies, because a reply may overtake deliveries.
        pending, prefetch = self._pending.count, self._options.prefetch
        self._empty_answers = 0 if messages or pending else self._empty_answers + 1
        with self._changed:
            if self._empty_answers > 1:
                self._wanted = self._taken
            elif self._wanted is None and prefetch:
                # At most `prefetch` messages are on the way. If fewer are, two empty replies will lower the number.
                self._wanted = self._taken + pending + prefetch + messages
            self._check_drained()

    def _reconnect(self, error: Exception) -> bool:
        """Connect again, with retries until the timeout; return False if the consumer is stopped before it succeeds.

        :param error: reason why the connection was lost
        """
        timeout, pause = self._options.address.timeout, PAUSE
        self._lost_at = self._lost_at or time.monotonic()
        while not self._stopping.is_set():
            if isinstance(error, ClosedByBroker) and error.code not in _TRANSIENT_REPLIES:
                raise error
            if time.monotonic() - self._lost_at >= timeout:
                raise PipelineError(f"{describe_failure(error)} (waited {timeout:g} s)")
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                self._connect()
                return True
            except (OSError, ClosedByBroker, PipelineError) as unavailable:
                error = unavailable
        return False

    def _connect(self) -> None:
        """Open a connection and start consuming. Unless the spool has caught up with the queue before, also compute how
        many messages it must receive until then: those received so far, and the queue's message count.
        """
        options = self._options
        self._connection = connection = options.address.open("warren pipeline spool")
        self._pending = PendingMessages(self._key_extractor)
        self._scanner = DeliveryScanner(self._pending)
        self._scanner.limit = connection.frame_max
        self._scanner.open(CHANNEL, self._pending)
        try:
            count = self._consume(connection)
        except BaseException:
            connection.close()
            raise
        self._asked_at, self._empty_answers, self._unknown_since = None, 0, None
        with self._changed:
            self._wanted = None if count is None else self._taken + count
            self._check_drained()

    def _consume(self, connection: BrokerConnection) -> int | None:
        """Start an exclusive consumer, and wait while the queue has another consumer.

        It is exclusive because another consumer would receive a part of the messages.

        :return: the queue's message count; None if it is not known
        """
        queue, deadline = self._options.queue.encode(), time.monotonic() + connection.timeout
        while True:
            try:
                count, first_frames = self._count(connection, queue)
                connection.call("basic.qos", 0, self._options.prefetch, False)
                connection.call("basic.consume", 0, queue, b"spool", False, False, True, False, b"")
                self._parse(first_frames)
                return count
            except ClosedByBroker as error:
                if error.code != Reply.ACCESS_REFUSED or "exclusive" not in error.text:
                    raise
                if time.monotonic() >= deadline or self._stopping.is_set():
                    raise PipelineError(
                        f"it has another consumer (waited {connection.timeout:g} s)"
                    ) from None
                connection.reopen()
                self._stopping.wait(PAUSE)

    def _count(self, connection: BrokerConnection, queue: bytes) -> tuple[int | None, bytes]:
        """Count the messages of the queue before consuming.

        A declared count of 0 proves nothing, because RabbitMQ reports it also for a quorum queue without a leader. Then a
        basic.get finds out; the message that it may fetch is the first one to spool. A count of a queue that has another
        consumer proves nothing either, because that consumer may requeue messages before this one is attached.

        :return: the queue's message count, or None if it is not known; and the frames of the fetched message
        :raises PipelineError: if the queue is a stream, which refuses basic.get
        """
        declared = connection.call("queue.declare", *passive_declare(queue))
        if declared.number("consumer_count"):
            return None, b""
        if messages := declared.number("message_count"):
            return messages, b""
        try:
            fetched = connection.get(queue)
        except ClosedByBroker as error:
            if error.code == Reply.NOT_IMPLEMENTED:
                raise PipelineError(_IS_STREAM) from None
            if error.code != Reply.RESOURCE_LOCKED:
                raise
            # A quorum queue with a single active consumer refuses basic.get.
            connection.reopen()
            return None, b""
        return (0, b"") if fetched is None else (1 + fetched.remaining, fetched.frames)


def passive_declare(queue: bytes) -> tuple[int, bytes, bool, bool, bool, bool, bool, bytes]:
    """Return the arguments of a passive `queue.declare`, which asks for the queue's message count."""
    return 0, queue, True, False, False, False, False, b""
