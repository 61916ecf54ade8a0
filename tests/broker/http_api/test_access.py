"""Access to the HTTP API: logins, roles, permissions of other virtual hosts, and requests that harm nobody."""

from __future__ import annotations

import logging
import socket
from urllib.parse import urlsplit

import pytest

from tests.support.blocking_client import Channel, Closed, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import InProcessBroker

ROLES = ("management", "policymaker", "monitoring", "administrator")


def as_user(api: HttpApi, name: str, tags: str, vhost: str = "own") -> HttpApi:
    api.put(f"vhosts/{vhost}")
    api.put(f"users/{name}", {"password": "secret", "tags": tags})
    api.put(f"permissions/{vhost}/{name}", {"configure": "^mine", "write": ".*", "read": ".*"})
    return HttpApi(api.base, name, "secret")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("overview", ROLES),
        ("queues", ROLES),
        ("nodes", ("monitoring", "administrator")),
        ("users", ("administrator",)),
        ("definitions", ("administrator",)),
        ("parameters", ("policymaker", "administrator")),
    ],
)
def test_a_role_opens_its_paths_only(api: HttpApi, path: str, allowed: tuple[str, ...]) -> None:
    statuses = {role: as_user(api, role, role).ask("GET", path).status for role in ROLES}

    assert statuses == {role: 200 if role in allowed else 401 for role in ROLES}


def test_a_user_without_a_role_or_with_a_wrong_password_gets_in_nowhere(api: HttpApi) -> None:
    plain = as_user(api, "plain", "")

    assert plain.ask("GET", "whoami").body == {"error": "not_authorised", "reason": "Not management user"}
    assert HttpApi(api.base, "plain", "wrong").ask("GET", "whoami").status == 401
    assert HttpApi(api.base, "nobody", "").ask("GET", "whoami").status == 401


