"""Attacks over HTTP by users of the broker."""

from __future__ import annotations

import json
from typing import Any, Final

from pamqp import commands

from tests.faults.attacks.amqp_users import declare_many, fill
from tests.faults.attacks.attack import Target, attack
from tests.support.raw_client import made

QUEUES: Final = 2_000


def refused(target: Target, method: str, path: str, body: Any = None) -> None:
    """Send a request that the broker must refuse as one of the client's faults."""
    found = target.api.ask(method, path, body)
    assert 400 <= found.status < 500, (method, path, found)


# -- JSON


@attack("http", "JSON")
def arrays_in_arrays(target: Target) -> None:
    for body in (
        b"[" * 900_000,
        b"[" * 400_000 + b"]" * 400_000,
        b'{"a":' * 150_000,
        b'{"arguments": ' + b"[" * 500_000,
    ):
        refused(target, "PUT", "queues/%2f/attack", body)
        refused(target, "POST", "definitions", body)


@attack("http", "JSON")
def very_many_values(target: Target) -> None:
    for body in (
        b'{"arguments": {"a": [' + b"{}," * 300_000 + b"1]}}",
        b'{"arguments": {"a": [' + b"1," * 450_000 + b"1]}}",
        b'{"arguments": {' + b",".join(b'"%d":1' % number for number in range(70_000)) + b"}}",
        b'{"arguments": {' + b'"a":1,' * 140_000 + b'"a":1}}',
    ):
        refused(target, "PUT", "queues/%2f/attack", body)


@attack("http", "JSON")
def definitions_of_very_many_values(target: Target) -> None:
    for body in (
        b'{"queues": [' + b"{}," * 400_000 + b"1]}",
        b'{"queues": [' + b"1," * 2_000_000 + b"1]}",
        b'{"queues": [' + b'{"name":"q","vhost":"/","arguments":{"a":' + b"[1]" + b"}}," * 200_000 + b"1]}",
        b'{"parameters": [' + b'{"value":{},"vhost":"/","component":"c","name":"n"},' * 100_000 + b"1]}",
    ):
        refused(target, "POST", "definitions", body)


@attack("http", "string")
def strings_of_megabytes(target: Target) -> None:
    api = target.api
    for text in (
        "x" * 900_000,
        "\u20ac" * 300_000,
        "\\u0041" * 150_000,
        "\\n" * 450_000,
        "\\ud83d\\ude00" * 75_000,
    ):
        body = b'{"value": "' + text.encode() + b'"}'
        found = api.ask("PUT", "parameters/attack/%2f/x", body)
        assert found.status < 500, found
        body = (
            b'{"payload_encoding": "string", "routing_key": "nobody", "properties": {}, "payload": "'
            + text.encode() * 5
            + b'"}'
        )
        assert api.ask("POST", "exchanges/%2f/amq.default/publish", body).status < 500


@attack("http", "string")
def strings_that_are_no_text(target: Target) -> None:
    for text in (b"\xff" * 900_000, b"\\ud800" * 150_000, b"\x01" * 900_000, b"\\x" * 400_000):
        refused(target, "PUT", "queues/%2f/attack", b'{"arguments": {"a": "' + text + b'"}}')


@attack("http", "string")
def bodies_in_base64(target: Target) -> None:
    for payload in ("QUFB" * 2_000_000, "=" * 8_000_000, "!" * 8_000_000):
        body = {"payload_encoding": "base64", "routing_key": "nobody", "properties": {}, "payload": payload}
        assert target.api.ask("POST", "exchanges/%2f/amq.default/publish", body).status < 500


@attack("http", "number")
def numbers_of_very_many_digits(target: Target) -> None:
    digits = b"1" * 900_000
    for number in (
        digits,
        b"-" + digits,
        b"0." + digits,
        b"1e" + digits,
        digits + b"e-" + digits[:10],
        b"1" * 4000,
    ):
        body = b'{"arguments": {"x-mine": ' + number + b"}}"
        assert target.api.ask("PUT", "queues/%2f/attack", body).status in (201, 204, 400, 413)
        target.api.ask("DELETE", "queues/%2f/attack")


