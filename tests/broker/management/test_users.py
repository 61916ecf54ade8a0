"""Users, permissions, virtual hosts and limits on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from pamqp import commands

from tests.support.operator_cli import Operator
from tests.support.raw_client import RawClient, made
from tests.support.standard_input import standard_input


@pytest.fixture(autouse=True)
def tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the user and the virtual host of each test from the shared Warren broker; rabbitmqctl is too slow for that."""
    yield
    if "warren" in request.fixturenames:
        warren: Operator = request.getfixturevalue("warren")
        warren.run("delete_user", "ann")
        warren.run("delete_vhost", "other")


def peer(operator: Operator, credentials: str, vhost: str = "/") -> RawClient:
    host = operator.url.rpartition("@")[2].removeprefix("amqp://").rstrip("/")
    return RawClient(f"amqp://{credentials}@{host}/{quote(vhost, safe='')}")


def accepted(operator: Operator, credentials: str, vhost: str = "/") -> None:
    """Check that a client can connect."""
    with peer(operator, credentials, vhost) as found:
        found.connect()


def refusal_of(operator: Operator, credentials: str, vhost: str = "/") -> str:
    """Return the error that a refused client gets."""
    with peer(operator, credentials, vhost) as found:
        found.log_in()
        found.tune()
        return found.refused(commands.Connection.Open(vhost), 0).text


def wrong_password(operator: Operator, credentials: str) -> bool:
    with peer(operator, credentials) as found:
        found.greet()
        return found.refused(found.start_ok(), 0).code == 403


def test_both_commands_print_the_same(operator: Operator) -> None:
    """Create, change and delete a user with rabbitmqctl and with `warren ctl`."""
    output = operator.run("add_user", "bob", "sesame").output
    assert "Done. Don't forget to grant the user permissions to some virtual hosts!" in output
    assert "already exists" in operator.refused("add_user", "bob", "sesame")
    operator("set_user_tags", "bob", "administrator", "monitoring")
    assert "bob\t[administrator, monitoring]" in operator("list_users")
    operator("set_permissions", "bob", "^bob-", ".*", "^$")
    assert operator("list_permissions")[0] == "user\tconfigure\twrite\tread"
    assert "bob\t^bob-\t.*\t^$" in operator("list_permissions")
    assert operator("list_user_permissions", "bob") == ["vhost\tconfigure\twrite\tread", "/\t^bob-\t.*\t^$"]
    operator("set_topic_permissions", "bob", "amq.topic", "^a", "^b")
    assert "bob\tamq.topic\t^a\t^b" in operator("list_topic_permissions")
    operator("set_user_limits", "bob", '{"max-connections":5}')
    assert operator("list_user_limits", "--user", "bob")[-1] == '{"max-connections":5}'
    assert operator("authenticate_user", "bob", "sesame") == ["Success"]
    assert operator.run("authenticate_user", "bob", "wrong").status != 0
    operator("delete_user", "bob")
    assert "does not exist" in operator.refused("delete_user", "bob")
    assert not [line for line in operator("list_permissions") if line.startswith("bob")]


def test_a_topic_permission_needs_its_exchange(warren: Operator) -> None:
    """RabbitMQ 4.3 refuses it, too; version 3.10 stores it."""
    warren("add_user", "ann", "sesame")
    refusal = warren.refused("set_topic_permissions", "ann", "missing", "^a", "^b")
    assert refusal == "warren ctl: Exchange missing does not exist\n"
    warren("set_topic_permissions", "ann", "amq.topic", "^a", "^b")
    assert warren("list_topic_permissions") == ["user\texchange\twrite\tread", "ann\tamq.topic\t^a\t^b"]


