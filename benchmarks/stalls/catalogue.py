"""Catalogue of the loads that one client can cause: name, description, size and the broker's options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.stalls import connection_loads, http_loads, message_loads, topology_loads
from benchmarks.stalls.load_client import Control, LoadClient

MILLION = 1_000_000
HTTP = ("--management-port", "0", "--prometheus-port", "0")
"""Options that serve the HTTP API and the Prometheus endpoint at free ports."""


class Load(NamedTuple):
    """A load that is measured against a broker of its own."""

    name: str
    title: str
    """Description, one cell of the table."""
    generator: Callable[[LoadClient, Control, int], Iterator[None]]
    """Prepares the load, yields, and causes it."""
    size: int
    """Messages, queues, bindings or connections."""
    options: tuple[str, ...] = ()
    """Options of the broker other than the defaults."""


LOADS = (
    Load("nack-100k", "nack of 100,000 into a DLX", message_loads.nack_dead_letters, 100_000),
    Load("nack-1m", "nack of 1,000,000 into a DLX", message_loads.nack_dead_letters, MILLION),
    Load("nack-fan-out", "nack of 100,000 into a DLX with ten queues", message_loads.nack_fan_out, 100_000),
    Load("nack-to-all", "nack of 10 into a DLX with 10,000 queues", message_loads.nack_to_all, 10_000),
    Load(
        "max-length-100k", "set_policy max-length on 100,000, DLX", message_loads.policy_max_length, 100_000
    ),
    Load(
        "max-length-1m", "set_policy max-length on 1,000,000, DLX", message_loads.policy_max_length, MILLION
    ),
    Load("ttl-100k", "expiry of 100,000 into a DLX", message_loads.expiry, 100_000),
    Load("ttl-1m", "expiry of 1,000,000 into a DLX", message_loads.expiry, MILLION),
    Load("drop-head", "100,000 published to x-max-length 10 with a DLX", message_loads.drop_head, 100_000),
    Load("publish", "1,000,000 published and kept", message_loads.publish, MILLION),
    Load("purge", "queue.purge of 1,000,000", message_loads.purge, MILLION),
    Load("delete", "queue.delete with 1,000,000", message_loads.delete, MILLION),
    Load("ack-multiple", "ack of 1,000,000 at once", message_loads.ack_multiple, MILLION),
    Load(
        "close-unacked", "connection closed with 1,000,000 unacked", message_loads.close_with_unacked, MILLION
    ),
    Load("requeue-100k", "nack of 100,000, requeue", message_loads.requeue, 100_000),
    Load("requeue-1m", "nack of 1,000,000, requeue", message_loads.requeue, MILLION),
    Load("get", "100,000 pipelined basic.get", message_loads.get_each, 100_000),
    Load("declare-queues", "10,000 durable queues declared", topology_loads.declare_queues, 10_000),
    Load("delete-queues", "10,000 durable queues deleted", topology_loads.delete_queues, 10_000),
    Load("expire-queues", "10,000 durable queues expired at once", topology_loads.expire_queues, 10_000),
    Load(
        "exclusive-queues",
        "connection closed with 10,000 exclusive queues",
        topology_loads.exclusive_queues,
        10_000,
    ),
    Load("bind", "64,000 transient bindings made", topology_loads.bind, 64_000),
    Load("delete-exchange", "exchange deleted with 64,000 bindings", topology_loads.delete_exchange, 64_000),
    Load("delete-bound", "queue deleted with 64,000 bindings", topology_loads.delete_bound_queue, 64_000),
    Load(
        "headers",
        "1,000 publishes to a headers exchange of 5,000 bindings",
        topology_loads.headers_exchange,
        5_000,
    ),
    Load("topics", "publishes of 120 words to 200 patterns with `#`", topology_loads.topic_patterns, 200),
    Load("fan-out", "10 publishes to 10,000 queues", message_loads.publish_fan_out, 10_000),
    Load("16-mib", "40 messages of 16 MiB published and delivered", message_loads.largest_messages, 40),
    Load(
        "128-mib",
        "5 messages of 128 MiB published and delivered",
        message_loads.large_messages,
        5,
        ("--max-message-size", str(128 * 1024 * 1024)),
    ),
    Load("tx", "tx.commit of 100,000 publishes and of their acks", message_loads.transaction, 100_000),
    Load("priorities", "100,000 of 255 priorities, requeued at once", message_loads.priorities, 100_000),
    Load("delayed", "100,000 delayed messages due at once", message_loads.delayed, 100_000),
    Load("large-tables", "500 messages with 5,000 headers dead-lettered", message_loads.large_tables, 500),
    Load("nested-tables", "500 messages with nested headers dead-lettered", message_loads.nested_tables, 500),
    Load("stream", "stream of 1,000,000 read five times", message_loads.stream_read, MILLION),
    Load("compaction", "1,000,000 acked but for each twentieth", message_loads.compaction, MILLION),
    Load(
        "paging",
        "200,000 of 4 KiB with 200 MB of memory",
        message_loads.paging,
        200_000,
        ("--memory-limit", "200MB"),
    ),
    Load("import", "definitions of 10,000 queues imported", topology_loads.import_definitions, 10_000),
    Load("export", "definitions of 10,000 queues exported", topology_loads.export_definitions, 10_000),
    Load("delete-vhost", "vhost deleted with 10,000 queues", topology_loads.delete_vhost, 10_000),
    Load("policy-queues", "policy set on 10,000 queues and cleared", topology_loads.policy_on_queues, 10_000),
    Load("list-queues", "10,000 queues listed ten times", topology_loads.list_queues, 10_000),
    Load("list-bindings", "64,000 bindings listed three times", topology_loads.list_bindings, 64_000),
    Load("connections", "1,000 connections opened at once", connection_loads.connect_at_once, 1_000),
    Load("failed-logins", "failed logins for five seconds", connection_loads.failed_logins, 100_000),
    Load("poll", "RabbitMQ's page polling, 10,000 queues", http_loads.poll, 10_000, HTTP),
    Load("http-lists", "whole lists over HTTP, 10,000 queues", http_loads.list_all, 10_000, HTTP),
    Load("scrape", "Prometheus scrapes, 10,000 queues", http_loads.scrape, 10_000, HTTP),
)
BY_NAME = {load.name: load for load in LOADS}
