"""Health checks, status, alarms and shutdown through the control socket."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.blocking_client import Connection
from tests.support.broker_process import BrokerProcess
from tests.support.in_process_broker import InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from warren.broker.management.verbs.health import waiting_totals_in_steps


@pytest.fixture
def operator(timed: InProcessBroker) -> Operator:
    assert timed.data_dir is not None
    return Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)


def test_a_healthy_broker_passes_all_checks(operator: Operator) -> None:
    assert operator("ping") == ["Ping succeeded"]
    assert operator("check_running") == ["warren@localhost is up and running"]
    assert operator("check_local_alarms") == ["warren@localhost reported no local alarms"]
    assert operator("check_port_connectivity") == ["Successfully connected to ports of 1 listeners"]
    assert operator("list_unresponsive_queues") == []
    port = operator.url.rstrip("/").rpartition(":")[2]
    assert operator("listeners") == ["protocol\taddress", f"amqp\t127.0.0.1:{port}"]
    assert "Alarm: (none)" in operator("status")
    assert "Cluster name: warren@localhost" in operator("cluster_status")


def test_the_messages_of_many_queues_are_counted_in_steps(timed: InProcessBroker) -> None:
    with Connection(timed.url) as connection:
        channel = connection.channel()
        channel.confirm()
        for number in range(3):
            channel.publish(channel.declare(f"q{number}", durable=True), b"x" * 100)
        assert channel.settled(3) == [True, True, True]
    assert timed.broker is not None
    queues = list(timed.broker._running.vhosts[b"/"].vhost.queues.values())
    work = waiting_totals_in_steps(queues)
    for _ in range(3):
        next(work)
    with pytest.raises(StopIteration) as done:
        next(work)
    messages, memory = done.value.value
    assert messages == 3
    assert memory == sum(int(queue.ready.memory_bytes()) for queue in queues) > 300


def test_an_alarm_fails_the_check(operator: Operator, timed: InProcessBroker) -> None:
    assert timed.broker is not None
    node = timed.broker._running
    timed.call(lambda: node.flow.set_alarm("test", "disk", True))
    result = operator.run("-q", "check_local_alarms")
    assert (result.status, result.errors) == (1, "warren ctl: publishers are blocked: low on disk\n")
    assert operator("alarms") == ["source\tresource", "test\tdisk"]


def test_the_limits_of_memory_and_disk_can_change_at_run_time(operator: Operator) -> None:
    operator("set_vm_memory_high_watermark", "0")
    assert operator("alarms")[1:] == ["memory watch\tmemory"]
    operator("set_vm_memory_high_watermark", "absolute", "1000GB")
    assert operator("alarms") == []
    operator("set_disk_free_limit", "1000000GB")
    assert operator("alarms")[1:] == ["disk watch\tdisk"]
    operator("set_disk_free_limit", "mem_relative", "0.0")
    assert operator("alarms") == []
    for words in (("set_vm_memory_high_watermark", "2"), ("set_vm_memory_high_watermark", "much")):
        result = operator.refused(*words)
        assert result.startswith(
            f"warren ctl: '{words[1]}' is not a limit; write a fraction between 0.0 and 1.0"
        )
    assert "is not a limit; write a size" in operator.refused("set_disk_free_limit", "little")


def test_the_environment_contains_no_secret(operator: Operator) -> None:
    shown = operator("environment")
    assert "heartbeat: 60" in shown
    assert not [line for line in shown if line.startswith("users")]


def test_an_operator_cannot_stop_an_embedded_broker(operator: Operator) -> None:
    assert "stop that" in operator.refused("shutdown")


@pytest.mark.processes
def test_await_startup_and_shutdown(tmp_path: Path) -> None:
    run = warren_ctl(tmp_path / "data")
    result = run("await_startup", "-t", "0.2")
    assert result.status == 74
    broker = BrokerProcess(tmp_path / "data")
    starting = threading.Thread(target=broker.start)
    starting.start()
    assert run("await_startup", "-t", "60").status == 0
    starting.join()
    assert run("-q", "shutdown").lines == ["The broker stops"]
    assert broker.child is not None
    assert broker.child.wait() == 0
    assert run("-q", "ping").status == 74


@pytest.mark.processes
def test_the_log_level_can_change_at_run_time(warren: Operator) -> None:
    warren("set_log_level", "warning")
    warren("set_log_level", "info")
    result = warren.refused("set_log_level", "loud")
    assert (
        result
        == "warren ctl: there is no log level loud; there are: debug, info, warning, error, critical, none\n"
    )