@attack("http", "number")
def numbers_at_their_limits_over_http(target: Target) -> None:
    for number in (0, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**300, 1e308, 0.5):
        for name in ("x-max-length", "x-message-ttl", "x-expires", "x-max-priority", "x-delivery-limit"):
            found = target.api.ask("PUT", "queues/%2f/attack", {"arguments": {name: number}})
            assert found.status in (201, 400), (name, number, found)
            target.api.ask("DELETE", "queues/%2f/attack")
        for path in ("max-connections", "max-queues"):
            assert target.api.ask("PUT", f"vhost-limits/%2f/{path}", {"value": number}).status in (
                201,
                204,
                400,
            )
            assert target.api.ask("DELETE", f"vhost-limits/%2f/{path}").status in (204, 404)


@attack("http", "number")
def numbers_in_queries(target: Target) -> None:
    for number in ("-1", "0", "1" * 4000, "1e99", "NaN", "%00", str(2**64)):
        for query in (
            f"page={number}",
            f"page=1&page_size={number}",
            f"lengths_age={number}&lengths_incr=1",
            f"lengths_age=60&lengths_incr={number}",
            f"data_rates_age={number}&data_rates_incr={number}",
        ):
            assert target.api.ask("GET", f"queues?{query}").status < 500
    for count in (0, -1, 2**31, 10**18, 1.5):
        body = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
        target.api.put("queues/%2f/attack")
        assert target.api.ask("POST", "queues/%2f/attack/get", body).status in (200, 400)
    target.api.ask("DELETE", "queues/%2f/attack")


# -- patterns


PATTERNS: Final = (
    "(a+)+$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(x+x+)+y",
    "(.*)" * 200,
    "((a{0,100}){0,100}){0,100}",
    "(" * 1000 + ")" * 1000,
    "(a|b|ab)*" * 100 + "$",
    "(?i)" + "a?" * 3000 + "a" * 3000,
    "[" + "a-z" * 5000 + "]+$",
    "\\pL" * 100,
    "\\pL" * 1000,
    "x" * 60_000,
    "(" + "|".join(f"a{number}" for number in range(8000)) + ")$",
)
"""Regular expressions that cost a lot: by backtracking, by their size once compiled, by their depth."""


@attack("http", "pattern")
def patterns_of_policies(target: Target) -> None:
    api = target.api
    with target.connect() as peer:
        names = [f"{'a' * 200}{number}" for number in range(200)]
        for name in names:
            peer.declare(name, exclusive=True)
        for pattern in PATTERNS:
            for path in ("policies", "operator-policies"):
                body = {"pattern": pattern, "definition": {"max-length": 10}}
                assert api.ask("PUT", f"{path}/%2f/attack", body).status in (201, 204, 400)
        for path in ("policies", "operator-policies"):
            api.ask("DELETE", f"{path}/%2f/attack")
        peer.close()


@attack("http", "pattern")
def patterns_of_permissions(target: Target) -> None:
    api = target.api
    api.put("users/attacker", {"password": "p", "tags": "management"})
    for pattern in PATTERNS:
        body = {"configure": pattern, "write": pattern, "read": pattern}
        assert api.ask("PUT", "permissions/%2f/attacker", body).status in (201, 204, 400)
        with target.connect() as peer:
            peer.close()
        user = type(api)(api.base, "attacker", "p")
        assert user.ask("PUT", "queues/%2f/" + "a" * 240, {}).status in (201, 204, 401)
        api.ask("DELETE", "queues/%2f/" + "a" * 240)
    assert api.ask("DELETE", "users/attacker").status == 204


@attack("http", "pattern")
def patterns_of_lists(target: Target) -> None:
    with target.connect() as peer:
        declare_many(peer, QUEUES, exclusive=True)
        for pattern in PATTERNS:
            if len(pattern) < 5000:
                text = "".join(f"%{byte:02x}" for byte in pattern.encode())[:7500]
                assert target.api.ask("GET", f"queues?page=1&name={text}&use_regex=true").status in (200, 400)
        peer.close()


