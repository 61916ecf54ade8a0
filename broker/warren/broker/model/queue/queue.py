"""A queue: accepts messages, delivers them to consumers, and handles acknowledgement, reject and requeue of deliveries.

A queue delivers when a consumer arrives, when a message arrives, and when an acknowledgement lets a consumer take more
messages. It has timers for expiry and delayed retries only (https://www.rabbitmq.com/docs/queues,
https://www.rabbitmq.com/docs/consumers).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Optional

from mypy_extensions import i64

from warren.broker.model.argument_checks import Overflow
from warren.broker.model.message import Message, UnencodableMessage
from warren.broker.model.message_codec import message_head, message_mark
from warren.broker.model.message_counts import MessageCounts
from warren.broker.model.queue.backing_queue import BackingQueue
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.consumer_scheduler import ConsumerScheduler
from warren.broker.model.queue.delayed_retries import DelayedRetries
from warren.broker.model.queue.discarded_messages import DiscardedMessages
from warren.broker.model.queue.expiry import Expiry
from warren.broker.model.queue.length_limit import LengthLimit
from warren.broker.model.queue.paging import QueuePager
from warren.broker.model.queue.priority_backing_queue import PriorityBackingQueue
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.model.queue.ready_ring import ReadyRing

if TYPE_CHECKING:
    from warren.broker.model.capture.life_cycle_hook import LifeCycleHook
    from warren.broker.model.dead_letter.dead_lettering import DeadLetters
    from warren.broker.model.deduplication import DeduplicationWindow
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.vhost.vhost import VirtualHost
    from warren.broker.store.log.log import Log
    from warren.broker.store.log.queue_log import QueueLog

logger = logging.getLogger(__name__)

ACCEPTED: Final = 0
"""Outcome of a publish: the message is in the queue or was delivered, and may be confirmed at once."""
STORED: Final = 1
"""Outcome of a publish: the message was accepted, and may be confirmed when the log has been written to disk."""
REJECTED: Final = 2
"""Outcome of a publish: the queue is full, and its overflow mode rejects publishes."""

DELIVERIES: Final = 64
"""Messages that are delivered in a row before the time is checked."""

SIZE_SHIFT: Final = 16
"""Bytes of a body that count as one more delivery, as a power of two: 64 KiB."""

SHOWN_BYTES: Final = 80
"""Bytes of an exchange's name and of a routing key that the log line about an undeliverable message shows."""

BARE_HEAD: Final = message_head(Message(b"", b"", b"", 0, 0))
"""Encoded head of the log record of a message with an empty exchange and routing key: the initial `last_head`."""


HEADS_KEPT: Final = 128
"""Most routing keys of which a queue keeps the head of log records."""

SERIALS: Final = itertools.count(1)
"""Numbers of the queues of this process."""


