"""Values of the metrics of queues, channels, connections and exchanges, and exact sums of their counters.

Everything is read in steps, between which clients are served. A sum of counters never falls, although channels end and
queues are deleted meanwhile: their counts then go to the totals of the virtual host, and are taken out of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from warren.broker.connection.tcp_statistics import TCP_INFO, bytes_received
from warren.broker.http_api.prometheus.exposition import Family, Number, label_text
from warren.broker.http_api.prometheus.metric_groups import COUNTER, GROUPS, Metric, MetricGroup
from warren.broker.management.items.connection_items import CHANNEL_ITEMS, CONNECTION_ITEMS
from warren.broker.management.items.queue_items import QUEUE_ITEMS, UNACKED_ITEMS, QueueListing
from warren.broker.management.json_values import channel_id, connection_id, name_text
from warren.broker.management.queue_counts import UnackedCounts, count_unacked_in_steps
from warren.broker.management.request import Json
from warren.broker.model.message_counts import MessageCounts
from warren.broker.model.vhost.vhost_totals import DeathCause, VirtualHostTotals

if TYPE_CHECKING:
    from warren.broker.channel.channel import Channel
    from warren.broker.connection.client_session import ClientSession
    from warren.broker.management.management import Management
    from warren.broker.model.exchange.exchange import Exchange
    from warren.broker.model.queue.queue import Queue

QUEUE_TYPES: Final = ("classic", "quorum", "stream")


class Row(NamedTuple):
    """Values of one object, in the order of the metrics that were asked for."""

    labels: str
    values: tuple[Number | None, ...]


class Selection(NamedTuple):
    """Objects of `/metrics/detailed`.

    :ivar vhosts: names of the virtual hosts; None for all.
    :ivar matches_queue: returns whether a queue of a name is chosen.
    """

    vhosts: frozenset[str] | None = None
    matches_queue: Callable[[str], bool] = lambda _: True

    def has_vhost(self, name: bytes) -> bool:
        return self.vhosts is None or name_text(name) in self.vhosts


class CounterSums(NamedTuple):
    """Sums since the broker started.

    :ivar channels: messages of all channels.
    :ivar queues: messages of all queues, by their type.
    :ivar publishers: open channels that have published.
    :ivar consumers: consumers of all queues.
    :ivar queue_count: queues that exist.
    :ivar dead_letters: messages that have died.
    :ivar received: bytes that the sockets of all clients have received; None if the system does not count them.
    """

    channels: MessageCounts
    queues: dict[str, MessageCounts]
    publishers: int
    consumers: int
    queue_count: int
    dead_letters: dict[DeathCause, int]
    received: int | None


class ObjectMetrics:
    """Reader of the metrics of one broker's objects."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._node = management.node

    def queues(self) -> list[Queue]:
        """Return all queues that clients can name."""
        return [queue for topology in self._node.vhosts.values() for queue in topology.vhost.queues.values()]

    def sums_in_steps(self) -> Generator[None, None, CounterSums]:
        """Return the sums of all counters of messages, as the value of a generator."""
        sums = MessageCounts()
        by_type = {kind: MessageCounts() for kind in QUEUE_TYPES}
        channels: dict[Channel, MessageCounts] = {}
        publishers = consumers = 0
        received: dict[ClientSession, int] = {}
        for session in list(self._node.connections):
            count = bytes_received(session.transport.get_extra_info("socket"))
            if session.vhost and count is not None:
                received[session] = count
            for channel in list(session.channels.values()):
                counts = channels[channel] = channel.message_counts()
                sums.add(counts)
                publishers += int(counts.published > 0)
            yield
        queues: dict[Queue, MessageCounts] = {}
        for queue in self.queues():
            if not queue.deleted:
                counts = queues[queue] = queue.message_counts()
                by_type[queue.declared_arguments.type_name].add(counts)
                consumers += len(queue.consumers)
            yield
        # From here on in one step: those that have ended meanwhile are among the totals.
        for channel, counts in channels.items():
            if channel.connection.channels.get(int(channel.number)) is not channel:
                _subtract(sums, counts)
        for queue, counts in queues.items():
            if queue.deleted:
                _subtract(by_type[queue.declared_arguments.type_name], counts)
        totals = [self._node.virtual_hosts.deleted]
        totals += [topology.vhost.totals for topology in self._node.vhosts.values()]
        dead = VirtualHostTotals()
        for each in totals:
            dead.add(each)
            sums.add(each.ended_channels)
            for kind, counts in each.deleted_queues.items():
                by_type[kind].add(counts)
        # Those of ended connections are in the churn, with more bytes than above.
        total = self._node.churn.bytes_received
        total += sum(count for session, count in received.items() if session in self._node.connections)
        found = total if TCP_INFO is not None else None
        return CounterSums(sums, by_type, publishers, consumers, len(queues), dead.dead_letters, found)

    def aggregated_in_steps(self) -> Generator[None, None, list[Family]]:
        """Return the sums of all gauges, without labels, as the value of a generator.

        Those that need each unacknowledged message to be counted are left out, because an answer would take long.
        """
        found: list[Family] = []
        for of in ("queue", "channel", "connection"):
            metrics = [
                metric
                for metric in metrics_of(GROUPS, of)
                if metric.kind != COUNTER and metric.source not in UNAGGREGATED
            ]
            rows = yield from self._rows(of, metrics, Selection())
            sums = [0.0] * len(metrics)
            for index, row in enumerate(rows):
                for at, value in enumerate(row.values):
                    sums[at] += value or 0
                if index % 100 == 99:
                    yield
            for metric, total in zip(metrics, sums, strict=True):
                found.append(Family(f"rabbitmq_{metric.name}", metric.kind, metric.help, [("", int(total))]))
        return found

    def families_in_steps(
        self, prefix: str, groups: Sequence[MetricGroup], selection: Selection
    ) -> Generator[None, None, list[Family]]:
        """Return a family for each metric of groups, with a sample for each object, as the value of a generator."""
        found: list[Family] = []
        for of in ("queue", "channel", "connection", "exchange"):
            metrics = metrics_of(groups, of)
            if metrics:
                rows = yield from self._rows(of, metrics, selection)
                found += [
                    Family(f"{prefix}{metric.name}", metric.kind, metric.help, _Column(rows, at))
                    for at, metric in enumerate(metrics)
                ]
        return found

    def queue_info_in_steps(self, prefix: str, selection: Selection) -> Generator[None, None, Family]:
        """Return the family that names the type of each queue, as the value of a generator."""
        rows: list[Row] = []
        for queue in self._chosen(selection):
            if not queue.deleted and selection.matches_queue(name_text(queue.name)):
                kind = f"rabbit_{queue.declared_arguments.type_name}_queue"
                labels = f"{_queue_labels(queue)},{label_text(queue_type=kind, membership='leader')}"
                rows.append(Row(labels, (1,)))
            yield
        return Family(
            f"{prefix}queue_info", "gauge", "Always 1; the labels describe the queue.", _Column(rows, 0)
        )

    # -- rows

    def _chosen(self, selection: Selection) -> list[Queue]:
        return [
            queue
            for name, topology in self._node.vhosts.items()
            if selection.has_vhost(name)
            for queue in topology.vhost.queues.values()
        ]

    def _rows(
        self, of: str, metrics: Sequence[Metric], selection: Selection
    ) -> Generator[None, None, list[Row]]:
        sources = [metric.source for metric in metrics]
        if of == "queue":
            return (yield from self._queue_rows(sources, selection))
        rows: list[Row] = []
        for row in self._other_rows(of, sources, selection):
            if row is not None:
                rows.append(row)
            yield
        return rows

    def _queue_rows(self, sources: Sequence[str], selection: Selection) -> Generator[None, None, list[Row]]:
        unacked: dict[Queue, UnackedCounts] = {}
        if not UNACKED_ITEMS.isdisjoint(sources):
            unacked = yield from count_unacked_in_steps(list(self._node.connections))
        listing = QueueListing(unacked, self._management.utilisation)
        counted = not COUNTED.isdisjoint(sources)
        rows: list[Row] = []
        for queue in self._chosen(selection):
            if not queue.deleted and selection.matches_queue(name_text(queue.name)):
                counts = queue.message_counts() if counted else None
                values = [
                    int(getattr(counts, source))
                    if source in COUNTED
                    else _number(QUEUE_ITEMS[source](queue, listing))
                    for source in sources
                ]
                rows.append(Row(_queue_labels(queue), tuple(values)))
            yield
        return rows

    def _other_rows(self, of: str, sources: Sequence[str], selection: Selection) -> Iterable[Row | None]:
        """Yield the rows of channels, connections or exchanges; None for a step without a row."""
        if of == "exchange":
            for name, topology in list(self._node.vhosts.items()):
                if selection.has_vhost(name):
                    for exchange in list(topology.vhost.exchanges.values()):
                        values = tuple(int(getattr(exchange, source)) for source in sources)
                        # As in RabbitMQ, an exchange has samples from its first message on.
                        yield Row(exchange_labels(name, exchange), values) if any(values) else None
            return
        for session in list(self._node.connections):
            if of == "connection":
                yield _connection_row(session, sources) if session.vhost else None
                continue
            yield None
            for channel in list(session.channels.values()):
                yield _channel_row(channel, sources)


