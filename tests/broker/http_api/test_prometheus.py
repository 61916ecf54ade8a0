"""Prometheus endpoint: values, labels and selection, as Prometheus' own parser reads them."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.blocking_client import Channel, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.metrics_scraper import Scraper
from tests.support.polling import wait_until
from warren.broker import BrokerConfig
from warren.broker.connection.tcp_statistics import TCP_INFO
from warren.broker.http_api.prometheus.object_metrics import CounterSums, ObjectMetrics

OVERVIEW = Path(__file__).with_name("overview_dashboard_metrics.txt")
"""Metrics that RabbitMQ's dashboard Overview asks for."""


def status_of(url: str, method: str = "GET") -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=PATIENCE) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def served(tmp_path: Path) -> Iterator[InProcessBroker]:
    config = BrokerConfig(
        management_port=0,
        prometheus_port=0,
        memory_alarm=True,
        memory_limit=1.0,
        handshake_timeout=PATIENCE,
        login_failure_delay=0,
    )
    with InProcessBroker(tmp_path / "data", config=config) as broker:
        yield broker


@pytest.fixture
def scraper(served: InProcessBroker) -> Scraper:
    assert served.broker is not None
    return Scraper(f"http://{served.broker.prometheus_addresses[0]}")


def test_totals_follow_what_clients_do(scraper: Scraper, api: HttpApi, channel: Channel) -> None:
    api.put("queues/%2f/q", {"durable": True})
    channel.confirm()
    for _ in range(5):
        channel.publish("q")
    channel.settled(5)
    channel.consume("q")
    first, *_ = channel.deliveries(5)
    channel.ack(first.tag)
    wait_until(lambda: scraper.value("rabbitmq_queue_messages_unacked") == 4, "one is acknowledged")

    found = scraper.samples()
    assert {
        name: found[name, frozenset()]
        for name in (
            "rabbitmq_connections",
            "rabbitmq_channels",
            "rabbitmq_consumers",
            "rabbitmq_queues",
            "rabbitmq_queue_messages",
            "rabbitmq_queue_messages_ready",
            "rabbitmq_queues_created_total",
            "rabbitmq_channel_messages_published_total",
            "rabbitmq_queue_messages_acked_total",
        )
    } == {
        "rabbitmq_connections": 1,
        "rabbitmq_channels": 1,
        "rabbitmq_consumers": 1,
        "rabbitmq_queues": 1,
        "rabbitmq_queue_messages": 4,
        "rabbitmq_queue_messages_ready": 0,
        "rabbitmq_queues_created_total": 1,
        "rabbitmq_channel_messages_published_total": 5,
        "rabbitmq_queue_messages_acked_total": 1,
    }
    protocol = ("protocol", "amqp091")
    for name in ("received", "received_confirm", "routed", "confirmed"):
        assert found[f"rabbitmq_global_messages_{name}_total", frozenset({protocol})] == 5
    classic = frozenset({protocol, ("queue_type", "rabbit_classic_queue")})
    assert found["rabbitmq_global_messages_delivered_consume_manual_ack_total", classic] == 5
    assert found["rabbitmq_global_messages_delivered_total", classic] == 5
    assert found["rabbitmq_global_messages_acknowledged_total", classic] == 1
    assert found["rabbitmq_global_publishers", frozenset({protocol})] == 1


def test_sizes_of_published_messages_are_counted_by_bucket(scraper: Scraper, channel: Channel) -> None:
    channel.confirm()
    sizes = (0, 100, 100, 101, 5_000, 2_000_000)
    for size in sizes:
        channel.publish("nowhere", bytes(size))
    channel.settled(len(sizes))

    protocol = ("protocol", "amqp091")
    found = scraper.samples()
    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in found.items()
        if name == "rabbitmq_message_size_bytes_bucket"
    }
    assert buckets == {
        "100": 3,
        "1000": 4,
        "10000": 5,
        "100000": 5,
        "1000000": 5,
        "10000000": 6,
        "50000000": 6,
        "100000000": 6,
        "+Inf": 6,
    }
    assert found["rabbitmq_message_size_bytes_sum", frozenset({protocol})] == sum(sizes)
    assert found["rabbitmq_message_size_bytes_count", frozenset({protocol})] == len(sizes)


