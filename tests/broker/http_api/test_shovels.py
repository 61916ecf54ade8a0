"""Shovels over HTTP: what RabbitMQ's answers do not show."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.blocking_client import Channel
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from warren.broker import BrokerConfig

DEFINITION = {"src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": "a", "dest-queue": "b"}
EVENTS = "amq.rabbitmq.event"


@pytest.fixture
def served() -> Iterator[InProcessBroker]:
    """Run a broker with the HTTP API, metrics and events in this process, in memory."""
    config = BrokerConfig(
        management_port=0,
        prometheus_port=0,
        handshake_timeout=PATIENCE,
        login_failure_delay=0,
        event_exchange="/",
    )
    with InProcessBroker(config=config) as broker:
        yield broker


def define(api: HttpApi, **changes: object) -> None:
    api.put("parameters/shovel/%2f/s", {"value": {**DEFINITION, **changes}})


def runs(api: HttpApi) -> None:
    wait_until(lambda: [row["state"] for row in api.get("shovels")] == ["running"], "the shovel runs")


def test_the_connections_of_a_shovel_to_its_own_broker_are_listed(api: HttpApi) -> None:
    define(api)
    runs(api)

    connections = api.get("connections")

    assert len({row["name"] for row in connections}) == 2
    for row in connections:
        assert (row["type"], row["protocol"], row["user"], row["vhost"]) == (
            "direct",
            "Direct 0-9-1",
            "none",
            "/",
        )
        assert row["client_properties"]["connection_name"] == "Shovel s"
    assert api.ask("DELETE", f"connections/{connections[0]['name'].replace(' ', '%20')}").status == 204


def test_metrics_count_shovels_by_state(served: InProcessBroker, api: HttpApi) -> None:
    assert served.broker is not None
    url = f"http://{served.broker.prometheus_addresses[0]}/metrics"

    def metrics() -> list[str]:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return [
                line for line in answer.read().decode().splitlines() if line.startswith("rabbitmq_shovel")
            ]

    assert metrics() == []
    define(api)
    runs(api)

    assert metrics() == ['rabbitmq_shovel_dynamic{status="running"} 1']


def test_events_report_the_states_of_a_shovel(api: HttpApi, channel: Channel) -> None:
    channel.declare("events")
    channel.bind("events", EVENTS, "shovel.#")

    define(api)
    runs(api)
    assert api.ask("DELETE", "parameters/shovel/%2f/s").status == 204

    wait_until(lambda: channel.ready("events") >= 4, "the events have arrived")
    found = []
    while (message := channel.get("events", no_ack=True)) is not None:
        found.append((message.carrier.routing_key, message.headers.get("status")))
        assert (message.headers["name"], message.headers["vhost"]) == ("s", "/")
    assert found == [
        ("shovel.worker.status", "starting"),
        ("shovel.worker.status", "starting"),
        ("shovel.worker.status", "running"),
        ("shovel.worker.removed", None),
    ]


def test_a_protected_shovel_is_not_deleted(api: HttpApi) -> None:
    define(api, internal=True)

    assert api.ask("DELETE", "shovels/vhost/%2f/s").status == 405
    assert len(api.get("shovels")) == 1


def test_a_definition_of_another_protocol_says_so(api: HttpApi) -> None:
    answer = api.ask("PUT", "parameters/shovel/%2f/s", {"value": {**DEFINITION, "src-protocol": "amqp10"}})

    assert answer.status == 400
    assert "src-protocol amqp10 is not supported: use amqp091 or local" in answer.body["reason"]
