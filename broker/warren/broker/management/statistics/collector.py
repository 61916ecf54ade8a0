"""Collection of statistics: samples the counts of all queues, channels, connections and exchanges every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from warren.broker.connection.tcp_statistics import bytes_exchanged
from warren.broker.management import queue_counts
from warren.broker.management.statistics.series import COMPACT, LEVELS, NEWEST, TICK, Level, Series
from warren.broker.management.time_slices import run_in_slices
from warren.broker.model.message_counts import MessageCounts
from warren.broker.model.queue.backing_queue import BackingQueue

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.connection.broker_node import BrokerNode
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.queue.queue import Queue

logger = logging.getLogger(__name__)

Key = TypeVar("Key")
Kept = TypeVar("Kept")

LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
"""Gauges of queues, virtual hosts and the node, in the order of their columns."""
CLIENT_COUNTERS: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable")
"""Counters that only channels have, and sums over channels."""
DELIVERY_COUNTERS: Final = (
    "ack",
    "deliver",
    "deliver_get",
    "deliver_no_ack",
    "get",
    "get_empty",
    "get_no_ack",
    "redeliver",
)
QUEUE_COUNTERS: Final = ("publish", *DELIVERY_COUNTERS)
CHANNEL_COUNTERS: Final = (*CLIENT_COUNTERS, *DELIVERY_COUNTERS)
DISK_COUNTERS: Final = ("disk_reads", "disk_writes")
CHURN: Final = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
NODE_GAUGES: Final = ("mem_used", "disk_free", "fd_used", "sockets_used")
"""Gauges of the node; the first two in KiB, because a sample holds 32 bits."""
TRAFFIC: Final = ("recv_oct", "send_oct")
EXCHANGE_COUNTERS: Final = ("publish_in", "publish_out")
LOOKED_AT_ONCE: Final = 64
"""Objects of which one step finds out whether they are gone."""


def delivery_values(counts: MessageCounts) -> list[int]:
    """Return the values of DELIVERY_COUNTERS."""
    delivered, fetched = int(counts.delivered), int(counts.fetched)
    no_ack, fetched_no_ack = int(counts.delivered_no_ack), int(counts.fetched_no_ack)
    return [
        int(counts.acknowledged),
        delivered,
        delivered + no_ack + fetched + fetched_no_ack,
        no_ack,
        fetched,
        int(counts.fetched_empty),
        fetched_no_ack,
        int(counts.redelivered),
    ]


def channel_values(counts: MessageCounts) -> list[int]:
    """Return the values of CHANNEL_COUNTERS."""
    return [
        int(counts.published),
        int(counts.confirmed),
        int(counts.returned_unroutable),
        int(counts.dropped_unroutable),
        *delivery_values(counts),
    ]


class _Rest(NamedTuple):
    """Queue whose last sample was left out, because nothing had changed: its state then, and what sums need of it."""

    state: tuple[int, ...]
    lengths: tuple[int, int, int]
    reads: int
    writes: int


def _resting_state(queue: Queue) -> tuple[int, ...]:
    """Return numbers of which one changes with every sampled value of the queue; none if the queue never rests."""
    ready, counts = queue.ready, queue.counts
    if queue.scheduler.consumers or type(ready) is not BackingQueue or queue.held_back_count():
        return ()
    return (
        queue.next_sequence,
        ready.count,
        ready.resident,
        queue.unacked,
        counts.fetched,
        counts.fetched_no_ack,
        counts.fetched_empty,
        counts.given_back,
    )


class Collector:
    """Samples of one broker, by object. It costs nothing before `start`.

    All of it runs on the broker's event loop, in slices.
    """

    def __init__(self, node: BrokerNode, node_values: Callable[[], list[int]]) -> None:
        """Create a collector.

        :param node_values: returns the present values of NODE_GAUGES.
        """
        self._node = node
        self._node_values = node_values
        self._task: asyncio.Task[None] | None = None
        self._restored: dict[Queue, int] = {}
        """Messages that had arrived in queues before the broker started, where there were any."""
        self._resting: dict[Queue, _Rest] = {}
        self._present: list[int] = []
        """Numbers that change when objects come or go, as they were when objects that are gone were last forgotten."""
        self.queues: dict[Queue, Series] = {}
        self.channels: dict[Channel, Series] = {}
        self.connections: dict[ClientSession, Series] = {}
        self.exchanges: dict[Exchange, Series] = {}
        self.vhosts: dict[bytes, Series] = {}
        self.traffic: dict[bytes, Series] = {}
        """Values of TRAFFIC of each virtual host."""
        self.exchanged: dict[bytes, list[int]] = {}
        """Bytes that the connections of each virtual host have exchanged, closed ones up to their last sample."""
        self._counted: dict[ClientSession, list[int]] = {}
        """Bytes of each connection that are in `exchanged`."""
        self.totals = Series(len(LENGTHS), len(CHANNEL_COUNTERS) + 2)
        """Lengths and counters of the whole broker, then messages read from and written to disk."""
        self.node = Series(len(NODE_GAUGES), 0)
        """Use of memory, disk and descriptors."""
        self.churn = Series(0, len(CHURN))
        """Counters of objects that came and went."""
        self._offset = time.time() - node.loop.time()
        """Seconds from the clock of the loop to the wall clock at the start: a jump of the wall clock moves no sample."""
        self.tick = 0

    def start(self) -> None:
        """Begin to take samples."""
        for topology in self._node.vhosts.values():
            for queue in topology.vhost.queues.values():
                if queue.arrived():
                    self._restored[queue] = int(queue.arrived())
        self._task = self._node.loop.create_task(self._run(), name="warren-statistics")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def forget_samples(self) -> None:
        """Forget all samples, and begin anew with the next one."""
        self._resting.clear()
        self.queues.clear()
        self.channels.clear()
        self.connections.clear()
        self.exchanges.clear()
        self.vhosts.clear()
        self.traffic.clear()
        for series in (self.totals, self.node, self.churn):
            series.clear()

    def timestamp(self, tick: int) -> int:
        """Return the time of a tick, in milliseconds since 1970."""
        return round(tick * TICK * 1000)

    def now(self) -> int:
        """Return the present tick."""
        return int((self._node.loop.time() + self._offset) // TICK)

    async def _run(self) -> None:
        loop = self._node.loop
        while True:
            await asyncio.sleep(TICK - (loop.time() + self._offset) % TICK)
            try:
                await run_in_slices(self.sample_in_steps())
            except Exception:
                logger.exception("event=statistics.sample_failed")

    def queue_counts(self, queue: Queue) -> MessageCounts:
        """Return the message counts of a queue since the broker started."""
        counts = queue.message_counts()
        counts.published -= self._restored.get(queue, 0)
        return counts

    def churn_values(self) -> list[int]:
        """Return the values of CHURN."""
        churn = self._node.churn
        hosts = [self._node.virtual_hosts.deleted]
        hosts += [topology.vhost.totals for topology in self._node.vhosts.values()]
        return [
            churn.connections_opened,
            churn.connections_closed,
            churn.channels_opened,
            churn.channels_closed,
            sum(totals.queues_declared for totals in hosts),
            sum(totals.queues_created for totals in hosts),
            sum(totals.queues_deleted for totals in hosts),
        ]

    def sample_in_steps(self) -> Generator[None, None, None]:
        """Take one sample of everything; yields after each object."""
        tick = self.tick = self.now()
        node = self._node
        totals = [0] * (len(LENGTHS) + len(CHANNEL_COUNTERS) + 2)
        channels: dict[bytes, MessageCounts] = {}
        for session in list(node.connections):
            exchanged = bytes_exchanged(session.transport.get_extra_info("socket"))
            _record(self.connections, session, tick, exchanged, 0, NEWEST)
            self._add_traffic(session, exchanged)
            yield
            for channel in list(session.channels.values()):
                counts = channel.message_counts()
                channels.setdefault(channel.vhost.name, MessageCounts()).add(counts)
                _record(self.channels, channel, tick, channel_values(counts), 0, NEWEST)
                yield
        for name, topology in list(node.vhosts.items()):
            vhost = topology.vhost
            lengths = [0, 0, 0]
            for queue in list(vhost.queues.values()):
                rest = self._resting.get(queue)
                if rest is None or rest.state != _resting_state(queue):
                    rest = self._sample_queue(queue, tick)
                lengths[0] += rest.lengths[0]
                lengths[1] += rest.lengths[1]
                lengths[2] += rest.lengths[2]
                totals[-2] += rest.reads
                totals[-1] += rest.writes
                yield
            for exchange in list(vhost.exchanges.values()):
                _record(
                    self.exchanges, exchange, tick, [exchange.published_in, exchange.published_out], 0, NEWEST
                )
                yield
            sums = channels.get(name, MessageCounts())
            sums.add(vhost.totals.ended_channels)
            values = [*lengths, *channel_values(sums)]
            _record(self.vhosts, name, tick, values, len(LENGTHS))
            if name in self.exchanged:
                _record(self.traffic, name, tick, self.exchanged[name], 0)
            for index, value in enumerate(values):
                totals[index] += value
        # Counters of the whole broker go on when a virtual host is deleted.
        for index, value in enumerate(
            channel_values(node.virtual_hosts.deleted.ended_channels), len(LENGTHS)
        ):
            totals[index] += value
        self.totals.record(tick, totals)
        self.churn.record(tick, self.churn_values())
        self.node.record(tick, self._node_values())
        yield from self._forget_in_steps()

    def _sample_queue(self, queue: Queue, tick: int) -> _Rest:
        """Take a sample of a queue. If it is left out, the queue rests: it gets none before its state changes."""
        lengths = queue_counts.count_lengths(queue)
        counts = self.queue_counts(queue)
        values = [*lengths, int(counts.published), *delivery_values(counts)]
        state = _resting_state(queue)
        found = _Rest(state, lengths, queue_counts.disk_reads(queue), queue_counts.disk_writes(queue))
        if _record(self.queues, queue, tick, values, len(LENGTHS), COMPACT) or not state:
            self._resting.pop(queue, None)
        else:
            self._resting[queue] = found
        return found

    def _add_traffic(self, session: ClientSession, exchanged: list[int]) -> None:
        """Add what a connection has exchanged since the last sample to the bytes of its virtual host."""
        if not session.vhost:
            return
        counted = self._counted.get(session, [0, 0])
        sums = self.exchanged.setdefault(session.vhost, [0, 0])
        for index, value in enumerate(exchanged):
            # A closed socket has no counters any more.
            sums[index] += max(value - counted[index], 0)
        self._counted[session] = [max(pair) for pair in zip(exchanged, counted, strict=True)]

    def _forget_in_steps(self) -> Generator[None, None, None]:
        """Forget objects that are gone; yields after each small step."""
        node = self._node
        present = [len(node.connections), len(node.vhosts), *self.churn_values()]
        if present != self._present:
            self._present = present
            yield from _keep(self.connections, node.connections.__contains__)
            yield from _keep(self._counted, node.connections.__contains__)
            yield from _keep(
                self.channels, lambda each: each.connection.channels.get(int(each.number)) is each
            )
            yield from _keep(self.queues, lambda each: not each.deleted)
            yield from _keep(self._resting, lambda each: not each.deleted)
            yield from _keep(self._restored, lambda each: not each.deleted)
        yield from _keep(self.vhosts, node.vhosts.__contains__)
        yield from _keep(self.traffic, node.vhosts.__contains__)
        yield from _keep(self.exchanged, node.vhosts.__contains__)
        exchanges: set[Exchange] = set()
        for topology in list(node.vhosts.values()):
            for some in _portions(topology.vhost.exchanges.values()):
                exchanges.update(some)
                yield
        yield from _keep(self.exchanges, exchanges.__contains__)


def _portions(objects: Iterable[Key]) -> Generator[list[Key], None, None]:
    """Yield objects in lists of LOOKED_AT_ONCE. They may come and go meanwhile."""
    known = list(objects)
    for start in range(0, len(known), LOOKED_AT_ONCE):
        yield known[start : start + LOOKED_AT_ONCE]


def _keep(samples: dict[Key, Kept], is_present: Callable[[Key], bool]) -> Generator[None, None, None]:
    """Remove the entries of objects that are gone; yields after each small step."""
    for some in _portions(samples):
        for each in some:
            if not is_present(each):
                samples.pop(each, None)
        yield


def _record(
    kept: dict[Key, Series],
    key: Key,
    tick: int,
    values: list[int],
    gauges: int,
    levels: tuple[Level, ...] = LEVELS,
) -> bool:
    """Add a sample, unless nothing has changed, and return whether it was added.

    An object that was always at rest has no series.

    :param gauges: number of the values that are gauges.
    """
    series = kept.get(key)
    if series is None:
        if not any(values):
            return False
        series = kept[key] = Series(gauges, len(values) - gauges, levels)
    elif series.adds_nothing(values):
        return False
    series.record(tick, values)
    return True