def test_messages_that_died_are_counted_by_reason_and_strategy(
    scraper: Scraper, api: HttpApi, channel: Channel
) -> None:
    letters = {"x-dead-letter-exchange": "amq.fanout"}
    api.put("queues/%2f/short", {"durable": True, "arguments": {**letters, "x-max-length": 1}})
    api.put("queues/%2f/alone", {"durable": True, "arguments": {"x-max-length": 1}})
    safe = {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
    }
    api.put("queues/%2f/safe", {"durable": True, "arguments": {**letters, **safe}})
    api.put("queues/%2f/target", {"durable": True})
    api.ask("POST", "bindings/%2f/e/amq.fanout/q/target", {"routing_key": ""})
    channel.confirm()
    for queue in ("short", "alone", "safe"):
        channel.publish(queue)
        channel.publish(queue)
    channel.settled(6)
    channel.consume("safe")
    for delivery in channel.deliveries(2):
        channel.reject(delivery.tag, requeue=False)
    wait_until(lambda: sum(deaths(scraper).values()) == 6, "both rejected messages have arrived")

    assert deaths(scraper) == {
        ("maxlen", "classic", "at_most_once"): 1,
        ("maxlen", "classic", "disabled"): 1,
        ("rejected", "quorum", "at_least_once"): 2,
        ("confirmed", "quorum", "at_least_once"): 2,
    }
    for queue in ("short", "alone", "safe"):
        api.ask("DELETE", f"queues/%2f/{queue}")
    assert sum(deaths(scraper).values()) == 6


def deaths(scraper: Scraper) -> dict[tuple[str, str, str], float]:
    """Return the counters of dead letters that are not 0, by reason, type of queue and strategy."""
    prefix = "rabbitmq_global_messages_dead_lettered_"
    return {
        (
            name.removeprefix(prefix).removesuffix("_total"),
            dict(labels)["queue_type"].removeprefix("rabbit_").removesuffix("_queue"),
            dict(labels)["dead_letter_strategy"],
        ): value
        for (name, labels), value in scraper.samples().items()
        if name.startswith(prefix) and value
    }


def test_counters_never_fall(scraper: Scraper, api: HttpApi, served: InProcessBroker) -> None:
    """Prometheus takes a counter that falls for one that restarted, and computes a wrong rate."""
    api.put("vhosts/v")
    api.put("queues/v/q")
    with Connection(f"{served.url}v") as connection:
        channel = connection.channel()
        for _ in range(3):
            channel.publish("q")
        channel.consume("q", no_ack=True)
        channel.deliveries(3)
        before = counters(scraper)
        assert before["rabbitmq_global_messages_received_total"] == 3
        assert before["rabbitmq_global_messages_delivered_total"] == 3
    wait_until(lambda: scraper.value("rabbitmq_connections") == 0, "the connection has ended")
    assert fallen(before, after := counters(scraper)) == {}

    api.ask("DELETE", "queues/v/q")
    assert fallen(after, after := counters(scraper)) == {}

    api.ask("DELETE", "vhosts/v")
    assert fallen(after, counters(scraper)) == {}


def test_sums_are_exact_although_queues_and_channels_end_between_two_steps(
    served: InProcessBroker, api: HttpApi
) -> None:
    """Counted twice, their messages would make the counter fall with the next request."""
    api.put("queues/%2f/q")
    assert served.broker is not None
    management = served.broker._management
    assert management is not None
    node = management.node
    connection = Connection(served.url)
    channel = connection.channel()
    for _ in range(3):
        channel.publish("q")
    channel.consume("q", no_ack=True)
    channel.deliveries(3)

    work = ObjectMetrics(management).sums_in_steps()
    for _ in range(2):
        served.call(lambda: next(work))
    connection.close()
    wait_until(lambda: served.call(lambda: not node.connections), "the connection has ended")
    api.ask("DELETE", "queues/%2f/q")

    def finish() -> CounterSums:
        while True:
            try:
                next(work)
            except StopIteration as done:
                sums: CounterSums = done.value
                return sums

    sums = served.call(finish)
    assert (sums.channels.published, sums.channels.delivered_no_ack) == (3, 3)
    assert sums.queues["classic"].delivered_no_ack == 3


def counters(scraper: Scraper) -> dict[str, float]:
    """Return the sum of the samples of each counter of `/metrics`."""
    return {
        f"{family.name}_total": sum(sample.value for sample in family.samples)
        for family in scraper.families().values()
        if family.type == "counter"
    }


def fallen(before: dict[str, float], after: dict[str, float]) -> dict[str, tuple[float, float]]:
    return {name: (value, after[name]) for name, value in before.items() if after[name] < value}


