"""Queues that no client can name: what a delayed exchange holds back, and the keys in the windows of deduplication.

Like any queue they are stored and recovered.
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

HELD: Final = b"amq.delayed."
KEYS_OF_EXCHANGE: Final = b"amq.deduplication.exchange."
KEYS_OF_QUEUE: Final = b"amq.deduplication.queue."
"""How their names begin, as operators see them. No client can declare such a name."""
NAMES: Final = (HELD, KEYS_OF_EXCHANGE, KEYS_OF_QUEUE)


def equip_exchange(topology: Declarations, exchange: Exchange, rule: DeduplicationRule | None) -> None:
    """Make what an exchange keeps: the messages that it delays, the keys that it has seen."""
    if exchange.is_delayed:
        queue = _make(topology, HELD + exchange.name, exchange.durable, QueueArguments(message_ttl=0))
        queue.delayed_exchange = exchange
        exchange.delay_queue = queue
    if rule is not None:
        exchange.window = _window(topology, KEYS_OF_EXCHANGE + exchange.name, exchange.durable, rule)


def equip_queue(topology: Declarations, queue: Queue) -> None:
    """Make what a queue keeps that deduplicates."""
    rule = queue.declared_arguments.deduplication
    if rule is not None:
        queue.window = _window(topology, KEYS_OF_QUEUE + queue.name, queue.durable, rule)


def let_go(topology: Declarations, owner: Exchange | Queue) -> None:
    """The exchange or the queue is deleted, and what it kept vanishes."""
    window = owner.window
    if window is not None:
        owner.window = None
        topology.vhost.window_count -= 1
        _drop(topology, window.queue)
    if not isinstance(owner, Queue) and owner.delay_queue is not None:
        _drop(topology, owner.delay_queue)
        owner.delay_queue = None


def split_hidden(rows: list[QueueRow]) -> tuple[list[QueueRow], dict[bytes, QueueRow]]:
    """The queues that clients declared, and the hidden ones by name."""
    return (
        [row for row in rows if not row.name.startswith(NAMES)],
        {row.name: row for row in rows if row.name.startswith(NAMES)},
    )


def forget_orphans(topology: Declarations) -> None:
    """What was hidden before a restart and belongs to nobody any more: its owner was deleted."""
    for name in topology.stored_internal_queues:
        if topology.definitions is not None:
            topology.definitions.delete_queue(topology.vhost.name, name)
    topology.stored_internal_queues = {}


def _window(
    topology: Declarations, name: bytes, durable: bool, rule: DeduplicationRule
) -> DeduplicationWindow:
    queue = _make(topology, name, durable, QueueArguments(max_length=rule.size, message_ttl=rule.ttl))
    window = DeduplicationWindow(rule, queue)
    queue.stored_window = window
    topology.vhost.window_count += 1
    return window


def _make(topology: Declarations, name: bytes, durable: bool, arguments: QueueArguments) -> Queue:
    """A hidden queue; the one of this name before a restart, if there was one."""
    vhost, definitions = topology.vhost, topology.definitions
    stored = durable and definitions is not None
    before = topology.stored_internal_queues.pop(name, None)
    number = before.incarnation if before is not None else topology.new_incarnation(stored)
    queue = Queue(vhost, name, durable, False, None, b"", arguments, number)
    if name.startswith(HELD):
        queue.ready = DelayedMessages()
    if stored and vhost.log is not None:
        queue.log = vhost.log
        queue.queue_log = vhost.log.queue(number)
        queue.attach_pager(QueuePager(vhost.log, queue.queue_log, name))
        if before is None:
            assert definitions is not None
            definitions.put(QueueRow(vhost.name, name, number, False, b""))
    vhost.internal_queues[name] = queue
    return queue


def _drop(topology: Declarations, queue: Queue) -> None:
    vhost = topology.vhost
    del vhost.internal_queues[queue.name]
    queue.mark_deleted()
    if queue.queue_log is not None:
        assert topology.definitions is not None
        assert vhost.log is not None
        topology.definitions.delete_queue(vhost.name, queue.name)
        vhost.log.drop_queue(queue.queue_log)