def test_other_virtual_hosts_stay_hidden_and_permissions_hold(api: HttpApi) -> None:
    user = as_user(api, "user", "management")
    api.put("queues/%2f/secret")

    assert user.get("queues") == []
    assert user.ask("GET", "queues/%2f/secret").status == 404
    assert user.ask("PUT", "queues/%2f/other", {}).status == 404
    assert user.ask("DELETE", "queues/%2f/secret/contents").status == 404
    assert (
        user.ask(
            "POST", "queues/%2f/secret/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        ).status
        == 404
    )
    assert user.ask("PUT", "queues/own/mine", {}).status == 201
    assert user.ask("PUT", "queues/own/yours", {}).status == 401
    assert user.ask("DELETE", "exchanges/own/amq.topic").status == 401
    assert [queue["name"] for queue in user.get("queues")] == ["mine"]


def test_connections_of_others_are_shown_to_monitoring_users_only(api: HttpApi, channel: object) -> None:
    user = as_user(api, "user", "management")
    monitor = as_user(api, "monitor", "monitoring")

    assert user.get("connections") == []
    (found,) = monitor.get("connections")
    path = f"connections/{found['name'].replace(' ', '%20')}"
    assert monitor.ask("GET", path).status == 200
    for each in (path, f"{path}/channels", f"channels/{channel_name(monitor)}", "connections/username/guest"):
        assert user.ask("GET", each).status == 401


def channel_name(api: HttpApi) -> str:
    (found,) = api.get("channels")
    return str(found["name"]).replace(" ", "%20")


@pytest.mark.parametrize("tags", ["management", "policymaker", "monitoring"])
def test_only_administrators_close_connections_of_others(api: HttpApi, channel: Channel, tags: str) -> None:
    user = as_user(api, "user", tags)
    (found,) = api.get("connections")
    name = found["name"].replace(" ", "%20")
    refusal = {"error": "not_authorised", "reason": "User not authorised to access object"}

    for path in (f"connections/{name}", "connections/username/guest"):
        answer = user.ask("DELETE", path)
        assert (answer.status, answer.body) == (401, refusal)

    assert channel.declare()


@pytest.mark.parametrize("by", ["name", "user"])
def test_a_user_closes_own_connections(served: InProcessBroker, api: HttpApi, by: str) -> None:
    user = as_user(api, "user", "management", vhost="own")
    connection = Connection(served.url.replace("guest:guest", "user:secret").rsplit("/", 1)[0] + "/own")
    (found,) = user.get("connections")
    name = found["name"].replace(" ", "%20")

    path = f"connections/{name}" if by == "name" else "connections/username/user"
    assert user.ask("DELETE", path).status == 204

    with pytest.raises(Closed, match="CONNECTION_FORCED"):
        connection.read()
    connection.abort()


def test_a_monitoring_user_sees_only_objects_of_virtual_hosts_that_it_may_open(
    api: HttpApi, channel: Channel
) -> None:
    monitor = as_user(api, "monitor", "monitoring")
    name = channel.declare()
    channel.consume(name)
    api.put("queues/own/mine", {"durable": True})

    assert {each["vhost"] for each in monitor.get("queues")} == {"own"}
    assert {each["vhost"] for each in monitor.get("exchanges")} == {"own"}
    assert monitor.ask("GET", f"queues/%2f/{name}").status == 404
    assert {each["name"] for each in monitor.get("vhosts")} == {"/", "own"}
    assert [each["queue"]["name"] for each in monitor.get("consumers/%2f")] == [name]


def test_consumers_of_others_are_shown_to_monitoring_users_only(api: HttpApi, channel: Channel) -> None:
    user = as_user(api, "user", "management", vhost="%2f")
    channel.consume(channel.declare())

    assert user.get("consumers") == []
    assert len(api.get("consumers")) == 1


def test_the_default_exchange_is_neither_bound_nor_unbound(api: HttpApi) -> None:
    api.put("queues/%2f/q", {"durable": True})
    for path in ("amq.default/q/q", "amq.default/e/amq.topic", "amq.topic/e/amq.default"):
        assert api.ask("POST", f"bindings/%2f/e/{path}", {"routing_key": "k"}).status == 401
    assert api.ask("DELETE", "bindings/%2f/e/amq.default/q/q/q").status == 401

    assert [each["source"] for each in api.get("bindings")] == [""]
    assert api.ask("POST", "definitions", {}).status == 204


def test_names_that_amqp_cannot_transfer_are_refused(api: HttpApi) -> None:
    name = "x" * 256
    found = api.ask("PUT", f"exchanges/%2f/{name}", {"type": "direct"})

    assert found.status == 400
    assert found.body["reason"] == "exchange should be less than 255 bytes, actually was 256\n"
    assert api.ask("POST", "definitions", {"queues": [{"vhost": "/", "name": name}]}).status == 400


@pytest.mark.parametrize(
    "path",
    [
        "/api/../etc/passwd",
        "/api/..%2f..%2fetc%2fpasswd",
        "/api/queues/..%2f..",
        "//api/queues",
        "/etc/passwd",
    ],
)
def test_a_path_outside_of_the_api_names_nothing(api: HttpApi, path: str) -> None:
    status = raw(api, f"GET {path} HTTP/1.1\r\nHost: x\r\n{login(api)}Connection: close\r\n\r\n".encode())

    assert b" 404 " in status


def test_a_page_of_another_site_is_given_no_access(api: HttpApi) -> None:
    found = api.ask("GET", "whoami", headers={"Origin": "https://evil.example"})

    assert not [name for name in found.headers if name.lower().startswith("access-control")]
    assert "set-cookie" not in {name.lower() for name in found.headers}
    assert found.headers["X-Frame-Options"] == "DENY"
    assert api.ask("OPTIONS", "whoami", headers={"Origin": "https://evil.example"}).status == 200


def test_a_body_that_is_too_large_is_refused(api: HttpApi) -> None:
    head = (
        f"PUT /api/queues/%2f/q HTTP/1.1\r\nHost: x\r\n{login(api)}Content-Length: 10000001\r\n\r\n".encode()
    )

    assert b" 413 " in raw(api, head)
    assert api.ask("GET", "queues/%2f/q").status == 404


def test_clients_that_say_nothing_do_not_keep_others_out(served: InProcessBroker, api: HttpApi) -> None:
    silent = [connect(api) for _ in range(40)]
    try:
        for each in silent[:20]:
            each.sendall(b"GET /api/overview HTTP/1.1\r\nHost: x\r\n")

        assert api.get("whoami")["name"] == "guest"
    finally:
        for each in silent:
            each.close()


def test_an_infinite_count_is_refused(api: HttpApi) -> None:
    api.put("queues/%2f/q")
    wanted = {"count": float("inf"), "ackmode": "ack_requeue_true", "encoding": "auto"}

    assert api.ask("POST", "queues/%2f/q/get", wanted).status == 400


def login(api: HttpApi) -> str:
    return f"Authorization: {api._authorization}\r\n"


def connect(api: HttpApi) -> socket.socket:
    address = urlsplit(api.base)
    return socket.create_connection((address.hostname, address.port), timeout=120)


def raw(api: HttpApi, data: bytes) -> bytes:
    """Send bytes, and return the first line of the answer."""
    with connect(api) as sock:
        sock.sendall(data)
        return sock.makefile("rb").readline()


def test_an_exclusive_queue_of_a_connection_is_its_own(api: HttpApi, channel: Channel) -> None:
    name = channel.declare(exclusive=True)
    channel.publish(name, b"kept")
    asked = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}

    found = [
        api.ask("POST", f"queues/%2f/{name}/get", asked).status,
        api.ask("DELETE", f"queues/%2f/{name}/contents").status,
        api.ask("DELETE", f"queues/%2f/{name}").status,
    ]

    assert found == [400, 400, 400]
    assert channel.drain(name) == [b"kept"]


def test_a_policymaker_deletes_no_operator_policy_or_limit(api: HttpApi) -> None:
    maker = as_user(api, "maker", "policymaker")
    api.put("operator-policies/own/short", {"pattern": "", "definition": {"max-length": 10}})
    api.put("vhost-limits/own/max-queues", {"value": 10})

    assert maker.ask("DELETE", "parameters/operator_policy/own/short").status == 401
    assert maker.ask("DELETE", "parameters/vhost-limits/own/limits").status == 401
    assert [each["name"] for each in api.get("operator-policies/own")] == ["short"]
    assert api.get("vhost-limits/own")[0]["value"] == {"max-queues": 10}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "queues/%2f/q", b'{"arguments": {"x": "\\ud800"}}'),
        ("POST", "definitions", b'{"users": [{"name": "\\udfff"}]}'),
        ("PUT", "users/u", b'{"tags": "", "password": "\\ud800"}'),
        ("PUT", "queues/%2f/q", b'{"arguments": {"x":' + b"[" * 900 + b"]" * 900 + b"}}"),
        ("PUT", "queues/%2f/q", b"[" * 100_000),
    ],
    ids=["half a character", "in definitions", "in a password", "deep", "deeper"],
)
def test_a_body_that_no_object_can_hold_is_refused(api: HttpApi, method: str, path: str, body: bytes) -> None:
    assert api.ask(method, path, body).status == 400


def test_the_log_does_not_show_the_values_of_parameters(
    api: HttpApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.put("global-parameters/source", {"value": "amqp://ann:very-secret@localhost"})
    assert (
        'action=\'PUT /api/global-parameters/{name}\' object={"name": "source"} outcome=done' in caplog.text
    )
    assert "very-secret" not in caplog.text