def test_each_object_has_samples_of_its_own(scraper: Scraper, api: HttpApi, channel: Channel) -> None:
    for name, kind in (("one", "classic"), ("two", "quorum")):
        api.put(f"queues/%2f/{name}", {"durable": True, "arguments": {"x-queue-type": kind}})
    for _ in range(2):
        channel.publish("one", b"12345")
    channel.confirm()
    channel.publish("two")
    channel.settled(1)

    found = scraper.samples("/metrics/per-object")

    def of(name: str, queue: str) -> float:
        return found[name, frozenset({("vhost", "/"), ("queue", queue)})]

    assert (of("rabbitmq_queue_messages_ready", "one"), of("rabbitmq_queue_messages_ready", "two")) == (2, 1)
    assert of("rabbitmq_queue_messages_bytes", "one") == 10
    info = {dict(labels)["queue"]: dict(labels) for name, labels in found if name == "rabbitmq_queue_info"}
    assert {queue: labels["queue_type"] for queue, labels in info.items()} == {
        "one": "rabbit_classic_queue",
        "two": "rabbit_quorum_queue",
    }
    published = [
        value for (name, _), value in found.items() if name == "rabbitmq_channel_messages_published_total"
    ]
    assert published == [3]
    assert (
        found["rabbitmq_exchange_messages_published_total", frozenset({("vhost", "/"), ("exchange", "")})]
        == 3
    )


def test_labels_are_escaped(scraper: Scraper, api: HttpApi) -> None:
    name = 'a"b\\c\nd é'
    api.put(f"queues/%2f/{quote(name, safe='')}")
    found = scraper.samples("/metrics/per-object")
    assert found["rabbitmq_queue_messages", frozenset({("vhost", "/"), ("queue", name)})] == 0


def test_detailed_has_what_a_request_names(scraper: Scraper, api: HttpApi) -> None:
    api.put("vhosts/v")
    for path in ("%2f/one", "%2f/two", "v/three"):
        api.put(f"queues/{path}")

    def queues(**query: str | list[str]) -> set[str]:
        found = scraper.families("/metrics/detailed", **query)
        listed = found["rabbitmq_detailed_queue_messages"].samples
        assert {each.labels["queue"] for each in found["rabbitmq_detailed_queue_info"].samples} == {
            each.labels["queue"] for each in listed
        }
        return {each.labels["queue"] for each in listed}

    family = "queue_coarse_metrics"
    assert queues(family=family) == {"one", "two", "three"}
    assert queues(family=family, vhost="v") == {"three"}
    assert queues(family=family, vhost=["v", "/"]) == {"one", "two", "three"}
    assert queues(family=family, queue="^t") == {"two", "three"}
    assert set(scraper.families("/metrics/detailed", family=["queue_consumer_count", "vhost_status"])) == {
        "rabbitmq_detailed_queue_consumers",
        "rabbitmq_detailed_queue_info",
        "rabbitmq_cluster_vhost_status",
        "rabbitmq_build_info",
        "rabbitmq_identity_info",
    }
    churn = scraper.families("/metrics/detailed", family="connection_churn_metrics")
    assert churn["rabbitmq_detailed_queues_created"].samples[0].value == 3
    bindings = scraper.families("/metrics/detailed", family="exchange_bindings")
    assert {"vhost": "v", "exchange": "amq.topic", "type": "topic"} in [
        each.labels for each in bindings["rabbitmq_cluster_exchange_bindings"].samples
    ]


@pytest.mark.parametrize("query", [{}, {"family": "no_such_family"}])
def test_an_unknown_family_selects_nothing(scraper: Scraper, query: dict[str, str]) -> None:
    assert set(scraper.families("/metrics/detailed", **query)) == {
        "rabbitmq_build_info",
        "rabbitmq_identity_info",
    }


def test_an_unknown_vhost_has_no_queues(scraper: Scraper, api: HttpApi) -> None:
    api.put("queues/%2f/q")
    found = scraper.families("/metrics/detailed", family="queue_coarse_metrics", vhost="nowhere")
    assert found["rabbitmq_detailed_queue_messages"].samples == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/metrics/detailed?queue=(", 400),
        ("/metrics/detailed?queue=a&queue=b", 400),
        (f"/metrics/detailed?queue={'a' * 2001}", 400),
        ("/metrics/nonsense", 404),
        ("/api/overview", 404),
    ],
)
def test_wrong_requests_are_refused(scraper: Scraper, path: str, status: int) -> None:
    assert status_of(scraper.base + path) == status


def test_nothing_can_be_changed(scraper: Scraper) -> None:
    assert status_of(f"{scraper.base}/metrics", "POST") == 405
    assert status_of(f"{scraper.base}/metrics", "HEAD") == 200