class SettlementWait:
    """Wait for the bulk work of other lanes that settles messages of one queue."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.is_returned = False
        """True when all messages that were rejected or requeued have been handed to the queue."""
        self.last_batch: Optional[DeadLetters] = None  # noqa: UP045
        """The last batch of dead letters to wait for, once `is_returned` is set; later ones are not waited for."""

    def step(self, _: float) -> bool:
        """Return True if that work is finished. The argument, the end of a slice, is not used."""
        queue = self.queue
        if queue.deleted:
            return True
        if not self.is_returned:
            if queue.returns or queue.holds:
                return False
            self.is_returned = True
            self.last_batch = queue.vhost.dead_lettering.last_batch(queue)
        batch = self.last_batch
        return batch is None or batch.is_done


class Queue:
    """One queue of a virtual host. All methods run on the broker's event loop; a queue needs no lock."""

    next_sequence: i64 = 1
    """Number of the next message in the order of arrival. A requeued message keeps its own."""
    unacked: i64 = 0
    """Number of messages that were delivered and are not settled yet."""
    pending_dead_letter_bytes: i64 = 0
    """Bytes of the bodies of the dead letters that no target has accepted yet."""
    holds: i64 = 0
    """Number of reasons why nothing may be delivered now: unfinished bulk work on messages at the head."""
    returns: i64 = 0
    """Number of pieces of bulk work that have yet to requeue or reject messages of this queue."""
    letters_batch: i64 = 0
    """Number of the batch of the log that has the last of its dead letters; earlier ones are in that or earlier batches."""
    drain_scheduled: bool = False
    """True if bulk work will continue `drain`, because a slice was over."""
    deleted: bool = False
    staged_bytes: i64 = 0
    """Bytes of the bodies of the staged messages (see `staged`)."""
    staged_left: i64 = 0
    """Number of staged messages that the last call of `put_staged` has left; 0 before the first call."""
    is_stream: bool = False
    memory_tracked: bool = False
    """True while the memory budget watches this queue, because messages wait in it."""
    has_had_consumer: bool = False
    """True if the queue has had a consumer: only then is an auto-delete queue without consumers deleted."""

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
        """The connection that an exclusive queue belongs to; None for other queues."""
        self.raw_arguments = raw_arguments
        self.stores_all_messages: bool = arguments.quorum
        """True if the queue stores messages of every delivery mode, as a quorum queue does."""
        self.declared_arguments = arguments
        """Arguments of the declaration. `arguments` holds those in force, which policies may have changed."""
        self.incarnation = incarnation
        """Number of this queue in the log. A queue that is deleted and declared again gets another one."""
        self.serial = next(SERIALS)
        """Number of this object, which no other queue has while the process runs."""
        self.ready: BackingQueue = BackingQueue()
        """Messages that wait for a consumer: those that RabbitMQ calls ready."""
        if arguments.max_priority >= 0:
            self.ready = PriorityBackingQueue(arguments.max_priority)
        self.basic_get_consumer: Consumer = Consumer(self, b"", False, False)
        """Consumer that stands for basic.get: it holds the messages that were fetched, and is never delivered to."""
        self.scheduler = ConsumerScheduler(
            arguments.single_active_consumer, arguments.quorum and vhost.compat.higher_priority_takes_over
        )
        self.ready_consumers: ReadyRing = self.scheduler.ready
        """Consumers that can take a message now, the next one first: the ring of `scheduler`."""
        self.counts = MessageCounts()
        """Messages that were fetched and given back, and deliveries to consumers that have ended."""
        self.incoming_bindings: dict[Exchange, dict[tuple[bytes, bytes], bool]] = {}
        """Keys (routing key, encoded arguments) of the bindings to this queue, by source exchange.

        The inner dicts serve as ordered sets. A source may be an exchange that was just deleted.
        """
        self.log: Log | None = None
        """Log that messages are stored in (see `stores`); None if the queue is not durable or without a data folder."""
        self.queue_log: QueueLog | None = None
        """Handle of this queue in the log; None if the queue is not durable or there is no data folder."""
        self.pager: Optional[QueuePager] = None  # noqa: UP045
        """Access to messages that are paged out to disk.

        None without a data folder. A queue that is not durable gets it when its first message waits.
        """
        self.pending_dead_letters: deque[tuple[Message, str]] = deque()
        """Dead letters that no target has accepted yet, with their reasons (strategy at-least-once)."""
        self.failed_dead_letters: Optional[dict[int, bool]] = None  # noqa: UP045
        """Sequence numbers of pending dead letters of which it is logged that they could not be published."""
        self.undeliverable: Optional[list[Message]] = None  # noqa: UP045
        """Messages that cannot be encoded for a client, and count as unacknowledged. None if there are none."""
        self.delayed_exchange: Optional[Exchange] = None  # noqa: UP045
        """The delayed exchange whose messages wait in this internal queue; None for other queues."""
        self.window: Optional[DeduplicationWindow] = None  # noqa: UP045
        """Keys of recent messages, by which the queue drops duplicates; None if it does not deduplicate."""
        self.stored_window: Optional[DeduplicationWindow] = None  # noqa: UP045
        """Deduplication window whose keys are stored as the messages of this internal queue; None for other queues."""
        self.capture: Optional[LifeCycleHook] = None  # noqa: UP045
        """Hook that records life-cycle events; None if event capture is off."""
        self.staged: Optional[deque[Message]] = None  # noqa: UP045
        """Messages of a bulk publish that is not finished, and those that have arrived behind them, in order.

        They have their sequence numbers, but are not ready yet. None without such a publish; else the queue is held.
        """
        self.unstaged: Optional[Message] = None  # noqa: UP045
        """The message that was staged last and is now being enqueued."""
        self.waiters: list[Callable[[], None]] = []
        """Functions to call when nothing holds deliveries any more, such as a basic.get that waits."""
        self.expiry = Expiry(self)
        self.limit = LengthLimit(self)
        self.last_exchange = b""
        self.last_key = b""
        self.last_head = BARE_HEAD
        """Encoded exchange and routing key of the last log record. Many publishes repeat both and can reuse it."""
        self.heads: dict[bytes, bytes] = {}
        """Heads of log records for messages with the exchange `last_exchange`, by routing key."""
        self.delayed_retries: Optional[DelayedRetries] = None  # noqa: UP045
        """Requeued messages that wait for their retry delay; None if retries are not delayed."""
        self.configure(arguments)

    def configure(self, arguments: QueueArguments) -> None:
        """Set the arguments in force: those of the declaration, merged with policies.

        The ones that each publish reads are copied to attributes of the queue, for speed.
        """
        self.arguments = arguments
        self.rejects_publishes: bool = arguments.overflow is not Overflow.DROP_HEAD
        self.has_length_limit: bool = arguments.max_length >= 0 or arguments.max_length_bytes >= 0
        self.limit.configure(arguments)
        self.counts_returns_apart: bool = self.vhost.compat.counts_returns_apart
        self.message_ttl: i64 = arguments.message_ttl
        self.delivery_limit: i64 = arguments.delivery_limit
        lazy = arguments.lazy and self.vhost.log is not None
        if lazy != self.ready.lazy:
            self.ready.set_lazy(lazy)
            if self.ready.count and not self.memory_tracked:
                # What is in memory has to be paged out.
                self.vhost.track_memory(self)
        if arguments.delayed_retry != "disabled" and self.delayed_retries is None:
            self.delayed_retries = DelayedRetries(self)

    def reconfigure(self, arguments: QueueArguments) -> None:
        """Apply arguments that a policy has changed.

        Length limits hold at once; ready messages keep their expiry, as in RabbitMQ.
        """
        expires = self.arguments.expires
        self.configure(arguments)
        if self.pending_dead_letters and arguments.dead_letter_exchange is None:
            # The next retry drops them.
            logger.warning(
                "event=dead_letter.left_without_exchange queue=%r messages=%d",
                self.name.decode(errors="replace"),
                len(self.pending_dead_letters),
            )
        if arguments.expires != expires:
            self.expiry.restart()
        if self.has_length_limit and not self.rejects_publishes:
            self.limit.drop_head()

    def attach_pager(self, pager: QueuePager) -> None:
        """Set the access to the log by which messages of this queue are paged out to disk."""
        self.pager = pager
        self.ready.attach_pager(pager)

    # -- publishing

    def publish(self, message: Message) -> i64:
        """Deliver a published message to a consumer, or append it to the ready messages.

        Return ACCEPTED (it may be confirmed at once), STORED (it may be confirmed when the log is on disk) or REJECTED.
        """
        if self.has_length_limit and self.rejects_publishes and self.limit.would_exceed(message):
            self.limit.reject(message)
            return REJECTED
        if self.capture is not None:
            self.capture.enqueued(self, message)
        self.assign_sequence(message)
        consumer = self.ready_consumers.first
        if consumer is not None and not self.ready.count and not self.holds:
            # A delivery with automatic acknowledgement is settled at once; it need not be logged first. The attribute
            # comes first of all, since it saves the call for a transient message.
            if message.persistent and not consumer.no_ack and self.stores(message):
                self.store(message)
                self.deliver(consumer, message)
                return STORED
            self.deliver(consumer, message)
            return ACCEPTED
        outcome: i64 = ACCEPTED
        if message.persistent and self.stores(message):
            self.store(message)
            outcome = STORED
        self.enqueue(message)
        return outcome

    def accept(self, message: Message) -> None:
        """Deliver a message to a consumer, or append it to the ready messages.

        Unlike for `publish`, the caller has called `assign_sequence`, and has written the message to the log if `stores`
        returned True: a message for several queues is one record of the log.
        """
        consumer = self.ready_consumers.first
        if consumer is not None and not self.ready.count and not self.holds:
            self.deliver(consumer, message)
        else:
            self.enqueue(message)

    def assign_sequence(self, message: Message) -> None:
        """Prepare a published message for this queue, before the calls of `stores` and `accept`.

        Set its sequence number, its time of expiry, and `persistent` if the queue stores every message.
        """
        message.sequence = self.next_sequence
        self.next_sequence += 1
        if self.stores_all_messages:
            message.persistent = True
        if self.message_ttl >= 0 or message.ttl >= 0:
            self.expiry.set_expiry(message)

    def enqueue(self, message: Message) -> None:
        """Append a message to those that wait for a consumer, and apply length limits and expiry.

        It is staged instead while a bulk publish has messages before it that are staged.
        """
        if self.staged is not None and message is not self.unstaged:
            self.staged.append(message)
            self.staged_bytes += message.body_size
            return
        if not self.memory_tracked:
            self.vhost.track_memory(self)
        self.ready.append(message)
        if self.has_length_limit and not self.rejects_publishes:
            self.limit.drop_head()
        if message.expires:
            self.expiry.message_queued(message)

    # -- bulk publishes

    def stage(self, message: Message) -> bool:
        """Give a message of a bulk publish its place in the queue, from which `put_staged` makes it ready later.

        Between the two calls the publish is written to the log as a whole, the queue is held, and messages that are
        published by others are staged behind it. Return True if it is the first one staged.
        """
        is_first = self.staged is None
        if self.staged is None:
            self.staged = deque()
            self.hold()
        self.assign_sequence(message)
        self.staged.append(message)
        self.staged_bytes += message.body_size
        return is_first

    def put_staged(self, end: float) -> bool:
        """Deliver or enqueue the staged messages until a time; return True if none is left, and the queue is released.

        :param end: the time by `time.monotonic()`.
        """
        staged = self.staged
        if staged is None:
            return True
        left: i64 = DELIVERIES
        if self.staged_left:
            # As many as have arrived since, at least: else fast publishers would keep the queue held for ever.
            left += len(staged) - self.staged_left
        while staged:
            message = staged.popleft()
            self.staged_bytes -= message.body_size
            if self.deleted:
                continue
            # Directly to a consumer, as by `publish`: then neither limits nor expiry apply. Only this work holds the queue.
            consumer = self.ready_consumers.first
            if consumer is not None and not self.ready.count and self.holds == 1:
                self.deliver(consumer, message)
            else:
                self.unstaged = message
                self.enqueue(message)
            left -= 1
            if not left:
                left = DELIVERIES
                if staged and time.monotonic() >= end:
                    self.staged_left = len(staged)
                    return False
        self.staged = None
        self.staged_left = 0
        self.unstaged = None
        self.staged_bytes = 0
        self.release()
        return True

    def unstage(self, messages: set[int]) -> None:
        """Remove staged messages, because their publish has failed.

        :param messages: their values of `id()`.
        """
        if self.staged is not None:
            self.staged = deque(message for message in self.staged if id(message) not in messages)

    def stores(self, message: Message) -> bool:
        """Return True if a message in this queue survives a restart, so that it has to be written to the log.

        The queue decides: a quorum queue stores every message (`stores_all_messages`), a classic queue persistent ones.
        """
        return (message.persistent or self.stores_all_messages) and self.log is not None

    def store(self, message: Message) -> None:
        """Write a message to the log, so that it survives a restart."""
        log = self.log
        records = self.queue_log
        assert log is not None
        assert records is not None
        if message.expires or message.dead_lettered or message.priority or message.has_bcc:
            head = message_head(message)
        elif message.exchange is self.last_exchange and message.routing_key is self.last_key:
            head = self.last_head
        else:
            head = self.shared_head(message)
        message.log_position = log.append_message(records, message.sequence, head, message.content)
        message.stored = True

    def shared_head(self, message: Message) -> bytes:
        """Return the head of a message's log record, which messages with the same exchange and routing key share."""
        if message.exchange != self.last_exchange:
            self.heads.clear()
        head = self.heads.get(message.routing_key)
        if head is None:
            head = message_head(message)
            if len(self.heads) >= HEADS_KEPT:
                self.heads.clear()
            self.heads[message.routing_key] = head
        # Only now: a head that cannot be encoded must not leave three values that do not belong together.
        self.last_exchange = message.exchange
        self.last_key = message.routing_key
        self.last_head = head
        return head

    # -- delivering

    def deliver(self, consumer: Consumer, message: Message) -> None:
        """Send a message to `consumer`, which must be the first of the ready consumers (those that can take a message).

        Then move the consumer behind the other ready ones of its priority, or remove it if it cannot take another
        message.
        """
        no_ack = consumer.no_ack
        if not no_ack:
            self.unacked += 1
        try:
            has_room = consumer.deliver(message)
        except UnencodableMessage as error:
            if not no_ack:
                self.unacked -= 1
            self.set_aside(message, error)
            return
        if no_ack and message.stored:
            self.remove_from_log(message)
        if has_room:
            self.ready_consumers.rotate()
        else:
            self.scheduler.suspend(consumer)

    def set_aside(self, message: Message, error: UnencodableMessage) -> None:
        """Keep a message that cannot be delivered from blocking the messages behind it, and log it.

        It is dead-lettered, or without a dead letter exchange counts as unacknowledged until the next start of the broker.

        :param message: the message, which is not in the ready messages, and does not count as unacknowledged.
        """
        logger.error(
            "event=queue.message_undeliverable queue=%r sequence=%d exchange=%r routing_key=%r reason=%r",
            self.name.decode(errors="replace"),
            int(message.sequence),
            message.exchange[:SHOWN_BYTES].decode(errors="replace"),
            message.routing_key[:SHOWN_BYTES].decode(errors="replace"),
            str(error),
        )
        if self.arguments.dead_letter_exchange is not None:
            self.vhost.dead_lettering.dead_letter(self, [message], "rejected")
            return
        self.unacked += 1
        if self.undeliverable is None:
            self.undeliverable = []
        self.undeliverable.append(message)

    def drain(self) -> None:
        """Deliver ready messages until there are no more, or no consumer can take another one.

        Do nothing while bulk work holds deliveries. What a slice has no time for is delivered as bulk work.
        """
        ready = self.ready
        left: i64 = DELIVERIES
        end = 0.0
        self.scheduler.fill_role()
        while ready.count and self.ready_consumers.first is not None and not self.holds:
            if self.expiry.has_seen_expiry and self.expiry.drop_expired():
                continue
            message = ready.take()
            if message is None:
                # The remaining messages are damaged, or the disk has failed.
                break
            self.deliver(self.ready_consumers.first, message)
            # A large message counts as several.
            left -= 1 + (message.body_size >> SIZE_SHIFT)
            if left <= 0:
                left = DELIVERIES
                if not end:
                    end = self.vhost.bulk_work.slice_end()
                if time.monotonic() >= end:
                    self.drain_later()
                    break
        if self.holds:
            return
        if self.expiry.has_seen_expiry:
            self.expiry.drop_expired()
            self.expiry.schedule_head_timer()

    def drain_later(self) -> None:
        """Continue `drain` in one of the next slices of bulk work."""
        if not self.drain_scheduled:
            self.drain_scheduled = True
            self.vhost.bulk_work.later(self, self.drain_slice)

    def drain_slice(self, _: float) -> bool:
        """Continue `drain`; return True, because it schedules the next slice itself."""
        self.drain_scheduled = False
        if not self.deleted:
            self.drain()
        return True

    def hold(self) -> None:
        """Deliver nothing until `release` is called as often: bulk work on messages at the head is unfinished."""
        self.holds += 1

    def release(self) -> None:
        """End one `hold`. After the last one, deliver, and call the functions that wait for this."""
        self.holds -= 1
        if not self.holds and not self.deleted:
            self.drain()
        waiters = self.waiters
        self.waiters = []
        for call in waiters:
            # The call before may have begun other bulk work.
            if self.holds:
                self.waiters.append(call)
            else:
                call()

    def get(self) -> Message | None:
        """Take the next message for basic.get; None if no message is ready. It is unacknowledged from now on.

        Call it only when `is_held` returns False.
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

    @property
    def is_settled(self) -> bool:
        """True if no bulk work concerns the queue's messages: all that have left it are dead-lettered."""
        return not self.holds and not self.returns and not self.vhost.dead_lettering.has_backlog(self)

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call `call` when the bulk work that concerns the queue's messages now is finished; at once if there is none.

        Then every message that was rejected, expired or over a limit before this call is dead-lettered. A deletion waits
        for it, as it does in RabbitMQ, where a queue handles one request after the other.
        """
        if self.is_settled:
            call()
        else:
            # In a lane of its own: the work that it waits for may begin other work in the lane of the queue.
            wait = SettlementWait(self)
            self.vhost.bulk_work.run(wait, wait.step, call)

    @property
    def is_empty(self) -> bool:
        """True if no message is ready, waits for its retry, or is a dead letter that no target has accepted yet."""
        return not self.ready.count and not self.held_back_count()

    def held_back_count(self) -> int:
        """Return the number of messages that are neither ready nor unacknowledged.

        They are dead letters that no target has accepted yet, and requeued messages that wait for their retry.
        """
        retries = self.delayed_retries
        return len(self.pending_dead_letters) + (len(retries) if retries is not None else 0)

    def held_back_bytes(self) -> int:
        """Return the bytes of the bodies of the messages that `held_back_count` counts."""
        retries = self.delayed_retries
        return int(self.pending_dead_letter_bytes) + (retries.body_bytes if retries is not None else 0)

    def is_held(self) -> bool:
        """Remove expired messages at the head. Return True if that, or other work on the head, is left as bulk work.

        A basic.get then has to wait until it is finished (`waiters`).
        """
        if self.expiry.has_seen_expiry:
            self.expiry.drop_expired()
        return self.holds > 0

    def resume_consumer(self, consumer: Consumer) -> None:
        """Make a stalled consumer ready, because it can take messages again, and deliver to it."""
        self.scheduler.insert(consumer)
        if self.ready.count:
            self.drain()

    # -- settlement

    def acknowledge(self, message: Message) -> None:
        """Remove an acknowledged message from the queue's count of unacknowledged messages and from the log."""
        self.unacked -= 1
        if message.stored:
            self.remove_from_log(message)

    def remove_from_log(self, message: Message) -> None:
        """Record in the log that a message has left the queue, so that a restart does not bring it back."""
        if self.deleted:
            return
        log = self.log
        records = self.queue_log
        if log is not None and records is not None:
            log.acknowledge(records, message.sequence)
            message.stored = False
            return
        # The queue is not durable: the message was paged out.
        pager = self.pager
        assert pager is not None
        pager.acknowledge(message)

    def reject(self, messages: list[Message]) -> None:
        """Dead-letter delivered messages that a client has rejected without requeue."""
        self.unacked -= len(messages)
        self.counts.given_back += len(messages)
        if not self.deleted:
            self.vhost.dead_lettering.dead_letter(self, messages, "rejected")

    def requeue(self, messages: list[Message], failed: bool) -> None:
        """Put delivered messages back at their positions, marked redelivered.

        Dead-letter those over the delivery limit.

        :param failed: True if this counts against the delivery limit: their channel has ended, or basic.reject requeues
            them. False for basic.nack and basic.recover, by which a client returns messages.
        """
        self.reinsert_all(messages, failed)
        if not self.deleted:
            self.after_requeue()

    def reinsert_all(self, messages: list[Message], failed: bool) -> None:
        """Do what `requeue` does, except `after_requeue`: for a part of many messages, while `hold` is in effect.

        :param failed: True if this counts against the delivery limit, as for `requeue`.
        """
        self.unacked -= len(messages)
        self.counts.given_back += len(messages)
        if self.deleted:
            return
        over_limit: list[Message] = []
        retries = self.delayed_retries
        if retries is not None and not retries.applies(failed):
            retries = None
        for message in messages:
            message.redelivered = True
            message.acquired_count += 1
            if failed or not self.counts_returns_apart:
                message.delivery_count += 1
            if 0 <= self.delivery_limit < i64(message.delivery_count):
                over_limit.append(message)
            elif retries is not None:
                self.log_delivery_count(message)
                retries.add(message)
            else:
                self.reinsert(message)
        if over_limit:
            self.vhost.dead_lettering.dead_letter(self, over_limit, "delivery_limit")

    def after_requeue(self) -> None:
        """Apply length limits and expiry after messages were put back, and deliver them."""
        if self.has_length_limit and not self.rejects_publishes:
            self.limit.drop_head()
        if self.expiry.has_seen_expiry:
            self.expiry.drop_expired()
        if self.ready.count:
            self.drain()

    def load_contents(self, messages: list[Message]) -> list[Message]:
        """Read the contents of unacknowledged messages that were paged out.

        Return all messages but those whose content could not be read. The loss of each such message is logged.
        """
        absent = [message for message in messages if not message.content]
        if absent:
            pager = self.pager
            assert pager is not None
            pager.load_contents(absent)
            for message in absent:
                if not message.content:
                    pager.report_damaged(message)
        return [message for message in messages if message.content] if absent else messages

    def log_delivery_count(self, message: Message) -> None:
        """Record in the log the number of requeues of a message, and that it is redelivered.

        So both are known after a restart.
        """
        pager = self.pager
        if message.stored and pager is not None:
            pager.log.record_delivery_count(pager.queue_log, message.sequence, message_mark(message))

    def reinsert(self, message: Message) -> None:
        """Put a requeued message back at its position."""
        self.log_delivery_count(message)
        if not self.memory_tracked:
            self.vhost.track_memory(self)
        self.ready.reinsert(message)

    def stop(self) -> None:
        """Stop all timers, because the broker stops, and save which messages may have been delivered before a crash.

        The log does not record deliveries. After a crash, all messages up to a certain sequence number are therefore
        marked redelivered when they are read. If such messages are still ready, this number is saved here, so that they
        are marked again after the next start.
        """
        self.expiry.stop()
        if self.delayed_retries is not None:
            self.delayed_retries.stop()
        pager = self.pager
        if pager is not None and pager.durable and pager.delivered_before_restart and self.ready.count:
            pager.log.delivered_up_to[int(self.incarnation)] = int(pager.delivered_before_restart)
        self.ready.clear()

    # -- unacknowledged messages

    def unacknowledged_messages(self) -> list[Message]:
        """Return the queue's unacknowledged messages, collected from the channels of its consumers."""
        seen: dict[int, bool] = {}
        found: list[Message] = []
        for consumer in self.consumers:
            held = consumer.unacknowledged()
            if id(held) not in seen:
                seen[id(held)] = True
                for message in held.values():
                    holder = message.consumer
                    if holder is not None and holder.queue is self:
                        found.append(message)
        return found

    def page_out_unacknowledged(self, limit: i64) -> i64:
        """Page the contents of unacknowledged messages out to disk. Return the number of messages, at most `limit`."""
        pager = self.pager
        if pager is None:
            return 0
        done: i64 = 0
        for message in self.unacknowledged_messages():
            if done >= limit:
                break
            if message.content:
                if not message.stored:
                    pager.write(message)
                    done += 1
                elif pager.is_on_disk(message):
                    message.content = b""
                    done += 1
        return done

    # -- consumers and deletion

    def subscribe(self, consumer: Consumer) -> None:
        """Add a consumer.

        Deliveries to it begin with the next `drain`, which the channel calls after basic.consume-ok.
        """
        self.scheduler.add(consumer)
        self.has_had_consumer = True
        if self.capture is not None:
            self.capture.consumer_started(consumer)
        self.expiry.touch()

    def unsubscribe(self, consumer: Consumer) -> None:
        """Remove a consumer. Its unacknowledged messages stay with its channel. The caller calls `drain` afterwards.

        An auto-delete queue is deleted with its last consumer.
        """
        if not self.scheduler.remove(consumer):
            return
        count_deliveries(self.counts, consumer)
        if self.capture is not None:
            self.capture.consumer_cancelled(consumer)
        self.expiry.touch()
        if self.is_abandoned():
            self.when_settled(self.delete_if_abandoned)

    def is_abandoned(self) -> bool:
        """Return True if the queue has auto-delete, and its last consumer is gone."""
        return self.auto_delete and self.has_had_consumer and not self.consumers and not self.deleted

    def delete_if_abandoned(self) -> None:
        """Delete the queue if it has auto-delete, unless it has got a consumer since its last one has gone."""
        if self.is_abandoned():
            self.vhost.remove_queue(self)

    def message_counts(self) -> MessageCounts:
        """Return the numbers of messages that went through the queue since the broker started.

        Only `published` goes further back: like `arrived`, it includes the messages that arrived before a restart.
        """
        found = MessageCounts()
        found.add(self.counts)
        for consumer in self.consumers:
            count_deliveries(found, consumer)
        found.published = self.arrived()
        found.acknowledged = found.delivered + found.fetched - found.given_back - self.unacked
        return found

    def arrived(self) -> i64:
        """Return the number of messages that have arrived in the queue, which restarts do not set back."""
        return self.next_sequence - 1

    @property
    def consumers(self) -> Collection[Consumer]:
        return self.scheduler.consumers

    def first_consumer(self) -> Optional[Consumer]:  # noqa: UP045
        """Return the consumer that has been there longest; None if there is none."""
        return next(iter(self.scheduler.consumers), None)

    def purge(self, lane: object) -> i64:
        """Remove all messages but the unacknowledged ones. Return the number of removed messages.

        They are the ready ones and, as in RabbitMQ 4.3, those that are held back (`held_back_count`). Their removal from
        the log is bulk work.

        :param lane: lane of this bulk work. When it is finished, the log has records of all removals.
        """
        if self.capture is not None:
            self.capture.purged(self)
        count = self.ready.count + self.held_back_count()
        if self.pending_dead_letters:
            logger.warning(
                "event=dead_letter.purged queue=%r messages=%d",
                self.name.decode(errors="replace"),
                len(self.pending_dead_letters),
            )
        discarded = DiscardedMessages(self.pager)
        self.ready.take_all(discarded)
        self.take_held_back(discarded)
        self.vhost.bulk_work.run(lane, discarded.step)
        return count

    def take_held_back(self, discarded: DiscardedMessages) -> None:
        """Move the messages that are held back into `discarded`."""
        if self.pending_dead_letters:
            discarded.dead_letters.append(self.pending_dead_letters)
            self.pending_dead_letters = deque()
            self.pending_dead_letter_bytes = 0
        if self.delayed_retries is not None:
            discarded.retries.append(self.delayed_retries.take_all())

    def mark_deleted(self) -> None:
        """Mark the queue as deleted, drop its messages and cancel its consumers."""
        self.deleted = True
        if self.capture is not None:
            self.capture.queue_deleted(self)
        self.expiry.stop()
        if self.pending_dead_letters:
            logger.warning(
                "event=dead_letter.deleted_with_queue queue=%r messages=%d",
                self.name.decode(errors="replace"),
                len(self.pending_dead_letters),
            )
        # To free a million messages takes a while.
        discarded = DiscardedMessages(None)
        self.ready.take_all(discarded)
        self.take_held_back(discarded)
        self.vhost.bulk_work.run(discarded, discarded.step)
        memory = self.vhost.memory_budget
        if memory is not None:
            memory.forget(self)
        pager = self.pager
        if pager is not None and not pager.durable:
            pager.drop()
        for consumer in self.scheduler.clear():
            if self.capture is not None:
                self.capture.consumer_cancelled(consumer)
            consumer.cancel_from_server()


def count_deliveries(counts: MessageCounts, consumer: Consumer) -> None:
    """Add the deliveries to a consumer."""
    if consumer.no_ack:
        counts.delivered_no_ack += consumer.delivered
    else:
        counts.delivered += consumer.delivered
    counts.redelivered += consumer.redelivered
