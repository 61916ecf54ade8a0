"""Answers of the Prometheus endpoint: which families each path has."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from warren.broker.connection.flow_control import DISK_RESOURCE, MEMORY_RESOURCE
from warren.broker.http_api.prometheus.exposition import (
    AnyFamily,
    Family,
    HistogramFamily,
    Number,
    Sample,
    label_text,
)
from warren.broker.http_api.prometheus.metric_groups import (
    AGGREGATED_EXCHANGE_SOURCES,
    COUNTER,
    GAUGE,
    GROUPS,
    PROTOCOL_COUNTERS,
    QUEUE_TYPE_COUNTERS,
)
from warren.broker.http_api.prometheus.object_metrics import (
    COUNTED,
    CounterSums,
    ObjectMetrics,
    Selection,
    exchange_labels,
)
from warren.broker.management.items.queue_items import NODE
from warren.broker.management.json_values import name_text
from warren.broker.management.statistics.collector import delivery_values
from warren.broker.management.verbs.health import own_version
from warren.broker.model.message_counts import MessageCounts
from warren.broker.model.rabbitmq_versions import BEHAVIOUR_BY_VERSION
from warren.broker.model.vhost.vhost_totals import CONFIRMED, DeathCause
from warren.core.operating_system.descriptors import count_open_descriptors

if TYPE_CHECKING:
    from warren.broker.management.management import Management
    from warren.broker.management.statistics.collector import Collector
    from warren.broker.model.capture.message_spans import StepQueue
    from warren.broker.model.memory_budget import MemoryBudget
    from warren.broker.model.message_counts import SizeCounts
    from warren.broker.store.log.log import Log
    from warren.broker.store.log.write_statistics import Histogram

PREFIX: Final = "rabbitmq_"
DETAILED_PREFIX: Final = "rabbitmq_detailed_"
CLUSTER_PREFIX: Final = "rabbitmq_cluster_"
PROTOCOL: Final = "amqp091"
QUEUE_GROUPS: Final = frozenset({"queue_coarse_metrics", "queue_consumer_count", "queue_metrics"})
"""Groups of `/metrics/detailed` with which `queue_info` comes."""


class Exporter:
    """Metrics of one broker. Each method is a generator that yields between small steps, and returns families."""

    def __init__(self, management: Management, collector: Collector) -> None:
        self._management = management
        self._node = management.node
        self._collector = collector
        self._objects = ObjectMetrics(management)
        self._started = time.time() - (time.monotonic() - management.started)

    @property
    def vhosts(self) -> Collection[bytes]:
        """Names of the virtual hosts."""
        return self._node.vhosts

    def aggregated(self) -> Generator[None, None, list[AnyFamily]]:
        """Collect `/metrics`: sums over all objects."""
        sums = yield from self._objects.sums_in_steps()
        gauges = yield from self._objects.aggregated_in_steps()
        counters = [
            _one(f"{PREFIX}{metric.name}", COUNTER, metric.help, int(getattr(sums.channels, source)))
            for group in GROUPS
            for metric in group.metrics
            if metric.kind == COUNTER
            and (source := AGGREGATED_EXCHANGE_SOURCES.get(metric.source, metric.source)) in COUNTED
        ]
        return [
            *self._node_families(PREFIX),
            *gauges,
            *counters,
            *self._whole(sums),
            *self._shovel_families(),
            *self._identity("aggregated"),
        ]

    def per_object(self) -> Generator[None, None, list[AnyFamily]]:
        """Collect `/metrics/per-object`: a sample for each object."""
        sums = yield from self._objects.sums_in_steps()
        families = yield from self._objects.families_in_steps(PREFIX, GROUPS, Selection())
        families.append((yield from self._objects.queue_info_in_steps(PREFIX, Selection())))
        return [
            *self._node_families(PREFIX),
            *families,
            *self._whole(sums),
            *self._shovel_families(),
            *self._identity("per-object"),
        ]

    def detailed(self, names: Collection[str], selection: Selection) -> Generator[None, None, list[Family]]:
        """Collect `/metrics/detailed`: the groups that a request names.

        :param names: names of groups; unknown ones are ignored, as in RabbitMQ.
        """
        families = self._node_families(DETAILED_PREFIX, names)
        # The consumers are among the queue_metrics.
        groups = [group for group in GROUPS if group.name in names]
        families += yield from self._objects.families_in_steps(DETAILED_PREFIX, groups, selection)
        families += yield from self._cluster_families(names)
        if not QUEUE_GROUPS.isdisjoint(names):
            families.append((yield from self._objects.queue_info_in_steps(DETAILED_PREFIX, selection)))
        return [*families, *self._identity("detailed")]

    # -- the node

    def _node_families(self, prefix: str, names: Collection[str] | None = None) -> list[Family]:
        """Return the families about the node.

        :param names: groups to return; None for all.
        """
        management, resources = self._management, self._management.resources
        churn = self._node.churn
        groups: dict[str, list[Family]] = {}
        if names is None or "connection_churn_metrics" in names:
            groups["connection_churn_metrics"] = [
                _one(f"{prefix}{name}", COUNTER, text, value)
                for (name, text), value in zip(CHURN_FAMILIES, self._collector.churn_values(), strict=True)
            ]
        if names is None or "node_coarse_metrics" in names:
            groups["node_coarse_metrics"] = [
                _one(
                    f"{prefix}process_open_fds",
                    GAUGE,
                    "File descriptors that the process has open.",
                    count_open_descriptors(),
                ),
                _one(
                    f"{prefix}process_resident_memory_bytes",
                    GAUGE,
                    "Memory of the process that is resident.",
                    resources.memory_used,
                ),
                _one(
                    f"{prefix}disk_space_available_bytes",
                    GAUGE,
                    "Free bytes on the disk of the data folder; missing without a data folder.",
                    resources.disk_free,
                ),
            ]
        if names is None or "node_metrics" in names:
            groups["node_metrics"] = [
                _one(
                    f"{prefix}process_max_fds",
                    GAUGE,
                    "File descriptors that the process may have open.",
                    management.descriptors.limit,
                ),
                _one(
                    f"{prefix}resident_memory_limit_bytes",
                    GAUGE,
                    "Resident memory above which publishers are blocked; missing without a limit.",
                    resources.memory_limit,
                ),
                _one(
                    f"{prefix}disk_space_available_limit_bytes",
                    GAUGE,
                    "Free disk space below which publishers are blocked.",
                    resources.disk_free_limit,
                ),
                _one(
                    f"{prefix}erlang_uptime_seconds",
                    GAUGE,
                    "Seconds since the broker started. The name is RabbitMQ's; there is no Erlang.",
                    round(time.monotonic() - management.started, 3),
                ),
            ]
        if names is None or "auth_attempt_metrics" in names:
            attempts = {
                protocol: (succeeded, churn.logins_refused[protocol])
                for protocol, succeeded in churn.logins.items()
            }
            for name, text, value in (
                ("auth_attempts_total", "Logins that were attempted.", sum),
                ("auth_attempts_succeeded_total", "Logins that succeeded.", _first),
                ("auth_attempts_failed_total", "Logins that were refused.", _second),
            ):
                samples = [(label_text(protocol=key), value(pair)) for key, pair in attempts.items()]
                groups.setdefault("auth_attempt_metrics", []).append(
                    Family(f"{prefix}{name}", COUNTER, text, samples)
                )
        log = self._node.log
        if log is not None and (names is None or "node_persister_metrics" in names):
            groups["node_persister_metrics"] = _disk_families(prefix, log)
        return [family for group in groups.values() for family in group]

    def _cluster_families(self, names: Collection[str]) -> Generator[None, None, list[Family]]:
        """Return the families of `/metrics/detailed` about virtual hosts and exchanges. `vhost` does not filter them."""
        found: list[Family] = []
        if "vhost_status" in names:
            samples = [(label_text(vhost=name_text(name)), 1) for name in self._node.vhosts]
            found.append(
                Family(f"{CLUSTER_PREFIX}vhost_status", GAUGE, "Always 1: the virtual host runs.", samples)
            )
        wanted = {"exchange_bindings", "exchange_names"} & set(names)
        if not wanted:
            return found
        bindings: list[Sample] = []
        exchanges: list[Sample] = []
        for name, topology in list(self._node.vhosts.items()):
            for exchange in list(topology.vhost.exchanges.values()):
                if exchange.name and not exchange.internal:
                    labels = exchange_labels(name, exchange, type=name_text(exchange.kind))
                    bindings.append((labels, len(exchange.bindings)))
                    exchanges.append((labels, 1))
                yield
        if "exchange_bindings" in wanted:
            found.append(
                Family(f"{CLUSTER_PREFIX}exchange_bindings", GAUGE, "Bindings from the exchange.", bindings)
            )
        if "exchange_names" in wanted:
            found.append(
                Family(f"{CLUSTER_PREFIX}exchange_name", GAUGE, "Always 1: the exchange exists.", exchanges)
            )
        return found

    # -- the broker as a whole

    def _whole(self, sums: CounterSums) -> list[AnyFamily]:
        """Return totals, global counters, alarms, and what only Warren has."""
        node = self._node
        connections = [each for each in node.connections if each.vhost]
        alarms = set(node.flow.alarms.values())
        return [
            _one(
                "process_start_time_seconds",
                GAUGE,
                "Time at which the broker started, since 1970.",
                self._started,
            ),
            _one("rabbitmq_connections", GAUGE, "Open connections.", len(connections)),
            _one(
                "rabbitmq_channels", GAUGE, "Open channels.", sum(len(each.channels) for each in connections)
            ),
            _one("rabbitmq_consumers", GAUGE, "Consumers of all queues.", sums.consumers),
            _one("rabbitmq_queues", GAUGE, "Queues and streams.", sums.queue_count),
            *_global(sums),
            *_dead_letter_families(sums.dead_letters),
            _histogram(
                "rabbitmq_message_size_bytes",
                "Size of messages received from publishers.",
                node.message_sizes,
                label_text(protocol=PROTOCOL),
            ),
            _one(
                "rabbitmq_unreachable_cluster_peers_count",
                GAUGE,
                "Always 0: there are no other nodes.",
                0,
            ),
            _one(
                "rabbitmq_alarms_free_disk_space_watermark",
                "untyped",
                "1 while the alarm for free disk space is raised, else 0.",
                int(DISK_RESOURCE in alarms),
            ),
            _one(
                "rabbitmq_alarms_memory_used_watermark",
                "untyped",
                "1 while the alarm for memory is raised, else 0.",
                int(MEMORY_RESOURCE in alarms),
            ),
            *self._own(),
            _one(
                "warren_received_bytes_total",
                COUNTER,
                "Bytes that the sockets of AMQP clients have received; missing where the system does not count them.",
                sums.received,
            ),
        ]

    def _own(self) -> list[AnyFamily]:
        """Return the families that only Warren has."""
        node, management = self._node, self._management
        admission, stalls, delays, log = (
            management.admission,
            management.stalls,
            management.disk_delays,
            node.log,
        )
        found: list[AnyFamily] = [
            _one("warren_sockets", GAUGE, "Sockets of AMQP clients.", admission.sockets),
            _one(
                "warren_sockets_limit", GAUGE, "Sockets that AMQP clients may have.", admission.most_sockets
            ),
            _one(
                "warren_unopened_connections",
                GAUGE,
                "Sockets of clients that have not opened their connection yet.",
                admission.unopened,
            ),
            _one(
                "warren_accepting_connections",
                GAUGE,
                "1 while connections are accepted, 0 while a bound keeps further clients waiting.",
                int(admission.accepting),
            ),
            _one(
                "warren_send_timeouts_total",
                COUNTER,
                "Connections that were ended because their clients had stopped reading.",
                node.churn.send_timeouts,
            ),
            _one(
                "warren_paging_behind",
                GAUGE,
                "1 while messages are published faster than they can be paged out, else 0.",
                int(node.flow.paging_behind),
            ),
        ]
        if log is not None:
            found += [
                _one(
                    "warren_log_unwritten_bytes",
                    GAUGE,
                    "Bytes that wait to be written to the log.",
                    int(log.unwritten_bytes),
                ),
                _one(
                    "warren_log_batches_total",
                    COUNTER,
                    "Batches of the log (group commits) that are on disk.",
                    int(log.synced),
                ),
                *_log_families(log),
            ]
        if management.memory is not None:
            found += _memory_families(management.memory)
        if delays is not None:
            found += [
                _one(
                    "warren_disk_unanswered_seconds",
                    GAUGE,
                    "Seconds for which a write or a sync has not returned; 0 if nothing waits.",
                    delays.seconds,
                ),
                _one(
                    "warren_disk_delays_total",
                    COUNTER,
                    "Times that the disk did not answer for 5 seconds.",
                    delays.delays,
                ),
                _one(
                    "warren_disk_longest_delay_seconds",
                    GAUGE,
                    "Longest of these times since the start.",
                    delays.longest,
                ),
            ]
        if management.spans is not None:
            found += _span_families(management.spans)
        if stalls is not None:
            found += [
                _one(
                    "warren_event_loop_stalls_total",
                    COUNTER,
                    "Turns of the event loop that took at least stall_threshold.",
                    stalls.stalls,
                ),
                _one(
                    "warren_event_loop_stalled_seconds_total",
                    COUNTER,
                    "Seconds that these turns took together.",
                    stalls.stalled_seconds,
                ),
                _one(
                    "warren_event_loop_longest_stall_seconds",
                    GAUGE,
                    "Longest of these turns since the start.",
                    stalls.longest_stall,
                ),
                _one(
                    "warren_event_loop_longest_turn_seconds",
                    GAUGE,
                    "Longest turn of the event loop since the start.",
                    stalls.longest_turn,
                ),
            ]
        return found

    def _shovel_families(self) -> list[Family]:
        """Return the families about shovels, once one was defined."""
        shovels = self._management.shovels.running
        if shovels is None:
            return []
        states = Counter(shovel.state.value for shovel in shovels.all())
        samples: list[Sample] = [(label_text(status=state), count) for state, count in sorted(states.items())]
        return [Family(f"{PREFIX}shovel_dynamic", GAUGE, "Number of dynamic shovels.", samples)]

    def _identity(self, endpoint: str) -> list[Family]:
        """Return the families whose labels describe the broker.

        :param endpoint: `aggregated`, `per-object` or `detailed`.
        """
        version = BEHAVIOUR_BY_VERSION[self._management.config.compat].version
        cluster_parameters = self._management.parameters.globals
        build = label_text(
            product_name="Warren",
            product_version=own_version(),
            rabbitmq_version=version,
            prometheus_plugin_version=own_version(),
            prometheus_client_version="",
            erlang_version="",
            python_version=sys.version.split()[0],
        )
        identity = label_text(
            rabbitmq_node=NODE,
            rabbitmq_cluster=str(cluster_parameters.get("cluster_name", NODE)),
            rabbitmq_cluster_permanent_id=str(cluster_parameters.get("internal_cluster_id", "")),
            rabbitmq_endpoint=endpoint,
        )
        return [
            Family("rabbitmq_build_info", "untyped", "Always 1; the labels name versions.", [(build, 1)]),
            Family(
                "rabbitmq_identity_info", "untyped", "Always 1; the labels name the node.", [(identity, 1)]
            ),
        ]


CHURN_FAMILIES: Final = (
    ("connections_opened_total", "Connections that were opened."),
    ("connections_closed_total", "Connections that have ended."),
    ("channels_opened_total", "Channels that were opened."),
    ("channels_closed_total", "Channels that have ended."),
    ("queues_declared_total", "Declarations of queues that succeeded, of new and of existing ones."),
    ("queues_created_total", "Queues that were created."),
    ("queues_deleted_total", "Queues that were deleted."),
)
"""Names and help of the values that `Collector.churn_values` returns."""


def _global(sums: CounterSums) -> Iterable[Family]:
    """Return the families rabbitmq_global_..., by protocol and type of queue."""
    protocol = label_text(protocol=PROTOCOL)
    for metric in PROTOCOL_COUNTERS:
        value = int(getattr(sums.channels, metric.source))
        yield Family(f"rabbitmq_global_{metric.name}", COUNTER, metric.help, [(protocol, value)])
    yield Family(
        "rabbitmq_global_publishers", GAUGE, "Channels that have published.", [(protocol, sums.publishers)]
    )
    yield Family("rabbitmq_global_consumers", GAUGE, "Consumers of all queues.", [(protocol, sums.consumers)])
    for metric in QUEUE_TYPE_COUNTERS:
        samples = [
            (
                label_text(protocol=PROTOCOL, queue_type=f"rabbit_{kind}_queue"),
                int(getattr(counts, metric.source)) if metric.source else _all_deliveries(counts),
            )
            for kind, counts in sums.queues.items()
        ]
        yield Family(f"rabbitmq_global_{metric.name}", COUNTER, metric.help, samples)


DEATH_HELP: Final = {
    CONFIRMED: "Dead letters of the strategy at-least-once that their targets have accepted.",
    "delivery_limit": "Messages that died because they were delivered too often.",
    "expired": "Messages that died because they expired.",
    "maxlen": "Messages that died because their queue was too long.",
    "rejected": "Messages that died because a consumer rejected them.",
}
"""Help of the counters of dead letters, by reason."""
DEATH_CAUSES: Final = frozenset(
    DeathCause(queue_type, strategy, reason)
    for reason in DEATH_HELP
    for queue_type, strategy in (
        ("classic", "at_most_once"),
        ("classic", "disabled"),
        ("quorum", "at_least_once"),
        ("quorum", "at_most_once"),
        ("quorum", "disabled"),
    )
    if strategy == "at_least_once" or reason != CONFIRMED
    if queue_type == "quorum" or reason != "delivery_limit"
    if strategy != "at_least_once" or reason != "maxlen"
)
"""Causes with a sample even if no message has died for them: as in RabbitMQ, those that are usual."""


def _dead_letter_families(counts: Mapping[DeathCause, int]) -> Iterable[Family]:
    """Return the families about messages that have died, by reason."""
    for reason, text in DEATH_HELP.items():
        causes = sorted(cause for cause in DEATH_CAUSES.union(counts) if cause.reason == reason)
        samples = [
            (
                label_text(
                    queue_type=f"rabbit_{cause.queue_type}_queue", dead_letter_strategy=cause.strategy
                ),
                counts.get(cause, 0),
            )
            for cause in causes
        ]
        yield Family(f"rabbitmq_global_messages_dead_lettered_{reason}_total", COUNTER, text, samples)


def _all_deliveries(counts: MessageCounts) -> int:
    return delivery_values(counts)[2]


def _one(name: str, kind: str, text: str, value: Number | None) -> Family:
    """Return a family of one sample without labels; None leaves the sample out."""
    return Family(name, kind, text, [("", value)])


def _disk_families(prefix: str, log: Log) -> list[Family]:
    """Return the families about operations on files under RabbitMQ's names."""
    statistics = log.statistics
    return [
        _one(f"{prefix}io_write_ops_total", COUNTER, "Batches written to segment files.", int(log.synced)),
        _one(
            f"{prefix}io_write_bytes_total",
            COUNTER,
            "Bytes written to segment files.",
            statistics.written_bytes,
        ),
        _one(
            f"{prefix}io_sync_ops_total",
            COUNTER,
            "Syncs of segment files (fsync).",
            sum(statistics.syncs.counts),
        ),
        _one(f"{prefix}io_sync_time_seconds_total", COUNTER, "Seconds that they took.", statistics.syncs.sum),
    ]


