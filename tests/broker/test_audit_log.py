"""Audit log: one entry for each change over HTTP, at the control socket and, if wanted, over AMQP; no secrets."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.support.blocking_client import Closed, Connection
from tests.support.bulk_work import bulk_of
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from warren.broker import BrokerConfig
from warren.broker.access.audit_log import AuditLog, Change
from warren.broker.access.login_backends import AccessConfigError
from warren.broker.http_api.routes import ROUTES, Route
from warren.broker.management.control_verbs import VERBS
from warren.core.control_endpoint import connect
from warren.core.operating_system.portable_switch import PORTABLE

SECRET = "hunter2"
CHANGES = [route for route in ROUTES if route.method != "GET" and route.path != "/api/login"]
READING_PREFIXES = ("list_", "check_", "is_")
"""Beginnings of the names of verbs that change nothing."""
READING = {
    *("alarms", "authenticate_user", "await_startup", "cluster_status", "environment", "export_definitions"),
    *("enable_feature_flag", "force_gc", "hash_password", "listeners", "node_health_check", "ping", "report"),
    *("restart_vhost", "rotate_logs", "server_version", "shovel_status", "status", "version", "wait"),
}
"""Further verbs that change nothing."""
VALUES = {"vhost": "%2F", "kind": "q", "node": "warren@x", "unit": "days", "component": "shovel"}


def config(path: Path, **more: Any) -> BrokerConfig:
    return BrokerConfig(
        audit=str(path), management_port=0, login_failure_delay=0, handshake_timeout=PATIENCE, **more
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def broker(path: Path, tmp_path: Path) -> Iterator[InProcessBroker]:
    settings = config(path, audit_amqp=True, control_socket=tmp_path / "control.sock")
    with InProcessBroker(config=settings) as broker:
        yield broker


def api_of(broker: InProcessBroker, user: str = "guest", password: str = "guest") -> HttpApi:
    assert broker.broker is not None
    return HttpApi(f"http://{broker.broker.management_addresses[0]}", user, password)


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def request_path(route: Route) -> str:
    path = route.path.removeprefix("/api/")
    while "{" in path:
        before, _, rest = path.partition("{")
        name, _, after = rest.partition("}")
        path = before + VALUES.get(name.partition(":")[0], "x") + after
    return path


def control(broker: InProcessBroker, verb: str, **arguments: Any) -> Any:
    assert broker.config.control_socket is not None
    with connect(broker.config.control_socket, 120) as sock, sock.makefile("rwb") as file:
        file.write(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
        file.flush()
        return json.loads(file.readline())


def test_each_route_that_changes_something_makes_one_entry(broker: InProcessBroker, path: Path) -> None:
    api = api_of(broker)
    api.put("users/plain", {"password": SECRET, "tags": ""})
    before = len(entries(path))
    plain = api_of(broker, "plain", SECRET)
    wrong = {}
    for route in CHANGES:
        for asker, user in ((plain, "plain"), (api, "guest")):
            status = asker.ask(route.method, request_path(route), {}).status
            outcome = "done" if status < 400 else "refused"
            rows = entries(path)[before:]
            before += len(rows)
            found = [
                (row["user"], row["source"], row["surface"], row["action"], row["outcome"]) for row in rows
            ]
            if found != [(user, "127.0.0.1", "HTTP", f"{route.method} {route.path}", outcome)]:
                wrong[route.path, user] = found

    assert len(CHANGES) >= 40
    assert wrong == {}


def test_requests_that_change_nothing_make_no_entry(broker: InProcessBroker, path: Path) -> None:
    api = api_of(broker)
    for route in ROUTES:
        if route.method == "GET":
            api.ask("GET", request_path(route))
    api.ask("POST", "login", b"username=guest&password=guest")
    api_of(broker, "guest", "wrong").ask("DELETE", "queues/%2f/x")

    assert entries(path) == []


def test_each_verb_that_changes_something_makes_one_entry(broker: InProcessBroker, path: Path) -> None:
    changing = [verb for verb in VERBS if not verb.startswith(READING_PREFIXES) and verb not in READING]
    for verb in VERBS:
        if verb not in ("await_startup", "check_port_connectivity"):
            control(broker, verb)

    rows = entries(path)
    assert [row["action"] for row in rows] == changing
    source = (
        f"uid {os.getuid()}, pid {os.getpid()}" if hasattr(socket, "SO_PEERCRED") and not PORTABLE else ""
    )
    assert {(row["user"], row["source"], row["surface"]) for row in rows} == {("", source, "control socket")}
    assert {row["outcome"] for row in rows} <= {"done", "refused"}


def test_an_entry_names_the_object_and_never_a_secret(broker: InProcessBroker, path: Path) -> None:
    api = api_of(broker)
    uri = f"amqp://u:{SECRET}@host"
    assert "result" in control(broker, "add_user", username="ann", password=SECRET)
    control(broker, "set_parameter", component="shovel", name="s", value=json.dumps({"src-uri": uri}))
    control(broker, "import_definitions", definitions={"users": [{"name": "x", "password": SECRET}]})
    api.ask("PUT", "users/bob", {"password": SECRET, "tags": ""})
    api.ask("PUT", "parameters/shovel/%2f/s", {"value": {"src-uri": uri}})
    api.ask("POST", f"exchanges/%2f/amq.default/publish?password={SECRET}", {"payload": SECRET})

    rows = entries(path)
    assert rows[0]["object"] == {"username": "ann"}
    assert rows[3]["object"] == {"user": "bob"}
    assert rows[4]["object"] == {"component": "shovel", "vhost": "/", "name": "s"}
    assert len(rows) == 6
    assert SECRET not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_changes_of_amqp_clients_are_recorded_if_wanted(broker: InProcessBroker, path: Path) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.bind("q", "amq.fanout", "key")
        channel.publish("q", SECRET.encode())
        channel.purge("q")
        channel.delete("q")
    wait_until(lambda: len(entries(path)) == 4, "the entries are written")

    assert {row["surface"] for row in entries(path)} == {"AMQP"}
    rows = [(row["user"], row["action"], row["object"], row["outcome"]) for row in entries(path)]
    here = {"vhost": "/", "queue": "q"}
    assert rows == [
        ("guest", "queue.declare", here, "done"),
        ("guest", "queue.bind", {**here, "exchange": "amq.fanout"}, "done"),
        ("guest", "queue.purge", here, "done"),
        ("guest", "queue.delete", here, "done"),
    ]


def test_a_method_that_waits_is_recorded_once_at_its_end(broker: InProcessBroker, path: Path) -> None:
    """A queue is deleted only after the messages whose time has passed are gone, and is refused if another is left."""
    bulk = bulk_of(broker)
    queue = broker.virtual_host().queues
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", x_message_ttl=1000)
        for _ in range(200):
            channel.publish("q")
        broker.jump(2)
        channel.publish("q")
        wait_until(lambda: len(entries(path)) == 1, "the entry of the declaration is written")
        with bulk.paused():
            channel.send(commands.Queue.Delete(queue="q", if_empty=True))
            wait_until(lambda: broker.call(lambda: not queue[b"q"].is_settled), "the method waits")
            assert len(entries(path)) == 1
        with pytest.raises(Closed, match="not empty"):
            channel.next_method(commands.Queue.DeleteOk)
    wait_until(lambda: len(entries(path)) > 1, "the entry is written")

    rows = [(row["user"], row["action"], row["object"], row["outcome"]) for row in entries(path)]
    assert rows[1:] == [("guest", "queue.delete", {"vhost": "/", "queue": "q"}, "refused")]


def test_without_audit_amqp_only_management_is_recorded(path: Path) -> None:
    with InProcessBroker(config=config(path)) as broker:
        with Connection(broker.url) as connection:
            connection.channel().declare("q", durable=True)
        api_of(broker).put("queues/%2f/other")

        assert [row["action"] for row in entries(path)] == ["PUT /api/queues/{vhost}/{queue}"]


def test_entries_go_to_the_log_by_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with InProcessBroker(config=BrokerConfig(management_port=0, handshake_timeout=PATIENCE)) as broker:
        api_of(broker).put("users/bob", {"password": SECRET, "tags": ""})

    found = [record.getMessage() for record in caplog.records if "event=audit." in record.getMessage()]
    assert found == [
        "event=audit.change_recorded user='guest' source='127.0.0.1' surface='HTTP' action='PUT /api/users/{user}' "
        'object={"user": "bob"} outcome=done'
    ]


def test_a_rotated_file_is_opened_anew(broker: InProcessBroker, path: Path) -> None:
    api_of(broker).put("queues/%2f/one")
    path.rename(path.with_suffix(".old"))
    api_of(broker).put("queues/%2f/two")

    assert [row["object"]["queue"] for row in entries(path)] == ["two"]


def test_a_file_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        AccessConfigError, match=r"audit: cannot write .*missing/audit: No such file or directory"
    ):
        InProcessBroker(config=config(tmp_path / "missing" / "audit")).start()


async def test_entries_that_cannot_be_written_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = AuditLog(str(tmp_path / "missing" / "audit"), False)
    for _ in range(3):
        await audit.record(Change("u", "127.0.0.1", "HTTP", "a", {}, "done"))

    assert [record.getMessage().split()[0] for record in caplog.records] == ["event=audit.write_failed"]
