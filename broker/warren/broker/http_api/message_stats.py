"""Message counts and rates of queues, exchanges, channels, virtual hosts and the node, as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from warren.broker.channel.channel import Channel
from warren.broker.http_api.call import Call
from warren.broker.http_api.statistics_json import SampleRange
from warren.broker.management import queue_counts
from warren.broker.management.request import Json
from warren.broker.management.statistics.collector import (
    CHANNEL_COUNTERS,
    CHURN,
    CLIENT_COUNTERS,
    DISK_COUNTERS,
    EXCHANGE_COUNTERS,
    LENGTHS,
    NODE_GAUGES,
    QUEUE_COUNTERS,
    TRAFFIC,
    channel_values,
    delivery_values,
)
from warren.broker.management.statistics.node_gauges import node_gauges
from warren.broker.management.statistics.series import Series
from warren.broker.model.exchange.exchange import Exchange
from warren.broker.model.queue.queue import Queue


def queue_statistics(call: Call, queue: Queue) -> dict[str, Json]:
    """Return lengths and `message_stats` of a queue, each value with its rate."""
    statistics = call.statistics
    series = statistics.collector.queues.get(queue)
    lengths = queue_counts.count_lengths(queue)
    found = statistics.values(series, LENGTHS, lengths, 0, SampleRange.parse(call.query, "lengths"))
    counts = statistics.collector.queue_counts(queue)
    values = [int(counts.published), *delivery_values(counts)]
    stats = _message_stats(call, series, QUEUE_COUNTERS, values, len(LENGTHS))
    if stats:
        found["message_stats"] = stats
    return found


def idle_since(call: Call, series: Series | None) -> dict[str, Json]:
    """Return since when nothing has happened to an object, as `idle_since`; nothing if something did in the last sample.

    An object to which nothing has happened at all has no samples.
    """
    if series is None or series.idle_since < 0:
        return {}
    seconds = call.statistics.collector.timestamp(series.idle_since) / 1000
    return {"idle_since": datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")}


def queue_rate(call: Call, name: str, queue: Queue) -> float | None:
    """Return the rate of one of QUEUE_COUNTERS; None if `message_stats` of the queue does not have it."""
    collector = call.statistics.collector
    counts = collector.queue_counts(queue)
    if not (counts.published if name == "publish" else any(delivery_values(counts))):
        return None
    series = collector.queues.get(queue)
    column = len(LENGTHS) + QUEUE_COUNTERS.index(name)
    return series.rate(column, collector.tick) if series is not None else 0.0


def _message_stats(
    call: Call, series: Series | None, names: Sequence[str], values: Sequence[int], first: int
) -> dict[str, Json]:
    """Return `message_stats`: publishes only if there were any, deliveries likewise, as in RabbitMQ."""
    chosen = SampleRange.parse(call.query, "msg_rates")
    publishing = [index for index, name in enumerate(names) if name in ("publish", *CLIENT_COUNTERS)]
    delivering = [index for index in range(len(names)) if index not in publishing]
    found: dict[str, Json] = {}
    for group in (publishing, delivering):
        if any(values[index] for index in group):
            for index in group:
                found |= call.statistics.values(
                    series, [names[index]], [values[index]], first + index, chosen
                )
    return found


def channel_statistics(call: Call, channel: Channel) -> dict[str, Json]:
    """Return `message_stats` of a channel, and since when it is idle."""
    series = call.statistics.collector.channels.get(channel)
    stats = _message_stats(call, series, CHANNEL_COUNTERS, channel_values(channel.message_counts()), 0)
    return {**idle_since(call, series), **({"message_stats": stats} if stats else {})}


def exchange_statistics(call: Call, exchange: Exchange) -> dict[str, Json]:
    """Return `message_stats` of an exchange: messages that were published to it, and copies that it routed."""
    values = [exchange.published_in, exchange.published_out]
    if not any(values):
        return {}
    series = call.statistics.collector.exchanges.get(exchange)
    chosen = SampleRange.parse(call.query, "msg_rates")
    return {"message_stats": call.statistics.values(series, EXCHANGE_COUNTERS, values, 0, chosen)}


def vhost_statistics(call: Call, name: str) -> dict[str, Json]:
    """Return lengths, `message_stats` and bytes of connections of a virtual host, as of the last sample."""
    collector, key = call.statistics.collector, name.encode("utf-8", "surrogateescape")
    series = collector.vhosts.get(key)
    found = _totals(call, series) if series is not None else {}
    if key in collector.exchanged:
        chosen = SampleRange.parse(call.query, "data_rates")
        found |= call.statistics.values(
            collector.traffic.get(key), TRAFFIC, collector.exchanged[key], 0, chosen
        )
    return found


def totals(call: Call) -> dict[str, Json]:
    """Return lengths and `message_stats` of the whole broker, as of the last sample."""
    series = call.statistics.collector.totals
    found = _totals(call, series)
    first = len(LENGTHS) + len(CHANNEL_COUNTERS)
    chosen = SampleRange.parse(call.query, "msg_rates")
    found["message_stats"] |= call.statistics.values(
        series, DISK_COUNTERS, series.values[first:], first, chosen
    )
    return found


def node_usage(call: Call) -> dict[str, Json]:
    """Return the use of memory, disk, descriptors and sockets, with rates; there are no Erlang processes."""
    series, chosen = call.statistics.collector.node, SampleRange.parse(call.query, "node_stats")
    found: dict[str, Json] = {}
    for column, value in enumerate(node_gauges(call.management)):
        name = NODE_GAUGES[column]
        unit = 1024 if name in ("mem_used", "disk_free") else 1
        details = call.statistics.details(series, column, value, chosen)
        for key in ("avg", "avg_rate", "rate"):
            if key in details:
                details[key] *= unit
        for sample in details.get("samples", ()):
            sample["sample"] *= unit
        found |= {name: value * unit, f"{name}_details": details}
    found["proc_used"] = 0
    found["proc_used_details"] = call.statistics.details(None, 0, 0, chosen)
    return found


def churn(call: Call, kind: str) -> dict[str, Json]:
    """Return how many connections, channels and queues came and went, with rates.

    :param kind: kind of samples that the request may ask for: `msg_rates` or `node_stats`.
    """
    collector = call.statistics.collector
    chosen = SampleRange.parse(call.query, kind)
    return call.statistics.values(collector.churn, CHURN, collector.churn_values(), 0, chosen)


def _totals(call: Call, series: Series) -> dict[str, Json]:
    values = series.values
    found = call.statistics.values(
        series, LENGTHS, values[: len(LENGTHS)], 0, SampleRange.parse(call.query, "lengths")
    )
    counters = values[len(LENGTHS) : len(LENGTHS) + len(CHANNEL_COUNTERS)]
    found["message_stats"] = _message_stats(call, series, CHANNEL_COUNTERS, counters, len(LENGTHS))
    return found
