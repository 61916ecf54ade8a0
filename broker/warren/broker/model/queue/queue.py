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
from warren.broker.model.queue.backing_queue import Backing
from warren.broker.model.queue.consumer import Consumer
from warren.broker.model.queue.consumer_scheduler import Round
from warren.broker.model.queue.delayed_retries import Retries
from warren.broker.model.queue.expiry import Expiry
from warren.broker.model.queue.paging import Shelf
from warren.broker.model.queue.priority_backing_queue import PriorityBacking
from warren.broker.model.queue.queue_arguments import QueueArguments

if TYPE_CHECKING:
    from warren.broker.model.capture.capture import Capture
    from warren.broker.model.deduplication import Window
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.vhost.vhost import VirtualHost
    from warren.broker.store.log.log import Log, QueueLog

TAKEN: Final = 0
"""The message is in the queue, or on its way to a consumer; nothing has to be waited for."""
STORED: Final = 1
"""As TAKEN, and it counts once the log's collecting batch is on disk."""
REFUSED: Final = 2
"""The queue is full and rejects publishes."""


BARE_HEAD: Final = message_head(Message(b"", b"", b"", 0, 0))
"""Of a message without exchange and key."""


class Queue:
    """One queue of a virtual host. All its methods run on the broker's one loop, so that it needs no lock."""

    next_sequence: i64 = 1
    unacked: i64 = 0
    aside_bytes: i64 = 0
    """The bodies in `aside`."""
    deleted: bool = False
    streamed: bool = False
    """It is a stream, and keeps whatever it takes."""
    watched: bool = False
    """Its messages count for the memory of all."""
    had_consumer: bool = False
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
        self.declared = arguments
        """The arguments as they were declared; `arguments` are those that it goes by, policies included."""
        self.incarnation = incarnation
        self.waiting: Backing = Backing()
        if arguments.max_priority >= 0:
            self.waiting = PriorityBacking(arguments.max_priority)
        self.getter: Consumer = Consumer(self, b"", False, False)
        """Stands for those who take by basic.get: they have no prefetch and are never woken."""
        self.round = Round(arguments.single_active_consumer)
        self.active: deque[Consumer] = self.round.active
        """The consumers that have room, the next one first."""
        self.incoming: dict[tuple[bytes, bytes, bytes], bool] = {}
        """The bindings to this queue: (source, routing key, encoded arguments)."""
        self.log: Log | None = None
        self.records: QueueLog | None = None
        self.shelf: Optional[Shelf] = None  # noqa: UP045
        """Where messages go that leave memory; None if there is no disk."""
        self.aside: deque[tuple[Message, str]] = deque()
        """Dead letters that no target has taken yet (at-least-once strategy)."""
        self.held_for: Optional[Exchange] = None  # noqa: UP045
        """The exchange that holds these messages back until they are due; None for every queue that a client can name."""
        self.window: Optional[Window] = None  # noqa: UP045
        """The keys that it has seen, if it deduplicates."""
        self.keeps: Optional[Window] = None  # noqa: UP045
        """The window whose keys these messages are."""
        self.capture: Optional[Capture] = None  # noqa: UP045
        """Whom to tell what happens here."""
        self.expiry = Expiry(self)
        self.last_exchange = b""
        self.last_key = b""
        self.last_head = BARE_HEAD
        self.retries: Optional[Retries] = None  # noqa: UP045
        """What has come back and waits, if it does not at once go where it was."""
        self.configure(arguments)

    def configure(self, arguments: QueueArguments) -> None:
        """What publishing and delivering look at, as plain attributes: from the arguments that count now."""
        self.arguments = arguments
        self.rejects: bool = arguments.overflow is not Overflow.DROP_HEAD
        self.limited: bool = arguments.max_length >= 0 or arguments.max_length_bytes >= 0
        self.message_ttl: i64 = arguments.message_ttl
        self.delivery_limit: i64 = arguments.delivery_limit
        lazy = arguments.lazy and self.vhost.log is not None
        if lazy != self.waiting.lazy:
            self.waiting.set_lazy(lazy)
        if arguments.delayed_retry != "disabled" and self.retries is None:
            self.retries = Retries(self)

    def reconfigure(self, arguments: QueueArguments) -> None:
        """Policies have changed: what waits has to fit at once; its expiry it keeps, as in RabbitMQ."""
        expires = self.arguments.expires
        self.configure(arguments)
        if arguments.expires != expires:
            self.expiry.restart()
        if self.limited and not self.rejects:
            self.drop_overflow()

    def put_on(self, shelf: Shelf) -> None:
        """There is a disk that its messages may go to."""
        self.shelf = shelf
        self.waiting.put_on(shelf)

    # -- publishing

    def publish(self, message: Message) -> i64:
        """Take a message: TAKEN, STORED or REFUSED."""
        if self.limited and self.rejects and self.would_overflow(message):
            self.refuse(message)
            return REFUSED
        if self.capture is not None:
            self.capture.arrived(self, message)
        message.sequence = self.next_sequence
        self.next_sequence += 1
        if self.message_ttl >= 0 or message.ttl >= 0:
            self.expiry.date(message)
        if self.active and not self.waiting.count:
            consumer = self.active[0]
            # What an automatically acknowledging consumer has been sent is over; it need not be written first.
            if message.persistent and self.log is not None and not consumer.no_ack:
                self.store(message)
                self.hand(consumer, message)
                return STORED
            self.hand(consumer, message)
            return TAKEN
        outcome: i64 = TAKEN
        if message.persistent and self.log is not None:
            self.store(message)
            outcome = STORED
        self.enqueue(message)
        return outcome

    def take_in(self, message: Message) -> None:
        """Take a message whose sequence is set and whose record is written by the caller (a fan-out shares one)."""
        if self.active and not self.waiting.count:
            self.hand(self.active[0], message)
        else:
            self.enqueue(message)

    def number(self, message: Message) -> None:
        """Give a message its place and its expiry without taking it in yet."""
        message.sequence = self.next_sequence
        self.next_sequence += 1
        if self.message_ttl >= 0 or message.ttl >= 0:
            self.expiry.date(message)

    def enqueue(self, message: Message) -> None:
        if not self.watched:
            self.vhost.watch(self)
        self.waiting.append(message)
        if self.limited and not self.rejects:
            self.drop_overflow()
        if message.expires:
            self.expiry.arrived(message)

    def store(self, message: Message) -> None:
        log = self.log
        records = self.records
        assert log is not None
        assert records is not None
        if message.expires or message.died or message.priority or message.blind:
            head = message_head(message)
        elif message.exchange is self.last_exchange and message.routing_key is self.last_key:
            head = self.last_head
        else:
            head = message_head(message)
            self.last_exchange = message.exchange
            self.last_key = message.routing_key
            self.last_head = head
        message.place = log.message(records, message.sequence, head, message.content)
        message.stored = True

    def would_overflow(self, message: Message) -> bool:
        """As RabbitMQ judges reject-publish: before a consumer is looked for. What is kept aside counts."""
        arguments = self.arguments
        kept = len(self.aside)
        if 0 <= arguments.max_length < self.waiting.count + kept + 1:
            return True
        return 0 <= arguments.max_length_bytes < self.waiting.bytes + self.aside_bytes + message.body_size

    def refuse(self, message: Message) -> None:
        """The queue is full and rejects this publish; its dead letter exchange may get it."""
        if self.arguments.overflow is Overflow.REJECT_PUBLISH_DLX:
            self.vhost.dead_letters.bury(self, [message], "maxlen")

    def drop_overflow(self) -> None:
        arguments = self.arguments
        dropped: list[Message] = []
        while self.waiting.count and (
            0 <= arguments.max_length < self.waiting.count
            or 0 <= arguments.max_length_bytes < self.waiting.bytes
        ):
            message = self.waiting.take()
            if message is None:
                break
            dropped.append(message)
        if dropped:
            self.vhost.dead_letters.bury(self, dropped, "maxlen")
            if self.expiry.used:
                # Another message stands at the head now.
                self.expiry.drop_expired()
                self.expiry.watch()

    # -- delivering

    def hand(self, consumer: Consumer, message: Message) -> None:
        """Give a message to the consumer at the head of the round, which then goes to its tail or, without room, out."""
        if not consumer.no_ack:
            self.unacked += 1
        elif message.stored:
            self.forget(message)
        if not consumer.deliver(message):
            self.active.popleft()
            consumer.stalled = True
        elif len(self.active) > 1:
            self.round.turn()

    def drain(self) -> None:
        """Message first, then a consumer with room, until one of the two is missing."""
        waiting = self.waiting
        while waiting.count and self.active:
            if self.expiry.used and self.expiry.drop_expired():
                if self.expiry.behind:
                    return
                continue
            message = waiting.take()
            if message is None:
                # The rest was damaged, or the disk has failed.
                break
            self.hand(self.active[0], message)
        if self.expiry.used:
            self.expiry.drop_expired()
            self.expiry.watch()

    def get(self) -> Message | None:
        """The head for basic.get, now unacknowledged unless the caller settles it; None if nothing is ready.

        To be asked when the dead at the head are gone (`behind_dead`).
        """
        self.expiry.touch()
        if not self.waiting.count:
            return None
        message = self.waiting.take()
        if message is None:
            return None
        self.unacked += 1
        if self.expiry.used:
            self.expiry.drop_expired()
            self.expiry.watch()
        return message

    def behind_dead(self) -> bool:
        """Whether messages that are dead stand at the head, more than could be taken away now."""
        if self.expiry.used:
            self.expiry.drop_expired()
        return self.expiry.behind

    def resume(self, consumer: Consumer) -> None:
        """A stalled consumer has room again."""
        self.round.place(consumer)
        if self.waiting.count:
            self.drain()

    # -- what comes back

    def acknowledged(self, message: Message) -> None:
        self.unacked -= 1
        if message.stored:
            self.forget(message)

    def forget(self, message: Message) -> None:
        """The message is over; the log has to know."""
        if self.deleted:
            return
        log = self.log
        records = self.records
        if log is not None and records is not None:
            log.acknowledge(records, message.sequence)
            message.stored = False
            return
        # Not durable: it was written to make room in memory.
        shelf = self.shelf
        assert shelf is not None
        shelf.end(message)

    def rejected(self, messages: list[Message]) -> None:
        """Rejected without requeue: the dead letter exchange has them, if there is one."""
        self.unacked -= len(messages)
        if not self.deleted:
            self.vhost.dead_letters.bury(self, self.readable(messages), "rejected")

    def requeue(self, messages: list[Message], failed: bool) -> None:
        """Unacknowledged messages return to their places, marked redelivered, or end at the delivery limit.

        :param failed: because their channel has ended, not because a client has given them back.
        """
        self.unacked -= len(messages)
        if self.deleted:
            return
        spent: list[Message] = []
        retries = self.retries
        if retries is not None and not retries.wanted(failed):
            retries = None
        for message in messages:
            message.redelivered = True
            message.deliveries += 1
            if 0 <= self.delivery_limit < message.deliveries:
                spent.append(message)
            elif retries is not None:
                self.mark_return(message)
                retries.hold(message)
            else:
                self.put_back(message)
        if spent:
            self.vhost.dead_letters.bury(self, self.readable(spent), "delivery_limit")
        self.came_back()

    def came_back(self) -> None:
        """Messages stand in their places again."""
        if self.limited and not self.rejects:
            self.drop_overflow()
        if self.expiry.used:
            self.expiry.drop_expired()
        if self.waiting.count:
            self.drain()

    def readable(self, messages: list[Message]) -> list[Message]:
        """Unacknowledged messages, with the contents of those that had left memory; without those that are damaged."""
        absent = [message for message in messages if not message.content]
        if absent:
            shelf = self.shelf
            assert shelf is not None
            shelf.load(absent)
            for message in absent:
                if not message.content:
                    shelf.lost(message)
        return [message for message in messages if message.content] if absent else messages

    def mark_return(self, message: Message) -> None:
        shelf = self.shelf
        if message.stored and shelf is not None:
            shelf.log.mark(shelf.records, message.sequence, message_mark(message))

    def put_back(self, message: Message) -> None:
        self.mark_return(message)
        if not self.watched:
            self.vhost.watch(self)
        self.waiting.put_back(message)

    def closing(self) -> None:
        """The broker stops. A crash before has marked messages redelivered that the log does not know to be."""
        self.expiry.stop()
        if self.retries is not None:
            self.retries.stop()
        shelf = self.shelf
        if shelf is not None and shelf.durable and shelf.delivered and self.waiting.count:
            shelf.log.delivered[int(self.incarnation)] = int(shelf.delivered)
        self.waiting.clear()

    # -- consumers, and the end

    def subscribe(self, consumer: Consumer) -> None:
        """Add a consumer; deliveries start with the next `drain`, after its consume-ok."""
        self.round.add(consumer)
        self.had_consumer = True
        if self.capture is not None:
            self.capture.consuming(consumer)
        self.expiry.touch()

    def unsubscribe(self, consumer: Consumer) -> None:
        """Take a consumer away; what it has unacknowledged stays with its channel. A `drain` has to follow."""
        if not self.round.remove(consumer):
            return
        if self.capture is not None:
            self.capture.cancelled(consumer)
        self.expiry.touch()
        if self.auto_delete and self.had_consumer and not self.consumers and not self.deleted:
            self.vhost.remove_queue(self)

    @property
    def consumers(self) -> list[Consumer]:
        return self.round.all

    def purge(self) -> i64:
        """Drop what is ready; what is unacknowledged stays. How many they were."""
        if self.capture is not None:
            self.capture.purged(self, "purged")
        return self.waiting.purge()

    def ended(self) -> None:
        """The queue is deleted: its messages vanish, its consumers are told."""
        self.deleted = True
        if self.capture is not None:
            self.capture.purged(self, "deleted")
        self.expiry.stop()
        if self.retries is not None:
            self.retries.stop()
        self.waiting.clear()
        self.aside.clear()
        shelf = self.shelf
        if shelf is not None and not shelf.durable:
            shelf.drop()
        for consumer in self.round.clear():
            if self.capture is not None:
                self.capture.cancelled(consumer)
            consumer.cancelled()