def metrics_of(groups: Iterable[MetricGroup], of: str) -> list[Metric]:
    """Return the metrics of groups for one kind of objects, each once."""
    return list(dict.fromkeys(metric for group in groups if group.of == of for metric in group.metrics))


COUNTED: Final = frozenset(name for name in dir(MessageCounts) if not name.startswith("_") and name != "add")
"""Sources that are attributes of `MessageCounts`."""
UNAGGREGATED: Final = UNACKED_ITEMS | {"consumer_capacity", "consumer_utilisation", "head_message_timestamp"}
"""Sources whose sums are expensive, or mean nothing."""


def _subtract(counts: MessageCounts, other: MessageCounts) -> None:
    for name in COUNTED:
        setattr(counts, name, getattr(counts, name) - getattr(other, name))


def _connection_row(session: ClientSession, sources: Sequence[str]) -> Row:
    values = [_number(CONNECTION_ITEMS[source](session)) for source in sources]
    return Row(label_text(channel=connection_id(session)), tuple(values))


def _channel_row(channel: Channel, sources: Sequence[str]) -> Row:
    counts = channel.message_counts()
    values = [
        int(getattr(counts, source)) if source in COUNTED else _number(CHANNEL_ITEMS[source](channel))
        for source in sources
    ]
    return Row(label_text(channel=channel_id(channel)), tuple(values))


def _queue_labels(queue: Queue) -> str:
    return label_text(vhost=name_text(queue.vhost.name), queue=name_text(queue.name))


def exchange_labels(vhost: bytes, exchange: Exchange, **more: str) -> str:
    """Return the labels of an exchange."""
    return label_text(vhost=name_text(vhost), exchange=name_text(exchange.name), **more)


class _Column:
    """Samples of one metric; a view of rows, because ten thousand queues have many."""

    def __init__(self, rows: Sequence[Row], at: int) -> None:
        self._rows = rows
        self._at = at

    def __iter__(self) -> Generator[tuple[str, Number | None], None, None]:
        at = self._at
        for row in self._rows:
            yield row.labels, row.values[at]


def _number(value: Json) -> Number | None:
    return value if isinstance(value, int | float) else None
