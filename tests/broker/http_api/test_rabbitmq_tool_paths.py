"""Paths that RabbitMQ's page, `rabbitmqadmin` and client libraries ask for, and that have no test of their own elsewhere."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.broker.http_api.conftest import base_url, collector_of
from tests.support.blocking_client import Channel, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from warren.broker import BrokerConfig

NODE = "warren@localhost"


def test_a_topic_permission_is_deleted_by_its_exchange(api: HttpApi) -> None:
    api.put("users/u", {"password": "p", "tags": ""})
    api.put("exchanges/%2f/kept", {"type": "topic"})
    for exchange in ("", "amq.topic", "kept"):
        api.put("topic-permissions/%2f/u", {"exchange": exchange, "write": "^a", "read": "^b"})

    # RabbitMQ's page names the default exchange so in paths.
    for exchange in ("amq.default", "amq.topic", "missing"):
        assert api.ask("DELETE", f"topic-permissions/%2f/u/{exchange}").status == 204
    assert [each["exchange"] for each in api.get("topic-permissions/%2f/u/any")] == ["kept"]
    assert api.ask("DELETE", "topic-permissions/%2f/u/kept").status == 204
    assert api.ask("DELETE", "topic-permissions/%2f/u/kept").status == 404
    api.put("topic-permissions/%2f/u/amq.topic", {"exchange": "amq.topic", "write": "^a", "read": "^b"})
    assert [each["exchange"] for each in api.get("topic-permissions/%2f/u")] == ["amq.topic"]


def test_a_topic_permission_needs_its_exchange(api: HttpApi) -> None:
    api.put("users/u", {"password": "p", "tags": ""})
    for exchange in ("missing", "amq.default"):
        found = api.ask(
            "PUT", "topic-permissions/%2f/u/amq.topic", {"exchange": exchange, "write": "^a", "read": "^b"}
        )
        assert (found.status, found.body["reason"]) == (400, ["no_such_exchange", exchange])
    assert api.ask("GET", "topic-permissions/%2f/u").status == 404


@pytest.mark.parametrize(
    "name", ["orders%7B1%7D", "%7B", "%7D%7B", "a%7Bqueue%7D", "a%2Fb%7B", "%25%7B", "{raw}"]
)
def test_names_may_have_braces(api: HttpApi, name: str) -> None:
    for path, body in (
        (f"vhosts/{name}", {}),
        (f"users/{name}", {"password": "p", "tags": ""}),
        (f"queues/{name}/{name}", {"durable": True}),
        (f"exchanges/{name}/{name}", {"type": "topic"}),
        (f"policies/{name}/{name}", {"pattern": "", "definition": {"max-length": 1}}),
    ):
        if path.startswith("users"):
            api.put(f"permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        assert api.ask("PUT", path, body).status == 201
        found = api.get(path)
        assert found["name"] == urllib.parse.unquote(name)
    assert api.ask("POST", f"bindings/{name}/e/{name}/q/{name}", {"routing_key": "{}"}).status == 201
    (bound,) = api.get(f"bindings/{name}/e/{name}/q/{name}")
    key = urllib.parse.quote(bound["properties_key"], safe="")
    assert api.ask("DELETE", f"bindings/{name}/e/{name}/q/{name}/{key}").status == 204
    message = {"properties": {}, "routing_key": "", "payload": "", "payload_encoding": "string"}
    assert api.ask("POST", f"exchanges/{name}/{name}/publish", message).status == 200
    for path in (f"queues/{name}/{name}", f"users/{name}", f"vhosts/{name}"):
        assert api.ask("DELETE", path).status == 204


def test_a_cluster_has_tags_and_an_id_that_it_keeps(tmp_path: Path) -> None:
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(tmp_path, config=config) as broker:
        api = HttpApi(base_url(broker))
        found = api.get("global-parameters/internal_cluster_id")["value"]
        assert re.fullmatch(r"rabbitmq-cluster-id-[\w-]{22}", found)
        assert api.get("global-parameters/cluster_tags")["value"] == []
        assert api.get("overview")["cluster_tags"] == {}
        # The id belongs to the cluster: another one that imports the definitions keeps its own.
        assert [each["name"] for each in api.get("definitions")["global_parameters"]] == ["cluster_tags"]
        api.put("global-parameters/cluster_tags", {"value": {"region": "eu"}})
        broker.restart()
        api = HttpApi(base_url(broker))
        assert api.get("global-parameters/internal_cluster_id")["value"] == found
        assert api.get("overview")["cluster_tags"] == {"region": "eu"}


@pytest.mark.parametrize("path", ["reset", f"reset/{NODE}"])
def test_a_reset_forgets_the_samples_of_the_statistics(
    served: InProcessBroker, api: HttpApi, channel: Channel, path: str
) -> None:
    channel.declare("q")
    channel.publish("q")
    assert channel.state("q") == (1, 0)
    collector = collector_of(served)

    def sampled() -> list[int]:
        list(collector.sample_in_steps())
        return [len(collector.queues), len(collector.vhosts), len(collector.connections)]

    # Connections have samples only where the system counts the bytes of a socket.
    before = served.call(sampled)
    assert 0 not in before[:2]

    assert api.ask("DELETE", path).status == 204
    assert [len(each) for each in (collector.queues, collector.vhosts, collector.connections)] == [0, 0, 0]
    found = api.get("queues/%2f/q?lengths_age=60&lengths_incr=5")
    assert found["messages"] == 1
    assert found["message_stats"]["publish"] == 1
    assert served.call(sampled) == before


def test_a_reset_of_another_node_is_refused(api: HttpApi) -> None:
    assert api.ask("DELETE", "reset/other@host").status == 404


def test_all_configuration_is_the_definitions(api: HttpApi) -> None:
    api.put("queues/%2f/q", {"durable": True})

    found = api.get("all-configuration")
    assert found.keys() == api.get("definitions").keys()
    assert [each["name"] for each in found["queues"]] == ["q"]
    assert api.ask("DELETE", "queues/%2f/q").status == 204
    assert api.ask("POST", "all-configuration", found).status == 204
    assert api.get("queues/%2f/q")["name"] == "q"


def test_a_feature_flag_can_be_enabled_again(api: HttpApi) -> None:
    assert api.ask("PUT", "feature-flags/quorum_queue/enable", {}).status == 204
    found = api.ask("PUT", "feature-flags/surprise/enable", {})
    assert (found.status, found.body) == (400, {"error": "bad_request", "reason": "unsupported"})
    assert api.ask("PUT", "feature-flags/all/enable", {}).status == 400


def test_login_attempts_are_counted_anew_after_a_delete(api: HttpApi) -> None:
    def attempts() -> dict[str, int]:
        return {each["protocol"]: each["auth_attempts"] for each in api.get(f"auth/attempts/{NODE}")}

    for _ in range(3):
        api.get("whoami")
    assert attempts()["http"] >= 4
    assert api.ask("DELETE", f"auth/attempts/{NODE}").status == 204
    assert attempts()["http"] == 1
    # Sources of logins are not recorded, as with RabbitMQ's default.
    assert api.get(f"auth/attempts/{NODE}/source") == []
    assert api.ask("DELETE", f"auth/attempts/{NODE}/source").status == 204
    assert api.ask("DELETE", "auth/attempts/other").status == 404
    assert api.ask("GET", "auth/attempts/other/source").status == 404


def test_relative_memory_is_in_percent_of_the_total(api: HttpApi) -> None:
    found = api.get(f"nodes/{NODE}/memory/relative")["memory"]

    assert found["total"] == 100
    assert found["other_system"] + found["queue_procs"] == 100
    assert found.keys() - {"total"} <= api.get(f"nodes/{NODE}/memory")["memory"].keys()
    assert api.ask("GET", "nodes/other/memory/relative").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "health/checks/quorum-queues-without-elected-leaders/all-vhosts",
        "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/^x",
        "health/checks/quorum-queues-without-elected-leaders/vhost/%2f",
        "health/checks/quorum-queues-without-elected-leaders/vhost/%2f/pattern/^x",
        "health/checks/metadata-store/initialized",
        "health/checks/metadata-store/initialized/with-data",
        "healthchecks/node",
        f"healthchecks/node/{NODE}",
    ],
)
def test_checks_that_one_node_always_passes_are_there(api: HttpApi, path: str) -> None:
    assert api.get(path) == {"status": "ok"}


def test_the_old_health_check_knows_one_node_only(api: HttpApi) -> None:
    assert api.ask("GET", "healthchecks/node/other").status == 404


# -- upload of definitions, as RabbitMQ's page sends it: a form with a file

BOUNDARY = "----WebKitFormBoundaryAaB03x"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(*parts: tuple[str, str]) -> bytes:
    """Return the body of a form, of fields with name and content."""
    lines = []
    for name, content in parts:
        lines += [f"--{BOUNDARY}", f'Content-Disposition: form-data; name="{name}"; filename="x.json"']
        lines += ["Content-Type: application/json", "", content]
    return "\r\n".join([*lines, f"--{BOUNDARY}--", ""]).encode()


@pytest.mark.parametrize("path", ["definitions", "all-configuration"])
def test_definitions_can_be_uploaded_in_a_form(api: HttpApi, path: str) -> None:
    body = form(("other", "x"), ("file", '{"vhosts": [{"name": "uploaded"}]}'))

    assert api.ask("POST", path, body, FORM).status == 204
    assert api.get("vhosts/uploaded")["name"] == "uploaded"


def test_definitions_of_a_virtual_host_can_be_uploaded_in_a_form(api: HttpApi) -> None:
    queue = '{"queues": [{"name": "q", "durable": true, "auto_delete": false, "arguments": {}}]}'

    assert api.ask("POST", "definitions/%2f", form(("file", queue)), FORM).status == 204
    assert api.get("queues/%2f/q")["durable"] is True


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(("other", "{}")), FORM["Content-Type"]),
        (form(("file", "no JSON")), FORM["Content-Type"]),
        (form(("file", "{}")), "multipart/form-data"),
        (form(("file", "{}")), "multipart/form-data; boundary="),
        (form(("file", "{}")), "multipart/form-data; boundary=another"),
        (form(*[("other", "")] * 1000, ("file", "{}")), FORM["Content-Type"]),
        (b"", FORM["Content-Type"]),
    ],
    ids=["no file", "no JSON", "no boundary", "empty boundary", "wrong boundary", "many parts", "no body"],
)
def test_a_form_without_definitions_is_refused(api: HttpApi, body: bytes, content_type: str) -> None:
    found = api.ask("POST", "definitions", body, {"Content-Type": content_type})

    assert (found.status, found.body["reason"]) == (400, "failed_to_parse_json")


def test_the_default_exchange_may_have_an_empty_name_in_paths(api: HttpApi) -> None:
    api.put("queues/%2f/q", {"durable": True})
    message = {"routing_key": "q", "payload": "hello", "payload_encoding": "string", "properties": {}}

    assert api.ask("POST", "exchanges/%2f//publish", message).body == {"routed": True}
    assert api.get("queues/%2f/q")["messages"] == 1
    for path in ("exchanges/%2f//bindings/source", "bindings/%2f/e//q/q"):
        assert [each["routing_key"] for each in api.get(path)] == ["q"]
    assert api.get("exchanges/%2f//bindings/destination") == []
    assert api.get("exchanges/%2f//")["type"] == "direct"
    assert len(api.get("exchanges/%2f/")) > 1
    assert api.ask("DELETE", "exchanges/%2f//").status == 401
    assert api.ask("DELETE", "queues/%2f//").status == 404


def test_a_user_has_a_password_or_a_hash(api: HttpApi) -> None:
    both = {"tags": "", "password": "p", "password_hash": "AAAA"}
    found = api.ask("PUT", "users/u", both)
    assert found.status == 400
    assert found.body == {"error": "bad_request", "reason": "both_password_and_password_hash_are_provided"}

    # Old tools send a hash of another algorithm, which matches no password.
    digest = "5f4dcc3b5aa765d61d8327deb882cf99"
    assert api.ask("PUT", "users/u", {"tags": "management", "password_hash": digest}).status == 201
    assert api.get("users/u")["password_hash"] == digest
    assert HttpApi(api.base, "u", "password").ask("GET", "whoami").status == 401

    named = {"tags": "management", "password": "p", "hashing_algorithm": "unknown"}
    assert api.ask("PUT", "users/v", named).status == 201
    assert api.get("users/v")["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert HttpApi(api.base, "v", "p").ask("GET", "whoami").status == 200


@pytest.mark.parametrize("check", ["ready-to-serve-clients", "below-node-connection-limit", "is-in-service"])
def test_load_balancers_ask_without_a_login(api: HttpApi, check: str) -> None:
    with urllib.request.urlopen(f"{api.base}/api/health/checks/{check}", timeout=60) as answer:
        assert json.load(answer) == {"status": "ok"}


def test_limits_of_a_user_that_does_not_exist_are_refused(api: HttpApi) -> None:
    found = api.ask("PUT", "user-limits/nobody/max-channels", {"value": 1})
    assert (found.status, found.body) == (
        400,
        {"error": "bad_request", "reason": ["no_such_user", "nobody"]},
    )
    assert api.ask("DELETE", "user-limits/guest/surprise").status == 204
    assert api.ask("DELETE", "user-limits/nobody/max-channels").status == 404


def test_consumers_have_a_timeout_and_connections_the_name_that_they_were_given(
    served: InProcessBroker, api: HttpApi, channel: Channel
) -> None:
    channel.declare("q")
    channel.consume("q")

    # A number for clients that expect one: 0 is no timeout, as in the setting.
    assert [each["consumer_timeout"] for each in api.get("consumers")] == [0]
    with Connection(served.url, properties={"connection_name": "orders"}):
        found = [each.get("user_provided_name") for each in api.get("connections")]
        assert sorted(found, key=str) == [None, "orders"]


@pytest.mark.parametrize(
    "path",
    [
        "whoami",
        "users/guest",
        "vhosts/%2f",
        "policies/%2f/p",
        "operator-policies/%2f/p",
        "parameters/operator_policy/%2f/p",
        "global-parameters/g",
    ],
)
def test_a_single_object_is_shown_with_the_columns_asked_for(api: HttpApi, path: str) -> None:
    policy = {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues"}
    api.put("policies/%2f/p", policy)
    api.put("operator-policies/%2f/p", policy)
    api.put("global-parameters/g", {"value": 1})

    whole = api.get(path)
    assert api.get(f"{path}?columns=name") == {"name": whole["name"]}
    assert len(whole) > 1


def test_a_permission_is_shown_with_the_columns_asked_for(api: HttpApi) -> None:
    found = api.get("permissions/%2f/guest?columns=user,read")
    assert found == {"user": "guest", "read": ".*"}
