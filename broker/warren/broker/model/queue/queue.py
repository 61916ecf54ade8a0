"""The queue process: it takes messages, hands them to consumers that have room, and ends or keeps what comes back.

A queue works when a consumer arrives, when a message arrives, and when an acknowledgement makes room; otherwise nothing runs
(https://www.rabbitmq.com/docs/queues, https://www.rabbitmq.com/docs/consumers).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.argument_checks import Overflow
from warren.broker.model.message import Message
from warren.broker.model.message_codec import message_head, message_mark
from warren.broker.model.queue.backing_queue import BackingQueue
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.consumer_scheduler import ConsumerScheduler
from warren.broker.model.queue.delayed_retries import DelayedRetries
from warren.broker.model.queue.expiry import Expiry
from warren.broker.model.queue.paging import QueuePager
from warren.broker.model.queue.priority_backing_queue import PriorityBackingQueue
from warren.broker.model.queue.queue_arguments import QueueArguments

if TYPE_CHECKING:
    from warren.broker.model.capture.capture import Capture
    from warren.broker.model.deduplication import DeduplicationWindow
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.vhost.vhost import VirtualHost
    from warren.broker.store.log.log import Log
    from warren.broker.store.log.queue_log import QueueLog

ACCEPTED: Final = 0
"""The message is in the queue, or on its way to a consumer; nothing has to be waited for."""
STORED: Final = 1
"""As TAKEN, and it counts once the log's collecting batch is on disk."""
REJECTED: Final = 2
"""The queue is full and rejects publishes."""


BARE_HEAD: Final = message_head(Message(b"", b"", b"", 0, 0))
"""Of a message without exchange and key."""


