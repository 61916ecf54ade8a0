"""Rights of seven kinds of callers: each path of the API with each method, and their reference.

Run `python -m tests.conformance.http_api.rights URL` against the management port of a new RabbitMQ, with the plugin
rabbitmq_shovel_management, to write the reference again.
"""

from __future__ import annotations

import base64
import http.client
import json
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

REFERENCE: Final = Path(__file__).with_name("rabbitmq-4.3.6-rights.json")

CALLERS: Final[dict[str, tuple[str, str] | None]] = {
    "nobody": None,
    "wrong": ("k-management", "wrong"),
    "plain": ("k-plain", "p"),
    "management": ("k-management", "p"),
    "policymaker": ("k-policymaker", "p"),
    "monitoring": ("k-monitoring", "p"),
    "administrator": ("k-administrator", "p"),
}
"""Credentials by kind of caller. Each user has all permissions in the virtual host `own`, and none in `other`."""
TAGS: Final = ("plain", "management", "policymaker", "monitoring", "administrator")
METHODS: Final = ("GET", "HEAD", "OPTIONS", "PATCH", "PUT", "POST", "DELETE")

HOST_PATHS: Final = (
    "definitions/{v}",
    "parameters/shovel/{v}",
    "parameters/shovel/{v}/s",
    "policies/{v}",
    "policies/{v}/p",
    "operator-policies/{v}",
    "operator-policies/{v}/p",
    "vhost-limits/{v}",
    "vhost-limits/{v}/max-queues",
    "consumers/{v}",
    "exchanges/{v}",
    "exchanges/{v}/e",
    "exchanges/{v}/amq.default",
    "exchanges/{v}/amq.direct",
    "exchanges/{v}/e/publish",
    "exchanges/{v}/e/bindings/source",
    "exchanges/{v}/e/bindings/destination",
    "queues/{v}",
    "queues/{v}/q",
    "queues/{v}/nope",
    "queues/{v}/q/bindings",
    "queues/{v}/q/contents",
    "queues/{v}/q/get",
    "queues/{v}/q/actions",
    "bindings/{v}",
    "bindings/{v}/e/e/q/q",
    "bindings/{v}/e/e/q/q/k",
    "bindings/{v}/e/amq.default/q/q",
    "bindings/{v}/e/amq.default/q/q/q",
    "bindings/{v}/e/amq.default/e/e",
    "bindings/{v}/e/e/e/amq.default",
    "vhosts/{v}/deletion/protection",
    "vhosts/{v}/permissions",
    "vhosts/{v}/topic-permissions",
    "vhosts/{v}/connections",
    "vhosts/{v}/channels",
    "permissions/{v}/k-subject",
    "topic-permissions/{v}/k-subject",
    "topic-permissions/{v}/k-subject/amq.topic",
    "topic-permissions/{v}/k-subject/nope",
    "aliveness-test/{v}",
    "health/checks/quorum-queues-without-elected-leaders/vhost/{v}/",
    "health/checks/quorum-queues-without-elected-leaders/vhost/{v}/pattern/a",
    "shovels/{v}",
    "shovels/vhost/{v}/s",
    "shovels/vhost/{v}/s/restart",
)
"""Paths of a virtual host, `{v}`; one that users may open, one that they may not, and none."""
PATHS: Final = (
    "overview",
    "cluster-name",
    "nodes",
    "nodes/{node}",
    "nodes/nope",
    "nodes/{node}/memory",
    "nodes/{node}/memory/relative",
    "extensions",
    "all-configuration",
    "definitions",
    "parameters",
    "parameters/shovel",
    "parameters/nope",
    "global-parameters",
    "global-parameters/g",
    "policies",
    "operator-policies",
    "vhost-limits",
    "connections",
    "connections/nope",
    "connections/nope/channels",
    "connections/username/guest",
    "connections/username/k-{tag}",
    "connections/username/nope",
    "channels",
    "channels/nope",
    "consumers",
    "exchanges",
    "queues",
    "queues/detailed",
    "bindings",
    "vhosts",
    "vhosts/own",
    "vhosts/other",
    "vhosts/nope",
    "vhosts/victim",
    "vhosts/own/start/{node}",
    "vhosts/own/start/nope",
    "users",
    "users/bulk-delete",
    "users/without-permissions",
    "users/k-{tag}",
    "users/k-victim",
    "users/guest",
    "users/nope/permissions",
    "users/k-{tag}/permissions",
    "users/k-{tag}/topic-permissions",
    "user-limits",
    "user-limits/k-{tag}",
    "user-limits/guest",
    "user-limits/k-victim/max-channels",
    "feature-flags",
    "feature-flags/quorum_queue/enable",
    "feature-flags/nope/enable",
    "deprecated-features",
    "deprecated-features/used",
    "whoami",
    "permissions",
    "topic-permissions",
    "healthchecks/node",
    "healthchecks/node/{node}",
    "health/checks/alarms",
    "health/checks/local-alarms",
    "health/checks/metadata-store/initialized",
    "health/checks/metadata-store/initialized/with-data",
    "health/checks/certificate-expiration/1/months",
    "health/checks/port-listener/1",
    "health/checks/protocol-listener/amqp",
    "health/checks/virtual-hosts",
    "health/checks/quorum-queues-without-elected-leaders/all-vhosts/",
    "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/a",
    "health/checks/node-is-quorum-critical",
    "health/checks/is-in-service",
    "health/checks/below-node-connection-limit",
    "health/checks/ready-to-serve-clients",
    "health/checks/reached-target-cluster-size",
    "reset",
    "reset/{node}",
    "rebalance/queues",
    "auth/attempts/{node}",
    "auth/attempts/{node}/source",
    "login",
    "config/effective",
    "auth/hash_password/secret",
    "version",
    "shovels",
    *(path.replace("{v}", host) for path in HOST_PATHS for host in ("own", "other", "nope")),
)

