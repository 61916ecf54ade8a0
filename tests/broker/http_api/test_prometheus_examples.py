"""Dashboards and alerts of examples/prometheus: well formed, of metrics that exist, and answered by a real Prometheus."""

from __future__ import annotations

import json
import math
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocking_client import Channel, Connection
from tests.support.broker_process import PATIENT, BrokerProcess
from tests.support.metrics_scraper import Scraper
from tests.support.polling import wait_until
from tests.support.processes import free_port
from tests.support.prometheus_server import (
    PrometheusServer,
    installed,
    prometheus_server,
    queries_of,
)

FOLDER = Path(__file__).parents[3] / "examples" / "prometheus"
DASHBOARDS = [FOLDER / "warren-overview.json", FOLDER / "warren-store.json"]
ALERTS = FOLDER / "alerts.yml"
ONLY_WITH_SPANS = {"warren_spans_dropped_total", "warren_spans_failed_total"}
"""Metrics that exist only while `opentelemetry` is on."""
FROM_PROMETHEUS = {"up"}
"""Metrics that Prometheus itself adds for each target."""

RABBITMQ_METRICS = Path(__file__).with_name("overview_dashboard_metrics.txt")
"""Metrics that RabbitMQ's dashboard Overview asks for."""
IDENTITY = (
    "on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node) "
    'rabbitmq_identity_info{rabbitmq_cluster="warren@localhost", namespace="", rabbitmq_endpoint="aggregated"}'
)
"""Join by which each query of RabbitMQ's dashboards selects a cluster; `namespace` is Kubernetes', and empty without it."""
SIZES = ("100", "1000", "10000", "100000", "1000000", "10000000", "50000000", "100000000", "+Inf")
"""Upper bounds of message sizes, as RabbitMQ and Warren write them. Prometheus 3 changes them to `100.0`, `1e+06`, ..."""

needs_prometheus = pytest.mark.skipif(not installed(), reason="prometheus is not installed")


def series_of(expression: str) -> set[str]:
    """Return the names of the series in a query."""
    without_labels = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", expression)
    names = re.findall(r"\b(?:rabbitmq|warren|process)_\w+|\bup\b", without_labels)
    return set(names)


def queries_like_rabbitmqs() -> dict[str, str]:
    """Return queries of the shapes that RabbitMQ's dashboard Overview has: each metric by itself, and shares of sizes."""
    found: dict[str, str] = {}
    for name in RABBITMQ_METRICS.read_text().split():
        if name.endswith("_total"):
            found[name] = f"sum(rate({name}[10s]) * {IDENTITY}) by (rabbitmq_node)"
        elif not name.endswith(("_bucket", "_info")):
            found[name] = f"sum({name} * {IDENTITY}) by (rabbitmq_node)"

    def grown(suffix: str) -> str:
        return f"sum(increase(rabbitmq_message_size_bytes_{suffix}[60s]) * {IDENTITY})"

    found["mean size"] = f"{grown('sum')} / {grown('count')}"
    everything = grown('bucket{le="+Inf"}')
    smaller = ""
    for bound in SIZES:
        upto = grown(f'bucket{{le="{bound}"}}')
        found[f"share up to {bound}"] = f"({upto}{smaller}) / {everything}"
        smaller = f" - {upto}"
    return found


def alert_rules() -> list[Any]:
    yaml = pytest.importorskip("yaml")
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@contextmanager
def loaded_broker(folder: Path) -> Iterator[tuple[BrokerProcess, str]]:
    """Run a broker with clients that publish, consume and make mistakes; yield it and the address of its metrics."""
    port = free_port()
    with BrokerProcess(folder, *PATIENT, "--prometheus-port", str(port)) as broker:
        ended = threading.Event()
        load = threading.Thread(target=_work, args=(broker.url, ended), daemon=True)
        load.start()
        try:
            yield broker, f"127.0.0.1:{port}"
        finally:
            ended.set()
            load.join()


def _work(url: str, ended: threading.Event) -> None:
    """Publish and consume persistent messages until the event is set; some are requeued, some unroutable."""
    body = bytes(2000)
    with Connection(url) as connection:
        channel = connection.channel()
        channel.confirm()
        channel.declare("q", durable=True)
        channel.qos(100)
        channel.consume("q")
        published = 0
        while not ended.wait(0.05):
            for _ in range(10):
                channel.publish("q", body, delivery_mode=2)
            channel.publish("no such queue", body)
            published += 11
            for message in channel.deliveries(10):
                channel.reject(message.tag, requeue=True)
            for message in channel.deliveries(10):
                channel.ack(message.tag)
            channel.settled_until(published)
            with Connection(url) as short:
                short_channel: Channel = short.channel()
                short_channel.publish("no such queue", body, mandatory=True)
                short_channel.delete(short_channel.declare("short", durable=True))
            with pytest.raises(AssertionError, match="ACCESS_REFUSED"):
                Connection(url.replace("amqp://", "amqp://guest:wrong@"))


