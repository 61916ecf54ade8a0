"""Values that `warren ctl`, the HTTP API and the Prometheus endpoint all show: each object has the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.support.blocking_client import Channel
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.metrics_scraper import Scraper
from tests.support.operator_cli import Operator, warren_ctl
from warren.broker import BrokerConfig
from warren.broker.http_api.prometheus.metric_groups import COUNTER, GROUPS
from warren.broker.management.items.connection_items import CHANNEL_ITEMS, CONNECTION_ITEMS
from warren.broker.management.items.queue_items import QUEUE_ITEMS
from warren.broker.management.items.topology_items import BINDING_ITEMS, CONSUMER_ITEMS, EXCHANGE_ITEMS

CHANGING = {"consumer_capacity", "consumer_utilisation"}
"""Items that change with the time between two requests."""
TYPED = {"arguments", "client_properties", "protocol"}
"""Items that `warren ctl` shows in another form than the HTTP API."""
DELAYS: Any = {"x_delayed_retry_min": 600_000, "x_delayed_retry_max": 600_000}
RENAMED = {"source_name": "source", "destination_name": "destination", "destination_kind": "destination_type"}
"""Items that the HTTP API shows under another name."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[InProcessBroker]:
    config = BrokerConfig(
        management_port=0, prometheus_port=0, handshake_timeout=PATIENCE, login_failure_delay=0
    )
    with InProcessBroker(tmp_path / "data", config=config) as broker:
        yield broker


@pytest.fixture
def operator(served: InProcessBroker) -> Operator:
    assert served.data_dir is not None
    return Operator(warren_ctl(served.data_dir), served.url, is_warren=True)


@pytest.fixture
def busy(channel: Channel, operator: Operator) -> Channel:
    """Return the channel that has made objects of each kind, with messages in each state."""
    operator("set_policy", "limited", "^orders", '{"max-length":1000,"delivery-limit":5}')
    operator("set_operator_policy", "bounded", "^orders", '{"expires":3600000}')
    channel.declare_exchange("shop", "topic", durable=True, alternate_exchange="amq.fanout")
    channel.declare_exchange("inner", "headers", auto_delete=True)
    channel.declare("orders", durable=True, x_dead_letter_exchange="shop")
    channel.declare("orders.urgent", x_max_priority=3, x_single_active_consumer=True)
    channel.declare("mine", exclusive=True, auto_delete=True)
    channel.declare("replicated", durable=True, x_queue_type="quorum")
    channel.declare("delayed", durable=True, x_queue_type="quorum", x_delayed_retry_type="all", **DELAYS)
    channel.declare("events", durable=True, x_queue_type="stream")
    channel.bind("orders", "shop", "order.#")
    channel.call(
        commands.Exchange.Bind(destination="inner", source="shop", routing_key="x"), commands.Exchange.BindOk
    )
    channel.confirm()
    names = ("orders", "orders.urgent", "mine", "replicated", "delayed", "events")
    for name in names:
        for number in range(6):
            channel.publish(name, b"x" * number, delivery_mode=1 + number % 2, priority=number)
    assert all(channel.settled(6 * len(names)))
    for name in ("orders", "orders.urgent", "replicated"):
        assert channel.get(name)
    returned = channel.get("delayed")
    assert returned is not None
    channel.nack(returned.tag)
    channel.qos(2)
    for name in ("orders", "orders.urgent", "orders.urgent"):
        channel.consume(name)
    channel.consume("mine", exclusive=True)
    other = channel.connection.channel()
    other.call(commands.Tx.Select(), commands.Tx.SelectOk)
    other.publish("orders", b"not committed")
    assert other.ready("orders") == 3
    return channel


def compare(listed: list[dict[str, Any]], shown: list[dict[str, Any]], key: str) -> set[str]:
    """Check that objects have the same values in a listing and in the API; return the names of those compared."""
    named = {row[RENAMED.get(key, key)]: row for row in shown if row.get("vhost", "/") == "/"}
    assert len(listed) == len(named)
    compared = set()
    for row in listed:
        for item, value in row.items():
            name = RENAMED.get(item, item)
            if item not in CHANGING | TYPED and name in named[row[key]]:
                # An item without a value is empty in a listing, and null in the API.
                assert (named[row[key]][name] or None) == (value or None), (row[key], item)
                compared.add(item)
    return compared


@pytest.mark.usefixtures("busy")
def test_queues_are_the_same_in_listings_the_api_and_metrics(
    served: InProcessBroker, operator: Operator, api: HttpApi
) -> None:
    listed = operator.table("list_queues", *QUEUE_ITEMS)
    assert len(listed) == 6
    assert {row["name"]: row["messages_delayed"] for row in listed}["delayed"] == 1
    shown = [api.get(f"queues/%2F/{row['name']}") for row in listed]
    assert compare(listed, shown, "name") >= {
        "policy",
        "operator_policy",
        "effective_policy_definition",
        "messages",
        "messages_ready",
        "messages_unacknowledged",
        "messages_persistent",
        "messages_delayed",
        "message_bytes_persistent",
        "exclusive_consumer_tag",
        "single_active_consumer_tag",
        "memory",
        "segments",
        "leader",
    }
    assert compare(listed, api.get("queues"), "name")

    assert served.broker is not None
    scraper = Scraper(f"http://{served.broker.prometheus_addresses[0]}")
    groups = [group for group in GROUPS if group.of == "queue"]
    samples = scraper.samples("/metrics/detailed", family=[group.name for group in groups])
    compared = set()
    for metric in {metric for group in groups for metric in group.metrics if metric.kind != COUNTER}:
        for row in listed:
            labels = frozenset({("vhost", "/"), ("queue", row["name"])})
            value = samples.get((f"rabbitmq_detailed_{metric.name}", labels))
            if metric.source not in CHANGING and value is not None:
                assert value == (row[metric.source] or 0), (row["name"], metric.name)
                compared.add(metric.name)
    assert {
        "queue_messages",
        "queue_messages_ready",
        "queue_messages_unacked",
        "queue_messages_persistent_bytes",
        "queue_process_memory_bytes",
        "queue_consumers",
    } <= compared


@pytest.mark.usefixtures("busy")
def test_exchanges_and_bindings_are_the_same_in_listings_and_the_api(
    operator: Operator, api: HttpApi
) -> None:
    exchanges = operator.table("list_exchanges", *EXCHANGE_ITEMS)
    assert compare(exchanges, api.get("exchanges/%2F"), "name") == set(EXCHANGE_ITEMS) - TYPED - {"policy"}

    bindings = operator.table("list_bindings", *BINDING_ITEMS)
    of_shop = [row for row in bindings if row["source_name"] == "shop"]
    shown = api.get("exchanges/%2F/shop/bindings/source")
    assert compare(of_shop, shown, "destination_name") == set(BINDING_ITEMS) - TYPED - {"source_kind"}


@pytest.mark.usefixtures("busy")
def test_clients_are_the_same_in_listings_and_the_api(operator: Operator, api: HttpApi) -> None:
    consumers = operator.table("list_consumers", *CONSUMER_ITEMS)
    shown = api.get("consumers/%2F")
    assert compare(consumers, shown, "consumer_tag") >= {"active", "activity_status", "prefetch_count"}
    channels = operator.table("list_channels", *CHANNEL_ITEMS)
    assert {"messages_unacknowledged", "messages_uncommitted", "global_prefetch_count"} <= compare(
        channels, api.get("channels"), "number"
    )
    connections = operator.table("list_connections", *CONNECTION_ITEMS)
    assert {"state", "frame_max", "recv_oct", "send_oct"} <= compare(
        connections, api.get("connections"), "name"
    )