SHOVEL: Final = {
    "value": {
        "src-protocol": "amqp091",
        "src-uri": "amqp://127.0.0.1:1",
        "src-queue": "q",
        "dest-protocol": "amqp091",
        "dest-uri": "amqp://127.0.0.1:1",
        "dest-queue": "q",
    }
}
BODIES: Final[tuple[tuple[str, Any], ...]] = (
    ("parameters/", SHOVEL),
    ("global-parameters/", {"value": 1}),
    ("policies/", {"pattern": "^none", "definition": {"max-length": 10}}),
    ("operator-policies/", {"pattern": "^none", "definition": {"max-length": 10}}),
    ("vhost-limits/", {"value": 1000}),
    ("user-limits/", {"value": 1000}),
    ("queues/{v}/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ("queues/{v}/q/actions", {"action": "sync"}),
    ("queues/", {"durable": True}),
    (
        "exchanges/{v}/e/publish",
        {"properties": {}, "routing_key": "k", "payload": "", "payload_encoding": "string"},
    ),
    ("exchanges/", {"type": "topic", "durable": True}),
    ("bindings/", {"routing_key": "k"}),
    ("users/bulk-delete", {"users": ["k-victim"]}),
    ("users/k-victim", {"password": "p", "tags": ""}),
    ("permissions/", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("topic-permissions/{v}/k-subject/nope", {"exchange": "nope", "write": ".*", "read": ".*"}),
    ("topic-permissions/", {"exchange": "amq.topic", "write": ".*", "read": ".*"}),
    ("cluster-name", {"name": "rabbit@rights"}),
    ("login", b"username=k-management&password=p"),
)
"""Bodies of PUT and POST by the beginning of the path; the first one that fits is sent, otherwise an empty object."""

SKIPPED: Final = {
    ("PUT", "users/k-{tag}"),
    ("DELETE", "users/k-{tag}"),
    ("PUT", "users/guest"),
    ("DELETE", "users/guest"),
    ("DELETE", "vhosts/own"),
    ("DELETE", "vhosts/other"),
    ("PUT", "vhosts/other"),
    ("PUT", "vhosts/nope"),
}
"""Requests that would change the callers or the virtual hosts of the others."""


class Client:
    """Client that keeps its connection."""

    def __init__(self, base: str) -> None:
        address = urlsplit(base)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        credentials: tuple[str, str] | None = ("guest", "guest"),
    ) -> tuple[int, Any]:
        """Send a request, and return status and body of the answer."""
        headers = {"Content-Type": "application/json"}
        if path == "login":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if credentials is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(credentials).encode()).decode()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, f"/api/{path}", data, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        try:
            return answer.status, json.loads(text) if text else None
        except ValueError:
            return answer.status, None

    def close(self) -> None:
        self._connection.close()


