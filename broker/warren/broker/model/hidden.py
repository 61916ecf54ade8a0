"""Queues that no client can name: what a delayed exchange holds back. Like any queue they are stored, and recovered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.broker.model.arguments import QueueArguments
from warren.broker.model.delays import HIDDEN
from warren.broker.model.due import DueBacking
from warren.broker.model.queue import Queue
from warren.broker.model.shelf import Shelf
from warren.broker.store.definitions import QueueRow

if TYPE_CHECKING:
    from warren.broker.model.exchange import Exchange
    from warren.broker.model.topology import Topology


def hold_back(topology: Topology, exchange: Exchange, incarnation: int = 0) -> None:
    """Make the queue for what an exchange holds back.

    :param incarnation: the one that it had before a restart; 0 if it is new.
    """
    vhost, definitions = topology.vhost, topology.definitions
    stored = exchange.durable and definitions is not None
    name = HIDDEN + exchange.name
    number = incarnation or topology.new_incarnation(stored)
    queue = Queue(vhost, name, exchange.durable, False, None, b"", QueueArguments(message_ttl=0), number)
    queue.held_for = exchange
    queue.waiting = DueBacking()
    if stored and vhost.log is not None:
        queue.log = vhost.log
        queue.records = vhost.log.queue(number)
        queue.put_on(Shelf(vhost.log, queue.records, name))
        if not incarnation:
            assert definitions is not None
            definitions.put(QueueRow(vhost.name, name, number, False, b""))
    vhost.hidden[name] = queue
    exchange.held = queue


def let_go(topology: Topology, exchange: Exchange) -> None:
    """The exchange is deleted, and what it holds back vanishes."""
    queue = exchange.held
    if queue is None:
        return
    exchange.held = None
    vhost = topology.vhost
    del vhost.hidden[queue.name]
    queue.ended()
    if queue.records is not None:
        assert topology.definitions is not None
        assert vhost.log is not None
        topology.definitions.delete_queue(vhost.name, queue.name)
        vhost.log.drop(queue.records)


def split_hidden(rows: list[QueueRow]) -> tuple[list[QueueRow], dict[bytes, QueueRow]]:
    """The queues that clients declared, and the hidden ones by name."""
    return (
        [row for row in rows if not row.name.startswith(HIDDEN)],
        {row.name: row for row in rows if row.name.startswith(HIDDEN)},
    )
