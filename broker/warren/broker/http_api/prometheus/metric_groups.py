"""Metrics of single objects (queues, channels, connections, exchanges), in RabbitMQ's groups.

Names and groups are those of RabbitMQ's plugin: https://www.rabbitmq.com/docs/prometheus. `/metrics/detailed` selects
groups by name.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COUNTER: Final = "counter"
GAUGE: Final = "gauge"


class Metric(NamedTuple):
    """Metric of an object.

    :ivar name: name without its prefix.
    :ivar source: an attribute of `MessageCounts` or of the exchange for a counter of messages, else the item of
        `list_queues`, `list_channels` or `list_connections`.
    """

    name: str
    kind: str
    help: str
    source: str


class MetricGroup(NamedTuple):
    """Metrics that are selected together.

    :ivar name: name in the parameter `family`.
    :ivar of: kind of the objects: `queue`, `channel`, `connection` or `exchange`.
    """

    name: str
    of: str
    metrics: tuple[Metric, ...]


CONSUMERS: Final = Metric("queue_consumers", GAUGE, "Consumers of the queue.", "consumers")

GROUPS: Final = (
    MetricGroup(
        "queue_coarse_metrics",
        "queue",
        (
            Metric(
                "queue_messages_ready",
                GAUGE,
                "Messages that wait in the queue for a consumer.",
                "messages_ready",
            ),
            Metric(
                "queue_messages_unacked",
                GAUGE,
                "Messages that were delivered and wait for their acknowledgement.",
                "messages_unacknowledged",
            ),
            Metric("queue_messages", GAUGE, "Ready and unacknowledged messages together.", "messages"),
        ),
    ),
    MetricGroup("queue_consumer_count", "queue", (CONSUMERS,)),
    MetricGroup(
        "queue_metrics",
        "queue",
        (
            CONSUMERS,
            Metric(
                "queue_consumer_capacity",
                GAUGE,
                "Share of time in which a consumer could take a message at once, from 0 to 1.",
                "consumer_capacity",
            ),
            Metric(
                "queue_consumer_utilisation",
                GAUGE,
                "The same as queue_consumer_capacity.",
                "consumer_utilisation",
            ),
            Metric(
                "queue_process_memory_bytes",
                GAUGE,
                "Approximate memory of the queue with its messages. There is no process for each queue.",
                "memory",
            ),
            Metric(
                "queue_messages_ram",
                GAUGE,
                "Ready and unacknowledged messages with their content in memory.",
                "messages_ram",
            ),
            Metric(
                "queue_messages_ram_bytes",
                GAUGE,
                "Body bytes of ready and unacknowledged messages with their content in memory.",
                "message_bytes_ram",
            ),
            Metric(
                "queue_messages_ready_ram",
                GAUGE,
                "Ready messages with their content in memory.",
                "messages_ready_ram",
            ),
            Metric(
                "queue_messages_unacked_ram",
                GAUGE,
                "Unacknowledged messages with their content in memory.",
                "messages_unacknowledged_ram",
            ),
            Metric(
                "queue_messages_persistent",
                GAUGE,
                "Persistent messages in durable queues, ready or unacknowledged.",
                "messages_persistent",
            ),
            Metric(
                "queue_messages_persistent_bytes",
                GAUGE,
                "Body bytes of persistent messages in durable queues.",
                "message_bytes_persistent",
            ),
            Metric(
                "queue_messages_bytes",
                GAUGE,
                "Body bytes of ready and unacknowledged messages.",
                "message_bytes",
            ),
            Metric(
                "queue_messages_ready_bytes", GAUGE, "Body bytes of ready messages.", "message_bytes_ready"
            ),
            Metric(
                "queue_messages_unacked_bytes",
                GAUGE,
                "Body bytes of unacknowledged messages.",
                "message_bytes_unacknowledged",
            ),
            Metric(
                "queue_head_message_timestamp",
                GAUGE,
                "Property timestamp of the first ready message, if it has one.",
                "head_message_timestamp",
            ),
            Metric("stream_segments", GAUGE, "Segment files of the stream.", "segments"),
            Metric("queue_disk_reads_total", COUNTER, "Messages read from disk for the queue.", "disk_reads"),
            Metric(
                "queue_disk_writes_total", COUNTER, "Messages written to disk for the queue.", "disk_writes"
            ),
        ),
    ),
    MetricGroup(
        "queue_delivery_metrics",
        "queue",
        (
            Metric(
                "queue_get_ack_total",
                COUNTER,
                "Messages fetched with basic.get and manual acknowledgement.",
                "fetched",
            ),
            Metric(
                "queue_get_total",
                COUNTER,
                "Messages fetched with basic.get and automatic acknowledgement.",
                "fetched_no_ack",
            ),
            Metric(
                "queue_messages_delivered_ack_total",
                COUNTER,
                "Messages delivered to consumers with manual acknowledgement.",
                "delivered",
            ),
            Metric(
                "queue_messages_delivered_total",
                COUNTER,
                "Messages delivered to consumers with automatic acknowledgement.",
                "delivered_no_ack",
            ),
            Metric(
                "queue_messages_redelivered_total",
                COUNTER,
                "Deliveries of messages that had been requeued.",
                "redelivered",
            ),
            Metric("queue_messages_acked_total", COUNTER, "Messages that were acknowledged.", "acknowledged"),
            Metric(
                "queue_get_empty_total", COUNTER, "Calls of basic.get that found no message.", "fetched_empty"
            ),
        ),
    ),
    MetricGroup(
        "channel_metrics",
        "channel",
        (
            Metric("channel_consumers", GAUGE, "Consumers of the channel.", "consumer_count"),
            Metric(
                "channel_messages_unacked",
                GAUGE,
                "Messages that the channel has yet to acknowledge.",
                "messages_unacknowledged",
            ),
            Metric(
                "channel_messages_unconfirmed",
                GAUGE,
                "Publishes of the channel that are not confirmed yet.",
                "messages_unconfirmed",
            ),
            Metric(
                "channel_messages_uncommitted",
                GAUGE,
                "Publishes of a transaction that is not committed yet.",
                "messages_uncommitted",
            ),
            Metric(
                "channel_acks_uncommitted",
                GAUGE,
                "Acknowledgements of a transaction that is not committed yet.",
                "acks_uncommitted",
            ),
            Metric("consumer_prefetch", GAUGE, "Prefetch limit of further consumers.", "prefetch_count"),
            Metric(
                "channel_prefetch",
                GAUGE,
                "Prefetch limit of all consumers of the channel together.",
                "global_prefetch_count",
            ),
        ),
    ),
    MetricGroup(
        "channel_exchange_metrics",
        "channel",
        (
            Metric(
                "channel_messages_published_total", COUNTER, "Messages published on the channel.", "published"
            ),
            Metric(
                "channel_messages_confirmed_total",
                COUNTER,
                "Publishes of the channel that were confirmed or refused.",
                "confirmed",
            ),
            Metric(
                "channel_messages_unroutable_returned_total",
                COUNTER,
                "Mandatory publishes that reached no queue and were returned.",
                "returned_unroutable",
            ),
            Metric(
                "channel_messages_unroutable_dropped_total",
                COUNTER,
                "Publishes that reached no queue and were dropped.",
                "dropped_unroutable",
            ),
        ),
    ),
    MetricGroup(
        "channel_queue_metrics",
        "channel",
        (
            Metric(
                "channel_get_ack_total",
                COUNTER,
                "Messages that the channel fetched with basic.get and manual acknowledgement.",
                "fetched",
            ),
            Metric(
                "channel_get_total",
                COUNTER,
                "Messages that the channel fetched with basic.get and automatic acknowledgement.",
                "fetched_no_ack",
            ),
            Metric(
                "channel_messages_delivered_ack_total",
                COUNTER,
                "Messages delivered to consumers of the channel with manual acknowledgement.",
                "delivered",
            ),
            Metric(
                "channel_messages_delivered_total",
                COUNTER,
                "Messages delivered to consumers of the channel with automatic acknowledgement.",
                "delivered_no_ack",
            ),
            Metric(
                "channel_messages_redelivered_total",
                COUNTER,
                "Deliveries on the channel of messages that had been requeued.",
                "redelivered",
            ),
            Metric(
                "channel_messages_acked_total",
                COUNTER,
                "Messages acknowledged on the channel.",
                "acknowledged",
            ),
            Metric(
                "channel_get_empty_total",
                COUNTER,
                "Calls of basic.get on the channel that found no message.",
                "fetched_empty",
            ),
        ),
    ),
    MetricGroup(
        "connection_coarse_metrics",
        "connection",
        (
            Metric("connection_incoming_bytes_total", COUNTER, "Bytes received from the client.", "recv_oct"),
            Metric("connection_outgoing_bytes_total", COUNTER, "Bytes sent to the client.", "send_oct"),
        ),
    ),
    MetricGroup(
        "connection_metrics",
        "connection",
        (
            Metric(
                "connection_incoming_packets_total",
                COUNTER,
                "TCP segments with data received from the client.",
                "recv_cnt",
            ),
            Metric(
                "connection_outgoing_packets_total",
                COUNTER,
                "TCP segments with data sent to the client.",
                "send_cnt",
            ),
            Metric(
                "connection_pending_packets",
                GAUGE,
                "Bytes that wait to be sent to the client.",
                "send_pend",
            ),
            Metric("connection_channels", GAUGE, "Channels of the connection.", "channels"),
        ),
    ),
    MetricGroup(
        "exchange_metrics",
        "exchange",
        (
            Metric(
                "exchange_messages_published_total",
                COUNTER,
                "Messages published to the exchange.",
                "published_in",
            ),
            Metric(
                "exchange_messages_unroutable_returned_total",
                COUNTER,
                "Mandatory messages of the exchange that reached no queue and were returned.",
                "unroutable_returned",
            ),
            Metric(
                "exchange_messages_unroutable_dropped_total",
                COUNTER,
                "Messages of the exchange that reached no queue and were dropped.",
                "unroutable_dropped",
            ),
        ),
    ),
)
"""All groups of objects, in RabbitMQ's order."""