def test_a_password_from_standard_input(warren: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", standard_input("sesame\n"))
    warren("add_user", "ann")
    warren("set_permissions", "ann", ".*", ".*", ".*")
    accepted(warren, "ann:sesame")
    warren("change_password", "ann", "street")
    accepted(warren, "ann:street")
    assert wrong_password(warren, "ann:sesame")
    warren("clear_password", "ann")
    assert warren.run("authenticate_user", "ann", "street").status == 1
    assert "an empty password allows no login" in warren.refused("change_password", "ann", "")


def test_permissions_apply_at_once(warren: Operator) -> None:
    warren("add_user", "ann", "sesame")
    assert "access to vhost '/' refused for user 'ann'" in refusal_of(warren, "ann:sesame")
    warren("set_permissions", "ann", "^ann-", ".*", ".*")
    with peer(warren, "ann:sesame") as ann:
        ann.connect().open().declare("ann-queue", exclusive=True)
        refusal = ann.refused(made(commands.Queue.Declare, queue="bob-queue"))
        assert "configure access to queue 'bob-queue' in vhost '/' refused" in refusal.text
    warren("clear_permissions", "ann")
    assert "refused" in refusal_of(warren, "ann:sesame")
    output = warren.refused("set_permissions", "ann", "(", ".*", ".*")
    assert output == "warren ctl: '(' is no regular expression: missing ): (\n"


def test_virtual_hosts_are_added_and_deleted(warren: Operator) -> None:
    warren("add_vhost", "other", "--description", "Another one", "--tags", "a,b")
    warren("add_vhost", "other")
    assert warren("list_vhosts") == ["name", "/", "other"]
    assert warren("list_vhosts", "name", "description", "tags")[2] == "other\tAnother one\t[a, b]"
    warren("set_permissions", "-p", "other", "guest", ".*", ".*", ".*")
    accepted(warren, "guest:guest", "other")
    warren("set_vhost_limits", "-p", "other", '{"max-connections":0}')
    assert warren("list_vhost_limits", "-p", "other") == ['{"max-connections":0}']
    assert warren("list_vhost_limits", "--global") == ["vhost\tlimits", 'other\t{"max-connections":0}']
    assert "connection limit (0) is reached" in refusal_of(warren, "guest:guest", "other")
    warren("clear_vhost_limits", "-p", "other")
    accepted(warren, "guest:guest", "other")
    warren("enable_vhost_protection_from_deletion", "other")
    assert "is protected from deletion" in warren.refused("delete_vhost", "other")
    warren("disable_vhost_protection_from_deletion", "other")
    warren("delete_vhost", "other")
    assert "does not exist" in warren.refused("delete_vhost", "other")


def test_columns_can_be_selected(warren: Operator) -> None:
    assert warren("list_users", "tags", "user") == ["tags\tuser", "[administrator]\tguest"]
    assert warren("list_permissions", "user", "read") == ["user\tread", "guest\t.*"]
    assert warren("list_user_permissions", "guest", "vhost") == ["vhost", "/"]
    assert warren("list_policies", "name") == []
    assert "there is no item cows; the items are: user tags" in warren.refused("list_users", "cows")


def test_limits_are_validated(warren: Operator) -> None:
    warren("add_user", "ann", "sesame")
    output = warren.refused("set_user_limits", "ann", '{"max-cows":1}')
    assert output == 'warren ctl: Validation failed: Unrecognised terms [{<<"max-cows">>,1}] in user-limits\n'
    assert "the limits are not JSON" in warren.refused("set_user_limits", "ann", "{")
    warren("set_user_limits", "ann", '{"max-connections":1}')
    warren("set_user_limits", "ann", '{"max-channels":2}')
    assert warren("list_user_limits") == [
        "user\tlimits",
        'ann\t{"max-channels":2,"max-connections":1}',
    ]
    warren("clear_user_limits", "ann", "max-channels")
    assert warren("list_user_limits", "--user", "ann") == ['{"max-connections":1}']
    warren("clear_user_limits", "ann", "all")
    assert warren("list_user_limits") == []


def test_global_parameters_are_set_and_cleared(warren: Operator) -> None:
    warren("set_global_parameter", "motto", '{"in":"vino"}')
    heading, tags, cluster_id, motto = warren("list_global_parameters")
    assert (heading, tags, motto) == ("name\tvalue", "cluster_tags\t[]", 'motto\t{"in":"vino"}')
    assert cluster_id.startswith('internal_cluster_id\t"rabbitmq-cluster-id-')
    warren("clear_global_parameter", "motto")
    assert warren.refused("clear_global_parameter", "motto") == "warren ctl: Parameter does not exist\n"
    assert "component other not found" in warren.refused("set_parameter", "other", "x", "{}")