class Queue:
    """One queue of a virtual host. All its methods run on the broker's one loop, so that it needs no lock."""

    next_sequence: i64 = 1
    unacked: i64 = 0
    pending_dead_letter_bytes: i64 = 0
    """The bodies in `aside`."""
    deleted: bool = False
    is_stream: bool = False
    """It is a stream, and keeps whatever it takes."""
    memory_tracked: bool = False
    """Its messages count for the memory of all."""
    has_had_consumer: bool = False
    """An auto-delete queue goes with its last consumer, but only after a first one."""

    def __init__(
        self,
        vhost: VirtualHost,
        name: bytes,
        durable: bool,
        auto_delete: bool,
        owner: Optional[object],  # noqa: UP045
        raw_arguments: bytes,
        arguments: QueueArguments,
        incarnation: i64,
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner
        """The connection that an exclusive queue belongs to."""
        self.raw_arguments = raw_arguments
        self.declared_arguments = arguments
        """The arguments as they were declared; `arguments` are those that it goes by, policies included."""
        self.incarnation = incarnation
        self.ready: BackingQueue = BackingQueue()
        if arguments.max_priority >= 0:
            self.ready = PriorityBackingQueue(arguments.max_priority)
        self.basic_get_consumer: Consumer = Consumer(self, b"", False, False)
        """Stands for those who take by basic.get: they have no prefetch and are never woken."""
        self.scheduler = ConsumerScheduler(arguments.single_active_consumer)
        self.ready_consumers: deque[Consumer] = self.scheduler.ready_consumers
        """The consumers that have room, the next one first."""
        self.incoming_bindings: dict[tuple[bytes, bytes, bytes], bool] = {}
        """The bindings to this queue: (source, routing key, encoded arguments)."""
        self.log: Log | None = None
        self.queue_log: QueueLog | None = None
        self.pager: Optional[QueuePager] = None  # noqa: UP045
        """Where messages go that leave memory; None if there is no disk."""
        self.pending_dead_letters: deque[tuple[Message, str]] = deque()
        """Dead letters that no target has taken yet (at-least-once strategy)."""
        self.delayed_exchange: Optional[Exchange] = None  # noqa: UP045
        """The exchange that holds these messages back until they are due; None for every queue that a client can name."""
        self.window: Optional[DeduplicationWindow] = None  # noqa: UP045
        """The keys that it has seen, if it deduplicates."""
        self.stored_window: Optional[DeduplicationWindow] = None  # noqa: UP045
        """The window whose keys these messages are."""
        self.capture: Optional[Capture] = None  # noqa: UP045
        """Whom to tell what happens here."""
        self.expiry = Expiry(self)
        self.last_exchange = b""
        self.last_key = b""
        self.last_head = BARE_HEAD
        self.delayed_retries: Optional[DelayedRetries] = None  # noqa: UP045
        """What has come back and waits, if it does not at once go where it was."""
        self.configure(arguments)

    def configure(self, arguments: QueueArguments) -> None:
        """What publishing and delivering look at, as plain attributes: from the arguments that count now."""
        self.arguments = arguments
        self.rejects_publishes: bool = arguments.overflow is not Overflow.DROP_HEAD
        self.has_length_limit: bool = arguments.max_length >= 0 or arguments.max_length_bytes >= 0
        self.message_ttl: i64 = arguments.message_ttl
        self.delivery_limit: i64 = arguments.delivery_limit
        lazy = arguments.lazy and self.vhost.log is not None
        if lazy != self.ready.lazy:
            self.ready.set_lazy(lazy)
        if arguments.delayed_retry != "disabled" and self.delayed_retries is None:
            self.delayed_retries = DelayedRetries(self)

    def reconfigure(self, arguments: QueueArguments) -> None:
        """Policies have changed: what waits has to fit at once; its expiry it keeps, as in RabbitMQ."""
        expires = self.arguments.expires
        self.configure(arguments)
        if arguments.expires != expires:
            self.expiry.restart()
        if self.has_length_limit and not self.rejects_publishes:
            self.drop_overflow()

    def attach_pager(self, shelf: QueuePager) -> None:
        """There is a disk that its messages may go to."""
        self.pager = shelf
        self.ready.attach_pager(shelf)

    # -- publishing

    def publish(self, message: Message) -> i64:
        """Take a message: TAKEN, STORED or REFUSED."""
        if self.has_length_limit and self.rejects_publishes and self.would_overflow(message):
            self.reject_publish(message)
            return REJECTED
        if self.capture is not None:
            self.capture.enqueued(self, message)
        message.sequence = self.next_sequence
        self.next_sequence += 1
        if self.message_ttl >= 0 or message.ttl >= 0:
            self.expiry.set_expiry(message)
        if self.ready_consumers and not self.ready.count:
            consumer = self.ready_consumers[0]
            # What an automatically acknowledging consumer has been sent is over; it need not be written first.
            if message.persistent and self.log is not None and not consumer.no_ack:
                self.store(message)
                self.deliver(consumer, message)
                return STORED
            self.deliver(consumer, message)
            return ACCEPTED
        outcome: i64 = ACCEPTED
        if message.persistent and self.log is not None:
            self.store(message)
            outcome = STORED
        self.enqueue(message)
        return outcome

    def accept(self, message: Message) -> None:
        """Take a message whose sequence is set and whose record is written by the caller (a fan-out shares one)."""
        if self.ready_consumers and not self.ready.count:
            self.deliver(self.ready_consumers[0], message)
        else:
            self.enqueue(message)

    def assign_sequence(self, message: Message) -> None:
        """Give a message its place and its expiry without taking it in yet."""
        message.sequence = self.next_sequence
        self.next_sequence += 1
        if self.message_ttl >= 0 or message.ttl >= 0:
            self.expiry.set_expiry(message)

    def enqueue(self, message: Message) -> None:
        if not self.memory_tracked:
            self.vhost.track_memory(self)
        self.ready.append(message)
        if self.has_length_limit and not self.rejects_publishes:
            self.drop_overflow()
        if message.expires:
            self.expiry.message_queued(message)

    def store(self, message: Message) -> None:
        log = self.log
        records = self.queue_log
        assert log is not None
        assert records is not None
        if message.expires or message.dead_lettered or message.priority or message.has_bcc:
            head = message_head(message)
        elif message.exchange is self.last_exchange and message.routing_key is self.last_key:
            head = self.last_head
        else:
            head = message_head(message)
            self.last_exchange = message.exchange
            self.last_key = message.routing_key
            self.last_head = head
        message.log_position = log.append_message(records, message.sequence, head, message.content)
        message.stored = True

    def would_overflow(self, message: Message) -> bool:
        """As RabbitMQ judges reject-publish: before a consumer is looked for. What is kept aside counts."""
        arguments = self.arguments
        kept = len(self.pending_dead_letters)
        if 0 <= arguments.max_length < self.ready.count + kept + 1:
            return True
        return (
            0
            <= arguments.max_length_bytes
            < self.ready.bytes + self.pending_dead_letter_bytes + message.body_size
        )

    def reject_publish(self, message: Message) -> None:
        """The queue is full and rejects this publish; its dead letter exchange may get it."""
        if self.arguments.overflow is Overflow.REJECT_PUBLISH_DLX:
            self.vhost.dead_lettering.dead_letter(self, [message], "maxlen")

    def drop_overflow(self) -> None:
        arguments = self.arguments
        dropped: list[Message] = []
        while self.ready.count and (
            0 <= arguments.max_length < self.ready.count or 0 <= arguments.max_length_bytes < self.ready.bytes
        ):
            message = self.ready.take()
            if message is None:
                break
            dropped.append(message)
        if dropped:
            self.vhost.dead_lettering.dead_letter(self, dropped, "maxlen")
            if self.expiry.has_seen_expiry:
                # Another message stands at the head now.
                self.expiry.drop_expired()
                self.expiry.schedule_head_timer()

    # -- delivering

    def deliver(self, consumer: Consumer, message: Message) -> None:
        """Give a message to the consumer at the head of the round, which then goes to its tail or, without room, out."""
        if not consumer.no_ack:
            self.unacked += 1
        elif message.stored:
            self.remove_from_log(message)
        if not consumer.deliver(message):
            self.ready_consumers.popleft()
            consumer.stalled = True
        elif len(self.ready_consumers) > 1:
            self.scheduler.rotate()

    def drain(self) -> None:
        """Message first, then a consumer with room, until one of the two is missing."""
        waiting = self.ready
        while waiting.count and self.ready_consumers:
            if self.expiry.has_seen_expiry and self.expiry.drop_expired():
                if self.expiry.has_backlog:
                    return
                continue
            message = waiting.take()
            if message is None:
                # The rest was damaged, or the disk has failed.
                break
            self.deliver(self.ready_consumers[0], message)
        if self.expiry.has_seen_expiry:
            self.expiry.drop_expired()
            self.expiry.schedule_head_timer()

    def get(self) -> Message | None:
        """The head for basic.get, now unacknowledged unless the caller settles it; None if nothing is ready.

        To be asked when the dead at the head are gone (`behind_dead`).
        """
        self.expiry.touch()
        if not self.ready.count:
            return None
        message = self.ready.take()
        if message is None:
            return None
        self.unacked += 1
        if self.expiry.has_seen_expiry:
            self.expiry.drop_expired()
            self.expiry.schedule_head_timer()
        return message

    def has_expired_backlog(self) -> bool:
        """Whether messages that are dead stand at the head, more than could be taken away now."""
        if self.expiry.has_seen_expiry:
            self.expiry.drop_expired()
        return self.expiry.has_backlog

    def resume_consumer(self, consumer: Consumer) -> None:
        """A stalled consumer has room again."""
        self.scheduler.insert(consumer)
        if self.ready.count:
            self.drain()

    # -- what comes back

    def acknowledge(self, message: Message) -> None:
        self.unacked -= 1
        if message.stored:
            self.remove_from_log(message)

    def remove_from_log(self, message: Message) -> None:
        """The message is over; the log has to know."""
        if self.deleted:
            return
        log = self.log
        records = self.queue_log
        if log is not None and records is not None:
            log.acknowledge(records, message.sequence)
            message.stored = False
            return
        # Not durable: it was written to make room in memory.
        shelf = self.pager
        assert shelf is not None
        shelf.acknowledge(message)

    def reject(self, messages: list[Message]) -> None:
        """Rejected without requeue: the dead letter exchange has them, if there is one."""
        self.unacked -= len(messages)
        if not self.deleted:
            self.vhost.dead_lettering.dead_letter(self, self.load_contents(messages), "rejected")

    def requeue(self, messages: list[Message], failed: bool) -> None:
        """Unacknowledged messages return to their places, marked redelivered, or end at the delivery limit.

        :param failed: because their channel has ended, not because a client has given them back.
        """
        self.unacked -= len(messages)
        if self.deleted:
            return
        spent: list[Message] = []
        retries = self.delayed_retries
        if retries is not None and not retries.applies(failed):
            retries = None
        for message in messages:
            message.redelivered = True
            message.delivery_count += 1
            if 0 <= self.delivery_limit < message.delivery_count:
                spent.append(message)
            elif retries is not None:
                self.log_delivery_count(message)
                retries.add(message)
            else:
                self.reinsert(message)
        if spent:
            self.vhost.dead_lettering.dead_letter(self, self.load_contents(spent), "delivery_limit")
        self.after_requeue()

    def after_requeue(self) -> None:
        """Messages stand in their places again."""
        if self.has_length_limit and not self.rejects_publishes:
            self.drop_overflow()
        if self.expiry.has_seen_expiry:
            self.expiry.drop_expired()
        if self.ready.count:
            self.drain()

    def load_contents(self, messages: list[Message]) -> list[Message]:
        """Unacknowledged messages, with the contents of those that had left memory; without those that are damaged."""
        absent = [message for message in messages if not message.content]
        if absent:
            shelf = self.pager
            assert shelf is not None
            shelf.load_contents(absent)
            for message in absent:
                if not message.content:
                    shelf.report_damaged(message)
        return [message for message in messages if message.content] if absent else messages

    def log_delivery_count(self, message: Message) -> None:
        shelf = self.pager
        if message.stored and shelf is not None:
            shelf.log.record_delivery_count(shelf.queue_log, message.sequence, message_mark(message))

    def reinsert(self, message: Message) -> None:
        self.log_delivery_count(message)
        if not self.memory_tracked:
            self.vhost.track_memory(self)
        self.ready.reinsert(message)

    def stop(self) -> None:
        """The broker stops. A crash before has marked messages redelivered that the log does not know to be."""
        self.expiry.stop()
        if self.delayed_retries is not None:
            self.delayed_retries.stop()
        shelf = self.pager
        if shelf is not None and shelf.durable and shelf.delivered_before_restart and self.ready.count:
            shelf.log.delivered_up_to[int(self.incarnation)] = int(shelf.delivered_before_restart)
        self.ready.clear()

    # -- consumers, and the end

    def subscribe(self, consumer: Consumer) -> None:
        """Add a consumer; deliveries start with the next `drain`, after its consume-ok."""
        self.scheduler.add(consumer)
        self.has_had_consumer = True
        if self.capture is not None:
            self.capture.consumer_started(consumer)
        self.expiry.touch()

    def unsubscribe(self, consumer: Consumer) -> None:
        """Take a consumer away; what it has unacknowledged stays with its channel. A `drain` has to follow."""
        if not self.scheduler.remove(consumer):
            return
        if self.capture is not None:
            self.capture.consumer_cancelled(consumer)
        self.expiry.touch()
        if self.auto_delete and self.has_had_consumer and not self.consumers and not self.deleted:
            self.vhost.remove_queue(self)

    @property
    def consumers(self) -> list[Consumer]:
        return self.scheduler.consumers

    def purge(self) -> i64:
        """Drop what is ready; what is unacknowledged stays. How many they were."""
        if self.capture is not None:
            self.capture.purged(self, "purged")
        return self.ready.purge()

    def mark_deleted(self) -> None:
        """The queue is deleted: its messages vanish, its consumers are told."""
        self.deleted = True
        if self.capture is not None:
            self.capture.purged(self, "deleted")
        self.expiry.stop()
        if self.delayed_retries is not None:
            self.delayed_retries.stop()
        self.ready.clear()
        self.pending_dead_letters.clear()
        shelf = self.pager
        if shelf is not None and not shelf.durable:
            shelf.drop()
        for consumer in self.scheduler.clear():
            if self.capture is not None:
                self.capture.consumer_cancelled(consumer)
            consumer.cancel_from_server()