def _prepare(client: Client) -> None:
    """Add the users, the virtual hosts and what is in them."""
    for host in ("own", "other"):
        client.ask("PUT", f"vhosts/{host}", {})
    for tag in (*TAGS, "subject"):
        tags = "" if tag in ("plain", "subject") else tag
        client.ask("PUT", f"users/k-{tag}", {"password": "p", "tags": tags})
        if tag != "subject":
            client.ask("PUT", f"permissions/own/k-{tag}", dict.fromkeys(("configure", "write", "read"), ".*"))
    for host in ("own", "other"):
        for path in ("queues/{v}/q", "exchanges/{v}/e", "policies/{v}/p"):
            _restore(client, path.replace("{v}", host), host)


def _restore(client: Client, path: str, host: str) -> None:
    """Put back what requests before may have deleted."""
    head = path.partition("/")[0]
    wanted: dict[str, tuple[tuple[str, str], ...]] = {
        "queues": (("PUT", "queues/{v}/q"),),
        "exchanges": (("PUT", "exchanges/{v}/e"),),
        "bindings": (
            ("PUT", "queues/{v}/q"),
            ("PUT", "exchanges/{v}/e"),
            ("POST", "bindings/{v}/e/e/q/q"),
        ),
        "policies": (("PUT", "policies/{v}/p"),),
        "operator-policies": (("PUT", "operator-policies/{v}/p"),),
        "vhost-limits": (("PUT", "vhost-limits/{v}/max-queues"),),
        "permissions": (("PUT", "permissions/{v}/k-subject"),),
        "topic-permissions": (("PUT", "topic-permissions/{v}/k-subject"),),
        "global-parameters": (("PUT", "global-parameters/g"),),
        "user-limits": (("PUT", "users/k-victim"), ("PUT", "user-limits/k-victim/max-channels")),
        "users": (("PUT", "users/k-victim"),),
        "vhosts": (("PUT", "vhosts/victim"),),
    }
    for method, each in wanted.get(head, ()):
        client.ask(method, each.replace("{v}", host), body_of(each))


def body_of(path: str) -> Any:
    """Return the body of a PUT or POST."""
    for host in ("own", "other", "nope"):
        path = path.replace(f"/{host}/", "/{v}/", 1) if f"/{host}/" in path else path
    return next((body for beginning, body in BODIES if path.startswith(beginning)), {})


def _shown(body: Any) -> Any:
    """Return the objects of a list that were shown, by name or virtual host, or the reason of a refusal."""
    if isinstance(body, dict) and isinstance(body.get("error"), str):
        return [body["error"], body.get("reason")]
    if not isinstance(body, list):
        return None
    own = {"own", "other", "victim", "k-plain", "guest"}
    found = set()
    for each in body:
        if isinstance(each, dict):
            name = str(each.get("vhost", each.get("name", each.get("user"))))
            found.add(name if name in own or name.startswith("k-") else "*")
    return sorted(found)


def ask_all(base: str) -> dict[str, dict[str, list[Any]]]:
    """Ask every path with every method as every caller; return statuses and names shown, by request and caller."""
    client = Client(base)
    try:
        _prepare(client)
        (node,) = (each["name"] for each in client.ask("GET", "nodes")[1])
        found: dict[str, dict[str, list[Any]]] = {}
        for path in PATHS:
            host = next((name for name in ("own", "other") if f"/{name}" in path), "own")
            for method in METHODS:
                if (method, path) in SKIPPED:
                    continue
                answers = found[f"{method} {path}"] = {}
                for caller, credentials in CALLERS.items():
                    if method in ("PUT", "POST", "DELETE"):
                        _restore(client, path, host)
                    tag = caller if caller in TAGS else "management"
                    asked = path.replace("{node}", node).replace("{tag}", tag)
                    body = body_of(path) if method in ("PUT", "POST") else None
                    status, shown = client.ask(method, asked, body, credentials)
                    answers[caller] = [status, _shown(shown)]
        return found
    finally:
        client.close()


if __name__ == "__main__":
    REFERENCE.write_text(
        json.dumps(ask_all(sys.argv[1].rstrip("/")), indent=None).replace('}, "', '},\n"') + "\n"
    )