def _log_families(log: Log) -> list[AnyFamily]:
    """Return the families about the log's writes, segments and compaction."""
    statistics = log.statistics
    size, live = log.segment_bytes()
    return [
        _histogram(
            "warren_log_sync_seconds", "Seconds that a sync (fsync) of a segment file took.", statistics.syncs
        ),
        _histogram(
            "warren_log_batch_bytes", "Bytes of the records of a batch (group commit).", statistics.batches
        ),
        _one(
            "warren_log_written_bytes_total",
            COUNTER,
            "Bytes written to segment files, with preallocated zeros and copies of compaction.",
            statistics.written_bytes,
        ),
        _one(
            "warren_log_compacted_bytes_total",
            COUNTER,
            "Bytes of live messages that compaction has copied to the end of the log.",
            log.compacted_bytes,
        ),
        _one("warren_log_bytes", GAUGE, "Bytes of the log's segment files.", size),
        _one("warren_log_live_bytes", GAUGE, "Bytes of the messages in them that are still in queues.", live),
    ]


def _memory_families(memory: MemoryBudget) -> list[Family]:
    """Return the families about the memory of messages and their paging."""
    return [
        _one(
            "warren_message_memory_bytes",
            GAUGE,
            "Memory that waiting messages take, about.",
            int(memory.memory_bytes()),
        ),
        _one(
            "warren_message_memory_limit_bytes",
            GAUGE,
            "Memory of waiting messages above which they are paged out.",
            int(memory.budget),
        ),
        _one(
            "warren_paging_steps_total",
            COUNTER,
            "Contents of messages that were paged out, and messages that then left memory entirely.",
            int(memory.paged_out),
        ),
    ]


def _histogram(name: str, text: str, values: Histogram | SizeCounts, labels: str = "") -> HistogramFamily:
    # The counts are copied, because a thread adds to them meanwhile.
    return HistogramFamily(name, text, tuple(values.bounds), tuple(values.counts), float(values.sum), labels)


def _span_families(spans: StepQueue) -> list[Family]:
    """Return the families about the export of message spans."""
    return [
        _one(
            "warren_spans_exported_total", COUNTER, "Spans that the collector has taken.", int(spans.exported)
        ),
        _one(
            "warren_spans_failed_total",
            COUNTER,
            "Spans that were lost because the collector has not taken them.",
            int(spans.failed),
        ),
        _one(
            "warren_spans_dropped_total",
            COUNTER,
            "Spans that were dropped because too many waited for the exporter.",
            int(spans.dropped),
        ),
    ]


def _first(pair: tuple[int, int]) -> int:
    return pair[0]


def _second(pair: tuple[int, int]) -> int:
    return pair[1]