AGGREGATED_EXCHANGE_SOURCES: Final = {
    "published_in": "published",
    "unroutable_returned": "returned_unroutable",
    "unroutable_dropped": "dropped_unroutable",
}
"""Counter of channels that counts, for all exchanges together, what an exchange counts for itself."""

PROTOCOL_COUNTERS: Final = (
    Metric("messages_received_total", COUNTER, "Messages that publishers sent.", "published"),
    Metric(
        "messages_received_confirm_total",
        COUNTER,
        "Messages that publishers sent on channels with publisher confirms.",
        "published_with_confirm",
    ),
    Metric(
        "messages_routed_total",
        COUNTER,
        "Copies of messages that were routed to queues or streams.",
        "routed",
    ),
    Metric(
        "messages_unroutable_dropped_total",
        COUNTER,
        "Messages that reached no queue and were dropped.",
        "dropped_unroutable",
    ),
    Metric(
        "messages_unroutable_returned_total",
        COUNTER,
        "Mandatory messages that reached no queue and were returned.",
        "returned_unroutable",
    ),
    Metric("messages_confirmed_total", COUNTER, "Publishes that were confirmed or refused.", "confirmed"),
)
"""Counters rabbitmq_global_... of a protocol."""

QUEUE_TYPE_COUNTERS: Final = (
    Metric("messages_delivered_total", COUNTER, "Messages delivered or fetched.", ""),
    Metric(
        "messages_delivered_consume_manual_ack_total",
        COUNTER,
        "Messages delivered to consumers with manual acknowledgement.",
        "delivered",
    ),
    Metric(
        "messages_delivered_consume_auto_ack_total",
        COUNTER,
        "Messages delivered to consumers with automatic acknowledgement.",
        "delivered_no_ack",
    ),
    Metric(
        "messages_delivered_get_manual_ack_total",
        COUNTER,
        "Messages fetched with basic.get and manual acknowledgement.",
        "fetched",
    ),
    Metric(
        "messages_delivered_get_auto_ack_total",
        COUNTER,
        "Messages fetched with basic.get and automatic acknowledgement.",
        "fetched_no_ack",
    ),
    Metric("messages_get_empty_total", COUNTER, "Calls of basic.get that found no message.", "fetched_empty"),
    Metric(
        "messages_redelivered_total", COUNTER, "Deliveries of messages that had been requeued.", "redelivered"
    ),
    Metric("messages_acknowledged_total", COUNTER, "Messages that were acknowledged.", "acknowledged"),
)
"""Counters rabbitmq_global_... of a protocol and a type of queue. An empty source is the sum of all deliveries."""