def test_rabbitmqs_overview_finds_its_metrics(scraper: Scraper) -> None:
    assert set(OVERVIEW.read_text().split()) - names_of(scraper) == set()


def test_the_identity_joins_as_in_rabbitmq(scraper: Scraper) -> None:
    for path, endpoint in (("/metrics", "aggregated"), ("/metrics/per-object", "per-object")):
        (sample,) = scraper.families(path)["rabbitmq_identity_info"].samples
        assert sample.labels["rabbitmq_endpoint"] == endpoint
        assert sample.labels["rabbitmq_node"] == "warren@localhost"


def names_of(scraper: Scraper) -> set[str]:
    """Return the names of all samples of `/metrics`."""
    return {name for name, _ in scraper.samples()}


def test_the_store_counts_syncs_batches_and_bytes(scraper: Scraper, channel: Channel) -> None:
    body = bytes(10_000)
    before = scraper.samples()
    channel.declare("q", durable=True)
    channel.confirm()
    for number in range(3):
        channel.publish("q", body, delivery_mode=2)
        channel.settled_until(number + 1)

    after = scraper.samples()

    def grown(name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return after[key] - before[key]

    # The confirm of each publish had to wait for a batch of its own, and that for a sync.
    assert grown("warren_log_batch_bytes_count") == grown("warren_log_batches_total") >= 3
    assert grown("warren_log_sync_seconds_count") >= 3
    assert (
        grown("warren_log_batch_bytes_bucket", le="16384") - grown("warren_log_batch_bytes_bucket", le="4096")
        == 3
    )
    assert grown("warren_log_batch_bytes_bucket", le="+Inf") == grown("warren_log_batch_bytes_count")
    assert grown("warren_log_sync_seconds_bucket", le="+Inf") == grown("warren_log_sync_seconds_count")
    assert grown("warren_log_batch_bytes_sum") > 30_000
    assert grown("warren_log_written_bytes_total") >= grown("warren_log_batch_bytes_sum")
    assert grown("warren_log_live_bytes") > 30_000
    assert after["warren_log_bytes", frozenset()] >= after["warren_log_live_bytes", frozenset()]
    assert grown("warren_message_memory_bytes") > 30_000
    assert after["warren_message_memory_limit_bytes", frozenset()] > 0


@pytest.mark.skipif(TCP_INFO is None, reason="only Linux counts the bytes of a socket")
def test_received_bytes_do_not_fall_when_a_client_goes(scraper: Scraper, served: InProcessBroker) -> None:
    with Connection(served.url) as connection:
        channel = connection.channel()
        channel.declare("q")
        channel.publish("q", bytes(50_000))
        channel.state("q")
        while_open = scraper.value("warren_received_bytes_total")
        assert while_open > 50_000
    wait_until(lambda: scraper.value("rabbitmq_connections") == 0, "the connection has ended")
    assert scraper.value("warren_received_bytes_total") >= while_open


def test_each_family_has_a_type_and_a_help_text(scraper: Scraper) -> None:
    for path in ("/metrics", "/metrics/per-object"):
        for family in scraper.families(path).values():
            assert family.documentation, family.name
            assert family.type in ("counter", "gauge", "histogram", "unknown"), family.name


def test_an_alarm_is_shown(scraper: Scraper, served: InProcessBroker) -> None:
    assert scraper.value("rabbitmq_alarms_free_disk_space_watermark") == 0

    def raise_alarm() -> None:
        assert served.broker is not None
        served.broker.resources.disk_free_limit = 2**62

    served.call(raise_alarm)
    assert scraper.value("rabbitmq_alarms_free_disk_space_watermark") == 1
    assert scraper.value("rabbitmq_alarms_memory_used_watermark") == 0


def test_logins_are_counted_by_protocol(scraper: Scraper, api: HttpApi, channel: Channel) -> None:
    assert HttpApi(api.base, password="wrong").ask("GET", "whoami").status == 401
    for protocol, succeeded, failed in (("amqp091", 1, 0), ("http", 0, 1)):
        for name, value in (("succeeded", succeeded), ("failed", failed)):
            assert scraper.value(f"rabbitmq_auth_attempts_{name}_total", protocol=protocol) == value


def test_the_endpoint_runs_without_the_http_api_and_is_listed() -> None:
    config = BrokerConfig(prometheus_port=0, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        assert broker.broker.management_addresses == ()
        (address,) = broker.broker.prometheus_addresses
        assert Scraper(f"http://{address}").value("rabbitmq_queues") == 0
        assert f"http/prometheus at {address}" in broker.call(broker.broker._describe_listeners)
