"""Internal queues: queues that no client can name, for delayed messages and for deduplication keys.

A delayed exchange keeps its messages in one until their delay ends. A deduplicating exchange or queue keeps the keys of
recent messages in one. An internal queue is durable, and recovered at the start, if its exchange or queue is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.broker.model.deduplication import DeduplicationRule, DeduplicationWindow
from warren.broker.model.queue.delayed_messages import DelayedMessages
from warren.broker.model.queue.paging import QueuePager
from warren.broker.model.queue.queue import Queue
from warren.broker.model.queue.queue_arguments import QueueArguments
from warren.broker.store.definitions.definitions_database import QueueRow

if TYPE_CHECKING:
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.vhost.declarations import Declarations

DELAYED_PREFIX: Final = b"amq.delayed."
EXCHANGE_KEYS_PREFIX: Final = b"amq.deduplication.exchange."
QUEUE_KEYS_PREFIX: Final = b"amq.deduplication.queue."
"""Prefix of the internal queues with the deduplication keys of queues. Clients cannot declare such a name."""
PREFIXES: Final = (DELAYED_PREFIX, EXCHANGE_KEYS_PREFIX, QUEUE_KEYS_PREFIX)


def split_rows(rows: list[QueueRow]) -> tuple[list[QueueRow], dict[bytes, QueueRow]]:
    """Split stored queues into a list of the queues of clients, and a dict of the internal ones by name.

    The internal queues hold delayed messages or deduplication keys.

    :param rows: the queues of a virtual host in the definitions database.
    """
    return (
        [row for row in rows if not row.name.startswith(PREFIXES)],
        {row.name: row for row in rows if row.name.startswith(PREFIXES)},
    )


class InternalQueues:
    """Internal queues of one virtual host, each made with the exchange or queue that needs it and deleted with it."""

    def __init__(self, declarations: Declarations) -> None:
        self.declarations = declarations
        self.stored: dict[bytes, QueueRow] = {}
        """Internal queues from before a restart whose exchange or queue is not restored yet, by name."""

    def add_for_exchange(self, exchange: Exchange, rule: DeduplicationRule | None) -> None:
        """Make the internal queues of a new exchange: for its delayed messages, and for its deduplication keys.

        An exchange that does not delay or deduplicate needs none.

        :param rule: its deduplication settings; None if it does not deduplicate.
        """
        if exchange.is_delayed:
            name = DELAYED_PREFIX + exchange.name
            queue = self._make(name, exchange.durable, QueueArguments(message_ttl=0))
            queue.delayed_exchange = exchange
            # As in RabbitMQ's plugin: whether it survives a restart after its delay, its next queue decides.
            queue.stores_all_messages = True
            exchange.delay_queue = queue
        if rule is not None:
            exchange.window = self._make_window(EXCHANGE_KEYS_PREFIX + exchange.name, exchange.durable, rule)

    def add_for_queue(self, queue: Queue) -> None:
        """Make the internal queue for the deduplication keys of a new queue, if the queue deduplicates."""
        rule = queue.declared_arguments.deduplication
        if rule is not None:
            queue.window = self._make_window(QUEUE_KEYS_PREFIX + queue.name, queue.durable, rule)

    def remove_for(self, owner: Exchange | Queue) -> None:
        """Delete the internal queues of an exchange or a queue that is being deleted."""
        window = owner.window
        if window is not None:
            owner.window = None
            self.declarations.vhost.window_count -= 1
            self._delete(window.queue)
        if not isinstance(owner, Queue) and owner.delay_queue is not None:
            self._delete(owner.delay_queue)
            owner.delay_queue = None

    def delete_orphans(self) -> None:
        """Delete the stored internal queues whose exchange or queue was not restored."""
        definitions = self.declarations.definitions
        for name in self.stored:
            if definitions is not None:
                definitions.delete_queue(self.declarations.vhost.name, name)
        self.stored = {}

    def _make_window(self, name: bytes, durable: bool, rule: DeduplicationRule) -> DeduplicationWindow:
        queue = self._make(name, durable, QueueArguments(max_length=rule.size, message_ttl=rule.ttl))
        window = DeduplicationWindow(rule, queue)
        queue.stored_window = window
        self.declarations.vhost.window_count += 1
        return window

    def _make(self, name: bytes, durable: bool, arguments: QueueArguments) -> Queue:
        """Make an internal queue.

        If one of this name was stored before a restart, the new one takes over its messages in the log.

        :param name: prefix of the purpose (delays or deduplication keys), and name of the exchange or queue.
        :param arguments: limits on the number and age of the messages.
        """
        declarations = self.declarations
        vhost, definitions = declarations.vhost, declarations.definitions
        stored = durable and definitions is not None
        row = self.stored.pop(name, None)
        incarnation = row.incarnation if row is not None else declarations.new_incarnation(stored)
        queue = Queue(vhost, name, durable, False, None, b"", arguments, incarnation)
        if name.startswith(DELAYED_PREFIX):
            queue.ready = DelayedMessages()
        if stored and vhost.log is not None:
            queue.log = vhost.log
            queue.queue_log = vhost.log.queue(incarnation)
            queue.attach_pager(QueuePager(vhost.log, queue.queue_log, name))
            if row is None:
                assert definitions is not None
                definitions.put(QueueRow(vhost.name, name, incarnation, False, b""))
        vhost.internal_queues[name] = queue
        return queue

    def _delete(self, queue: Queue) -> None:
        declarations = self.declarations
        vhost = declarations.vhost
        del vhost.internal_queues[queue.name]
        queue.mark_deleted()
        if queue.queue_log is not None:
            assert vhost.log is not None
            if declarations.definitions is not None:
                declarations.definitions.delete_queue(vhost.name, queue.name)
            vhost.log.drop_queue(queue.queue_log)