@pytest.fixture(scope="module")
def loaded(
    starts_processes: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BrokerProcess, str]]:
    with loaded_broker(tmp_path_factory.mktemp("broker") / "data") as found:
        yield found


@pytest.fixture(scope="module")
def prometheus(
    loaded: tuple[BrokerProcess, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    _, address = loaded
    with prometheus_server(tmp_path_factory.mktemp("prometheus"), {"/metrics": address}, ALERTS) as server:
        yield server


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_well_formed(dashboard: Path) -> None:
    content = json.loads(dashboard.read_text())
    panels = content["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel.get("targets", ()):
            assert "{job=~" in target["expr"], "each query follows the variables"


def test_the_dashboards_have_names_of_their_own() -> None:
    contents = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert (
        len({each["uid"] for each in contents})
        == len({each["title"] for each in contents})
        == len(DASHBOARDS)
    )


def test_each_metric_of_the_dashboards_and_alerts_exists(loaded: tuple[BrokerProcess, str]) -> None:
    asked = {name for path in DASHBOARDS for query in queries_of(path).values() for name in series_of(query)}
    asked |= {name for rule in alert_rules() for name in series_of(rule["expr"])}
    assert len(asked) > 45
    missing: set[str] = set()

    def is_loaded() -> bool:
        missing.clear()
        missing.update(asked - {name for name, _ in Scraper(f"http://{loaded[1]}").samples()})
        return missing == ONLY_WITH_SPANS | FROM_PROMETHEUS

    try:
        wait_until(is_loaded, "each metric exists")
    except AssertionError:
        pytest.fail(f"these exist, or do not: {sorted(missing ^ (ONLY_WITH_SPANS | FROM_PROMETHEUS))}")


@needs_prometheus
def test_prometheus_has_data_for_each_query_of_the_dashboards(prometheus: PrometheusServer) -> None:
    """Also the rates: a series that has a value in one scrape only gives none."""
    queries = {
        f"{path.stem}: {panel}": text for path in DASHBOARDS for panel, text in queries_of(path).items()
    }
    without: set[str] = set()

    def all_found() -> bool:
        without.clear()
        without.update(panel for panel, text in queries.items() if not prometheus.query(text))
        return not without

    assert len(queries) > 55
    try:
        wait_until(all_found, "each query has data", 120)
    except AssertionError:
        pytest.fail(f"no data for {sorted(without)}")


@needs_prometheus
def test_prometheus_has_data_for_queries_like_those_of_rabbitmqs_dashboard(
    prometheus: PrometheusServer,
) -> None:
    """The bodies of 2,000 bytes that clients publish are the share between 1 kB and 10 kB."""
    queries = queries_like_rabbitmqs()
    assert len(queries) > 40
    values: dict[str, float] = {}

    def all_found() -> bool:
        for name, text in queries.items():
            for series in prometheus.query(text):
                values[name] = float(series["value"][1])
        return set(queries) == set(values) and not math.isnan(values["mean size"])

    try:
        wait_until(all_found, "each query has data", 120)
    except AssertionError:
        pytest.fail(f"no data for {sorted(set(queries) - set(values))}; sizes {values.get('mean size')}")
    shares = {name: value for name, value in values.items() if name.startswith("share ")}
    assert shares == {name: float(name == "share up to 10000") for name in shares}
    assert values["mean size"] == pytest.approx(2000)


@needs_prometheus
def test_prometheus_loads_the_alerts(prometheus: PrometheusServer) -> None:
    rules = [
        rule for group in prometheus.answer("/api/v1/rules")["data"]["groups"] for rule in group["rules"]
    ]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alert_rules()}
    wait_until(
        lambda: all(
            rule["health"] == "ok"
            for group in prometheus.answer("/api/v1/rules")["data"]["groups"]
            for rule in group["rules"]
        ),
        "each rule was evaluated without an error",
    )


@needs_prometheus
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_accepts_the_alerts_and_their_tests(arguments: tuple[str, ...]) -> None:
    found = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_each_alert_has_a_test_a_severity_and_an_advice() -> None:
    tested = set(re.findall(r"alertname: (\w+)", (FOLDER / "alerts_test.yml").read_text()))
    assert tested == {rule["alert"] for rule in alert_rules()}
    for rule in alert_rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
