"""Shovels with `warren ctl`, and in definitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.blocking_client import Connection
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from tests.support.polling import wait_until

DEFINITION = {
    "src-uri": "amqp://",
    "dest-uri": "amqp:///%2f",
    "src-queue": "a",
    "dest-queue": "b",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def operator(broker: InProcessBroker) -> Operator:
    assert broker.data_dir is not None
    return Operator(warren_ctl(broker.data_dir), broker.url, is_warren=True)


def runs(operator: Operator, name: str) -> None:
    wait_until(
        lambda: any(
            row["name"] == name and row["state"] == "running" for row in operator.table("shovel_status")
        ),
        "the shovel runs",
    )


def test_a_shovel_is_defined_shown_restarted_and_deleted(operator: Operator) -> None:
    assert operator.table("shovel_status") == []
    operator("set_parameter", "shovel", "s", json.dumps(DEFINITION))
    runs(operator, "s")

    (row,) = operator.table("shovel_status")
    assert row.pop("last_changed")
    assert row == {
        "name": "s",
        "vhost": "/",
        "type": "dynamic",
        "state": "running",
        "source": "amqp://",
        "source_protocol": "amqp091",
        "source_queue": "a",
        "source_exchange": "",
        "source_exchange_key": "",
        "destination": "amqp:///%2f",
        "destination_protocol": "amqp091",
        "destination_queue": "b",
        "destination_exchange": "",
        "destination_exchange_key": "",
        "termination_reason": "",
        "pending": 0,
        "forwarded": 0,
        "remaining": "unlimited",
        "remaining_unacked": "unlimited",
    }
    assert operator("list_parameters")[1:] == ["shovel\ts\t" + json.dumps(DEFINITION, separators=(",", ":"))]

    operator("restart_shovel", "s")
    runs(operator, "s")
    operator("delete_shovel", "s")
    assert operator.table("shovel_status") == []
    assert operator("list_parameters")[1:] == []


def test_what_does_not_exist_or_is_wrong_is_refused(operator: Operator) -> None:
    assert "Shovel with the given name was not found" in operator.refused("restart_shovel", "s")
    assert "Shovel with the given name was not found" in operator.refused("delete_shovel", "s")
    assert 'Key "dest-uri" not found in s' in operator.refused(
        "set_parameter", "shovel", "s", '{"src-uri": "amqp://"}'
    )
    assert operator("list_parameters")[1:] == []


def test_a_protected_shovel_is_deleted_by_force_only(operator: Operator) -> None:
    operator("set_parameter", "shovel", "s", json.dumps({**DEFINITION, "internal": True}))

    assert "Cannot delete protected shovel 's'" in operator.refused("delete_shovel", "s")
    operator("delete_shovel", "--force", "s")

    assert operator.table("shovel_status") == []


def test_definitions_contain_shovels_and_start_them_after_the_queues(
    operator: Operator, tmp_path: Path
) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(
        json.dumps(
            {
                "parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": DEFINITION}],
                "queues": [
                    {
                        "vhost": "/",
                        "name": "b",
                        "durable": True,
                        "auto_delete": False,
                        "arguments": {"x-max-length": 3},
                    }
                ],
            }
        )
    )
    operator("import_definitions", str(file))
    runs(operator, "s")

    with Connection(operator.url) as connection:
        channel = connection.channel()
        channel.declare("b", durable=True, x_max_length=3)
    result = operator.run("export_definitions", "-")
    exported = json.loads(result.output)["parameters"]
    assert exported == [{"vhost": "/", "component": "shovel", "name": "s", "value": DEFINITION}]
    operator("import_definitions", str(file))


def test_definitions_with_a_wrong_shovel_change_nothing(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    wrong = {"vhost": "/", "component": "shovel", "name": "s", "value": {}}
    queue = {"vhost": "/", "name": "b", "durable": True, "auto_delete": False, "arguments": {}}
    file.write_text(json.dumps({"parameters": [wrong], "queues": [queue]}))

    refusal = operator.refused("import_definitions", str(file))

    assert "parameters[0] 's' in vhost '/': Validation failed: Must specify" in refusal
    assert operator.table("list_queues", "name") == []


def test_shovels_stop_and_start_with_the_service_of_clients(operator: Operator) -> None:
    operator("set_parameter", "shovel", "s", json.dumps(DEFINITION))
    runs(operator, "s")

    operator("stop_app")
    assert operator.table("shovel_status") == []
    assert operator.table("list_connections") == []
    operator("set_parameter", "shovel", "t", json.dumps({**DEFINITION, "src-queue": "c"}))
    assert operator.table("shovel_status") == []

    operator("start_app")
    runs(operator, "s")
    runs(operator, "t")
