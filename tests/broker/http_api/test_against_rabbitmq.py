"""Every answer of the HTTP API is RabbitMQ 4.3.6's, except for the differences that stand here with their reason.

The reference was recorded by `python -m tests.conformance.http_api.answers URL`.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.conformance.http_api.answers import REFERENCE, ask_all
from tests.support.in_process_broker import InProcessBroker
from warren.broker import BrokerConfig

KNOWN: Final = {
    "GET queues/%2f/q.classic": "RabbitMQ shows since when a queue is idle",
    "GET queues/%2f/q.quorum": "facts about Raft and about priorities, and sizes that count what RabbitMQ adds to a message",
    "GET queues/%2f/q.stream": "segments of a stream in memory, and the time of its first message",
    "GET exchanges/%2f": "there is no exchange amq.rabbitmq.log",
    "GET overview": "as above: fewer exchanges",
    "GET nodes": "the name of the node",
    "GET vhosts": "bytes of a virtual host's connections; statistics of the first seconds; the description of the first one",
    "GET definitions": "RabbitMQ's own exchange and global parameters, and the description of the first virtual host",
    "GET definitions?download=x": "as definitions",
    "GET definitions/v1": "RabbitMQ keeps limits that were removed as an empty list, and a protection that was as false",
    'PUT permissions/v1/u1 {"configure": "(", "write": ".*", "read": ".*"}': "the text of the regular expression's error",
    'PUT policies/v1/p2 {"pattern": "(", "definition": {"max-length": 10}}': "the text of the regular expression's error",
    "GET global-parameters": "the id of each cluster is another one",
    "GET cluster-name": "the default name of a cluster",
    "GET exchanges?page=1&page_size=2&columns=name,vhost,message_stats.publish_in": "fewer exchanges",
    "GET queues?disable_stats=true&enable_queue_totals=true": "the set of fields without statistics",
    "GET queues?sort=bogus": "fields as in queues/%2f/q.quorum",
}
"""Requests whose answers differ, with the reason."""


def _name(request: str) -> str:
    return request.partition(": ")[2]


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    config = BrokerConfig(management_port=0, login_failure_delay=0, handshake_timeout=120)
    with InProcessBroker(config=config) as broker:
        assert broker.broker is not None
        return ask_all(f"http://{broker.broker.management_addresses[0]}")


def test_each_answer_is_rabbitmqs_or_a_known_difference(answers: list[dict[str, Any]]) -> None:
    reference = json.loads(REFERENCE.read_text())
    assert len(reference) == len(answers) > 200

    different = {
        _name(wanted["request"]): (wanted, found)
        for wanted, found in zip(reference, answers, strict=True)
        if wanted != found
    }

    unknown = {name: pair for name, pair in different.items() if name not in KNOWN}
    assert not unknown
    assert not {name for name in KNOWN if name not in different}, "these differ no more"


def _without_own_objects(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return definitions without what every RabbitMQ cluster has by itself, and every virtual host without its texts."""
    found = {
        **definitions,
        "exchanges": [each for each in definitions["exchanges"] if each["name"] != "amq.rabbitmq.log"],
        # RabbitMQ keeps limits that were all removed as an empty list.
        "parameters": [each for each in definitions["parameters"] if each["value"] != []],
    }
    found.pop("global_parameters", None)
    hosts = [{**each, "metadata": dict(each["metadata"])} for each in definitions.get("vhosts", [])]
    if "metadata" in definitions:
        found["metadata"] = dict(definitions["metadata"])
    for each in (*hosts, found) if "metadata" in found else hosts:
        # Once a virtual host was protected, RabbitMQ also shows that it is no more.
        if each["metadata"].get("protected_from_deletion") is False:
            del each["metadata"]["protected_from_deletion"]
        if each.get("name") == "/":
            del each["metadata"]["description"]
    return {**found, "vhosts": sorted(hosts, key=lambda each: str(each["name"]))}


@pytest.mark.parametrize("path", ["definitions", "definitions?download=x", "definitions/v1"])
def test_definitions_are_rabbitmqs_but_for_its_own_objects(answers: list[dict[str, Any]], path: str) -> None:
    wanted, found = (
        next(each["body"] for each in listed if _name(each["request"]) == f"GET {path}")
        for listed in (json.loads(REFERENCE.read_text()), answers)
    )
    assert _without_own_objects(found) == _without_own_objects(wanted)


def test_known_differences_are_in_the_values_only(answers: list[dict[str, Any]]) -> None:
    reference = json.loads(REFERENCE.read_text())

    assert [each["status"] for each in answers] == [each["status"] for each in reference]
