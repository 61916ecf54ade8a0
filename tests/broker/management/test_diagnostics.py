"""Verbs of rabbitmq-diagnostics: reports, features and single checks."""

from __future__ import annotations

import pytest
from pamqp.commands import Basic

from tests.support.blocking_client import Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl


@pytest.fixture
def operator(timed: InProcessBroker) -> Operator:
    assert timed.data_dir is not None
    return Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)


def test_the_report_describes_the_broker_without_passwords(operator: Operator) -> None:
    operator("add_user", "ann", "very-secret")
    with Connection(operator.url) as connection:
        connection.channel().declare("orders", durable=True)
        report = operator("report")
    text = "\n".join(report)
    assert "orders" in text
    assert "Queues in vhost /" in text
    assert "very-secret" not in text


@pytest.mark.parametrize(
    "verb", ["check_alarms", "check_virtual_hosts", "is_running", "check_if_node_is_quorum_critical"]
)
def test_checks_pass_on_a_healthy_broker(operator: Operator, verb: str) -> None:
    assert operator(verb)[0].startswith("warren@localhost ")


def test_an_alarm_fails_check_alarms(operator: Operator, timed: InProcessBroker) -> None:
    assert timed.broker is not None
    flow = timed.broker._running.flow
    timed.call(lambda: flow.set_alarm("test", "disk", True))
    assert operator.run("check_alarms").status == 1


def test_checks_of_listeners_name_those_that_there_are(operator: Operator) -> None:
    port = operator.url.rstrip("/").rpartition(":")[2]
    assert operator("check_port_listener", port) == [
        f"A listener for port {port} is running on warren@localhost"
    ]
    assert operator("check_protocol_listener", "amqp091")
    result = operator.run("check_port_listener", "1")
    assert (result.status, port in result.errors) == (1, True)
    result = operator.run("check_protocol_listener", "mqtt")
    assert (result.status, "mqtt" in result.errors) == (1, True)
    assert operator.run("check_port_listener", "five").status == 2
    assert operator.run("is_booting").status == 1


def test_feature_flags_are_enabled_and_can_be_enabled_again(operator: Operator) -> None:
    flags = {row["name"]: row["state"] for row in operator.table("list_feature_flags")}
    assert flags["quorum_queue"] == flags["stream_queue"] == "enabled"
    assert operator("enable_feature_flag", "all") == []
    assert operator("enable_feature_flag", "quorum_queue") == []
    assert "list_feature_flags" in operator.refused("enable_feature_flag", "no_such_flag")


def test_the_use_of_a_deprecated_feature_is_noticed(operator: Operator) -> None:
    phases = {row["name"]: row["deprecation_phase"] for row in operator.table("list_deprecated_features")}
    assert phases["global_qos"] == "denied_by_default"
    assert phases["transient_nonexcl_queues"] == "permitted_by_default"
    assert operator("check_if_any_deprecated_features_are_used") == ["No deprecated features in use"]
    with Connection(operator.url) as connection:
        connection.channel().call(Basic.Qos(prefetch_count=1, global_=True), Basic.QosOk)
    assert [row["name"] for row in operator.table("list_deprecated_features", "--used")] == ["global_qos"]
    assert "global_qos" in operator.refused("check_if_any_deprecated_features_are_used")


def test_logins_are_counted(operator: Operator) -> None:
    with Connection(operator.url):
        pass
    rows = {row["protocol"]: row for row in operator.table("list_node_auth_attempt_stats")}
    assert rows["amqp091"]["auth_attempts_succeeded"] == 1


def test_a_password_is_hashed_with_a_new_salt_each_time(operator: Operator) -> None:
    (hashed,) = operator("hash_password", "secret")
    assert hashed != "secret"
    (again,) = operator("hash_password", "secret")
    assert again != hashed


def test_permissions_are_set_in_all_virtual_hosts(operator: Operator) -> None:
    operator("add_vhost", "a")
    operator("add_user", "ann", "x")
    operator("set_permissions_globally", "ann", "^c", "^w", "^r")
    rows = operator.table("list_user_permissions", "ann")
    assert {(row["vhost"], row["configure"], row["write"], row["read"]) for row in rows} == {
        ("/", "^c", "^w", "^r"),
        ("a", "^c", "^w", "^r"),
    }


def test_protection_from_deletion_has_the_verbs_of_4_3(operator: Operator) -> None:
    operator("add_vhost", "kept")
    operator("enable_vhost_deletion_protection", "kept")
    assert "protected" in operator.refused("delete_vhost", "kept")
    operator("disable_vhost_deletion_protection", "kept")
    assert operator("delete_vhost", "kept") == []


def test_versions_are_shown(operator: Operator) -> None:
    assert operator("version") == operator("server_version")
    assert operator("force_gc") == []
    assert "no-op" in operator("node_health_check")[0]