@attack("http", "pattern")
def very_many_policies_over_very_many_queues(target: Target) -> None:
    api = target.api
    with target.connect() as peer:
        declare_many(peer, 500, exclusive=True)
        policies = [
            {
                "vhost": "/",
                "name": f"attack{number}",
                "pattern": f"^attack.*(a|b)+{number}$",
                "definition": {"max-length": 10},
                "priority": number,
            }
            for number in range(300)
        ]
        found = api.ask("POST", "definitions", {"policies": policies})
        assert found.status in (204, 400), found
        peer.close()
    for each in api.get("policies/%2f"):
        api.ask("DELETE", f"policies/%2f/{each['name']}")


# -- lists and counts


@attack("http", "count")
def lists_of_very_many_queues(target: Target) -> None:
    with target.connect() as peer:
        declare_many(peer, 10_000, exclusive=True)
        for path in (
            "queues",
            "queues?page=1&page_size=500&sort=messages&sort_reverse=true",
            "queues?sort=name",
            "queues/detailed",
            "bindings",
            "definitions",
            "overview",
            "nodes",
            "memory",
        ):
            assert target.api.ask("GET", path).status in (200, 404)
        peer.close()


@attack("http", "count")
def very_many_messages_are_looked_at(target: Target) -> None:
    with target.connect() as peer:
        queue = peer.declare("attack.deep", exclusive=False, durable=True)
        fill(peer, queue, 20_000)
        peer.close()
    api = target.api
    for mode in ("ack_requeue_true", "reject_requeue_true", "ack_requeue_false"):
        body = {"count": 20_000, "ackmode": mode, "encoding": "auto"}
        found = api.ask("POST", "queues/%2f/attack.deep/get", body)
        assert found.status == 200, found.status
        assert len(found.body) == 20_000
    assert api.ask("DELETE", "queues/%2f/attack.deep").status == 204


@attack("http", "count")
def one_http_publish_reaches_very_many_queues(target: Target) -> None:
    with target.connect() as peer:
        for name in declare_many(peer, QUEUES, exclusive=True):
            peer.send(made(commands.Queue.Bind, queue=name, exchange="amq.fanout"))
            peer.expect(commands.Queue.BindOk)
        body = {"payload_encoding": "string", "routing_key": "", "properties": {}, "payload": "x"}
        assert target.api.ask("POST", "exchanges/%2f/amq.fanout/publish", body).body == {"routed": True}
        peer.close()


@attack("http", "count")
def definitions_of_very_many_objects(target: Target) -> None:
    api = target.api
    api.put("vhosts/attack")
    queues = [{"name": f"q{number}", "durable": True, "arguments": {}} for number in range(QUEUES)]
    bindings = [
        {
            "source": "amq.topic",
            "destination": f"q{number}",
            "destination_type": "queue",
            "routing_key": f"k.{number}",
            "arguments": {},
        }
        for number in range(QUEUES)
    ]
    found = api.ask("POST", "definitions/attack", {"queues": queues, "bindings": bindings})
    assert found.status == 204, found
    assert len(json.dumps(api.get("definitions/attack"))) > 10_000
    assert api.ask("DELETE", "vhosts/attack").status == 204


@attack("http", "header")
def message_properties_of_very_many_headers(target: Target) -> None:
    body = {
        "payload_encoding": "string",
        "routing_key": "nobody",
        "properties": {"headers": {f"h{number}": number for number in range(9_000)}},
        "payload": "x",
    }
    for _ in range(5):
        assert target.api.ask("POST", "exchanges/%2f/amq.default/publish", body).status in (200, 400, 413)


@attack("http", "name")
def names_that_are_too_long_over_http(target: Target) -> None:
    name = "a" * 7000
    for kind in ("queues/%2f", "exchanges/%2f", "policies/%2f", "parameters/shovel/%2f"):
        refused(target, "PUT", f"{kind}/{name}", {})
