"""Paths of Warren's own: topology with risks, stories of messages, and the OpenAPI document that describes them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.broker.http_api.conftest import base_url
from tests.support.blocking_client import Channel, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from warren.broker import BrokerConfig
from warren.broker.http_api.resources.openapi import openapi
from warren.broker.http_api.routes import ROUTES

DOCUMENT: Final = openapi()
TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


@pytest.fixture
def captured() -> Iterator[InProcessBroker]:
    """Run a broker that captures events, with the HTTP API."""
    config = BrokerConfig(
        management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0, capture_events=("events",)
    )
    with InProcessBroker(config=config) as broker:
        yield broker


def check(value: Any, schema: dict[str, Any], where: str = "") -> None:
    """Check a value against a schema, with the keywords of JSON Schema that the document uses."""
    if "$ref" in schema:
        check(value, DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], where)
    if "oneOf" in schema:
        chosen = schema["oneOf"][1 if value is None else 0]
        check(value, chosen, where)
    if "enum" in schema:
        assert value in schema["enum"], where
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, TYPES[kind]) for kind in kinds), (where, value, kinds)
        assert not isinstance(value, bool) or "boolean" in kinds, (where, value)
    if isinstance(value, list) and "items" in schema:
        for at, item in enumerate(value):
            check(item, schema["items"], f"{where}[{at}]")
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema["required"]) <= set(value), (where, set(schema["required"]) - set(value))
        assert set(value) <= set(schema["properties"]), (where, set(value) - set(schema["properties"]))
        for name, item in value.items():
            check(item, schema["properties"][name], f"{where}.{name}")


def described(api: HttpApi, method: str, path: str, template: str, body: Any = None) -> Any:
    """Send a request, and check the answer against the document."""
    found = api.ask(method, path, body)
    responses = DOCUMENT["paths"][f"/api/{template}"][method.lower()]["responses"]
    check(found.body, responses[str(found.status)]["content"]["application/json"]["schema"], path)
    return found.body


def test_the_document_describes_each_route_and_nothing_else(api: HttpApi) -> None:
    routes = {(each.method, each.path) for each in ROUTES if each.path.startswith("/api/warren/")}

    found = HttpApi(api.base, "nobody", "wrong").get("warren/openapi.json")

    assert found == DOCUMENT
    assert {(method.upper(), path) for path, item in found["paths"].items() for method in item} == routes
    names = [operation["operationId"] for item in found["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))


def test_answers_are_as_the_document_says(api: HttpApi, channel: Channel) -> None:
    channel.declare_exchange("later", "x-delayed-message", x_delayed_type="fanout")
    channel.declare("dead")
    channel.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channel.declare("s", durable=True, x_queue_type="stream")
    channel.bind("q", "later", "")
    channel.confirm()
    for queue in ("q", "q", "s"):
        channel.publish(queue, "x", headers={"n": [1, {"a": None}]}, message_id="m")
    channel.publish("", "y", exchange="later", headers={"x-delay": 3_600_000})
    channel.settled_until(4)
    channel.consume("q")
    first, _ = channel.deliveries(2)
    channel.reject(first.tag)
    assert channel.ready("dead") == 1
    queue = "warren/queues/{vhost}/{queue}"

    for path in (
        "q/messages?state=unacknowledged",
        "q/messages",
        "dead/messages",
        "s/messages",
        "none/messages",
    ):
        described(api, "GET", f"warren/queues/%2f/{path}", f"{queue}/messages")
    described(api, "GET", "warren/queues/%2f/q/messages?limit=x", f"{queue}/messages")
    described(api, "GET", "warren/queues/%2f/dead/dead-letters", f"{queue}/dead-letters")
    described(api, "GET", "warren/exchanges/%2f/later/delayed", "warren/exchanges/{vhost}/{exchange}/delayed")
    for kind in ("dead-letters", "delays"):
        assert described(api, "GET", f"warren/{kind}", f"warren/{kind}")
        assert described(api, "GET", f"warren/{kind}/%2f", f"warren/{kind}/{{vhost}}")
    described(api, "GET", "warren/topology/%2f", "warren/topology/{vhost}")
    described(api, "GET", "warren/stories/%2f/m", "warren/stories/{vhost}/{message_id}")
    for action, more in (("replay", {}), ("move", {"queue": "q"}), ("delete", {})):
        body = {"all": True, "dry_run": True, **more}
        described(
            api, "POST", f"warren/queues/%2f/dead/messages/{action}", f"{queue}/messages/{action}", body
        )
        described(api, "POST", f"warren/queues/%2f/dead/messages/{action}", f"{queue}/messages/{action}", {})
    refused = described(
        api,
        "POST",
        "warren/queues/%2f/dead/messages/move",
        f"{queue}/messages/move",
        {"all": True, "queue": "no"},
    )
    assert refused["error"] == "not_found"
    channel.publish("dead", "no letter")
    assert channel.ready("dead") == 2
    outcome = described(
        api, "POST", "warren/queues/%2f/dead/messages/replay", f"{queue}/messages/replay", {"all": True}
    )
    assert (outcome["done"], len(outcome["failed"])) == (1, 1)


def test_the_topology_shows_what_leads_where_and_what_could_be_lost(api: HttpApi, channel: Channel) -> None:
    channel.declare_exchange("orders", "topic", durable=True, alternate_exchange="gone")
    channel.declare_exchange("empty", "fanout", durable=True)
    channel.declare_exchange("deaf", "direct", durable=True)
    channel.declare("billing", durable=True, x_dead_letter_exchange="deaf", x_dead_letter_routing_key="k")
    channel.declare("short", durable=True, x_max_length=3, x_message_ttl=60000)
    channel.declare("lost", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="nowhere")
    channel.declare("poisoned", durable=True, x_queue_type="quorum")
    channel.declare("kept", durable=True, x_queue_type="quorum", x_delivery_limit=2**31 - 1)
    channel.bind("billing", "orders", "order.#")
    channel.bind("short", "deaf", "other")
    channel.publish("nobody", "x", exchange="deaf")
    channel.publish("order.new", "x", exchange="orders")
    assert channel.ready("billing") == 1

    found = api.get("warren/topology/%2f")

    nodes = {each["id"]: each for each in found["nodes"]}
    assert set(nodes) == {
        "exchange:orders",
        "exchange:empty",
        "exchange:deaf",
        "queue:billing",
        "queue:short",
        "queue:lost",
        "queue:poisoned",
        "queue:kept",
    }
    assert nodes["queue:billing"]["messages"] == 1
    edges = {(each["kind"], each["source"], each["target"], each["routing_key"]) for each in found["edges"]}
    assert edges == {
        ("binding", "exchange:orders", "queue:billing", "order.#"),
        ("binding", "exchange:deaf", "queue:short", "other"),
        ("alternate", "exchange:orders", "exchange:gone", ""),
        ("dead-letter", "queue:billing", "exchange:deaf", "k"),
        ("dead-letter", "queue:lost", "queue:nowhere", "nowhere"),
    }
    risks = {(each["kind"], each["subject"]): each["text"] for each in found["risks"]}
    assert risks == {
        ("loss", "exchange:deaf"): "has dropped 1 messages that no binding took",
        (
            "loss",
            "exchange:empty",
        ): "has neither a binding nor an alternate exchange: messages are dropped, unless they are mandatory",
        ("loss", "exchange:orders"): "has the alternate exchange 'gone', which does not exist",
        ("loss", "queue:billing"): "dead-letters to exchange 'deaf' with key 'k', which no binding takes",
        ("loss", "queue:lost"): "dead-letters to queue 'nowhere', which does not exist",
        (
            "loss",
            "queue:poisoned",
        ): "has no dead letter exchange: messages that reach the delivery limit are dropped",
        (
            "loss",
            "queue:short",
        ): "has no dead letter exchange: messages that expire or are too many for its length are dropped",
    }
    assert found["complete"] is True


def test_the_story_of_a_message_is_told_from_captured_events(captured: InProcessBroker) -> None:
    api = HttpApi(base_url(captured))
    with Connection(captured.url) as connection:
        channel = connection.channel()
        channel.declare("dead")
        channel.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        for number in range(50):
            channel.publish("q", "x", message_id=f"other-{number}")
        channel.publish("q", "x", message_id='m"ä')
        channel.consume("q")
        for message in channel.deliveries(51):
            channel.reject(message.tag)
        assert channel.ready("dead") == 51
    captured.advance(60)

    path = "warren/stories/%2f/m%22%C3%A4"
    found: Any = {"steps": []}
    while len(found["steps"]) < 5:
        found = described(api, "GET", path, "warren/stories/{vhost}/{message_id}")

    assert [each["event"] for each in found["steps"]] == [
        "published",
        "delivered",
        "rejected",
        "published",
        "dead_lettered",
    ]
    assert found["messages"] == [{"id": 'm"ä', "cause": None}]
    assert {"queue q", "queue dead"} <= set(found["participants"])
    assert (found["stream"], found["complete"]) == ("events", True)
    unknown = api.get("warren/stories/%2f/unknown")
    assert (unknown["messages"], unknown["steps"]) == ([], [])


def test_a_story_needs_a_stream_that_the_caller_may_read(captured: InProcessBroker) -> None:
    api = HttpApi(base_url(captured))
    api.put("users/u", {"password": "p", "tags": "management"})
    api.put("permissions/%2f/u", {"configure": "", "read": "^q$", "write": ""})

    assert HttpApi(api.base, "u", "p").ask("GET", "warren/stories/%2f/m").status == 401
    assert api.ask("GET", "warren/stories/%2f/m?stream=none").status == 404
    assert api.ask("GET", f"warren/stories/%2f/{'m' * 256}").status == 400


def test_events_that_are_none_do_not_stop_a_story(captured: InProcessBroker) -> None:
    api = HttpApi(base_url(captured))
    with Connection(captured.url) as connection:
        channel = connection.channel()
        channel.declare("forged", durable=True, x_queue_type="stream")
        channel.confirm()
        bodies = [
            "m",
            '["m"]',
            '[{"message_id": "m"}]',
            '[{"message_id": ["m"], "event": 1, "at": "m"}]',
            "{" * 100,
        ]
        for body in bodies:
            channel.publish(
                "forged", body, message_type="warren.events", headers={"source": "m", "by": 7, "sequence": 1}
            )
        channel.publish("forged", "m", headers={"x": "m"})
        channel.settled_until(len(bodies) + 1)

    assert api.get("warren/stories/%2f/m?stream=forged")["steps"] == []
