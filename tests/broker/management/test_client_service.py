"""Verbs that end and resume the service of AMQP clients while the broker runs: stop_app, start_app, suspend_listeners."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.blocking_client import Closed, Connection
from tests.support.http_client import HttpApi
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.operator_cli import Operator, warren_ctl
from warren.broker import BrokerConfig


@pytest.fixture
def operator(timed: InProcessBroker) -> Operator:
    assert timed.data_dir is not None
    return Operator(warren_ctl(timed.data_dir), timed.url, is_warren=True)


def port_of(operator: Operator) -> int:
    return int(operator.url.rstrip("/").rpartition(":")[2])


def refuses_connections(operator: Operator) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port_of(operator)), PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_stopped_broker_ends_its_connections_and_keeps_queues_and_messages(operator: Operator) -> None:
    connection = Connection(operator.url)
    channel = connection.channel()
    channel.declare("kept", durable=True)
    channel.declare("transient", durable=False)
    channel.declare("exclusive", exclusive=True)
    channel.confirm()
    for queue in ("kept", "transient"):
        channel.publish(queue, b"m")
    assert channel.settled(2) == [True, True]

    operator("stop_app")
    with pytest.raises(Closed) as closed:
        channel.next()
    assert (closed.value.code, "shutdown" in closed.value.text) == (320, True)
    connection.abort()
    assert refuses_connections(operator)
    assert operator.table("list_connections") == []

    operator("start_app")
    with Connection(operator.url) as again:
        channel = again.channel()
        assert channel.state("kept") == channel.state("transient") == (1, 0)
        assert not channel.exists("exclusive")


def test_a_stopped_broker_says_so(operator: Operator) -> None:
    operator("stop_app")
    operator("stop_app")
    for verb in ("check_running", "is_running", "resume_listeners"):
        result = operator.run("-q", verb)
        assert (result.status, "is stopped" in result.errors, "start_app" in result.errors) == (1, True, True)
    for verb in ("await_startup", "wait"):
        assert "is stopped" in operator.refused(verb, "-t", "0.2")
    assert refuses_connections(operator)

    operator("start_app")
    operator("start_app")
    assert operator("check_running") == ["warren@localhost is up and running"]
    assert operator("await_startup") == []
    assert operator("wait", "some.pid") == operator("wait", "--pid", "1") == []
    with Connection(operator.url) as connection:
        connection.channel()


def test_confirms_are_sent_before_the_service_stops(operator: Operator) -> None:
    connection = Connection(operator.url)
    channel = connection.channel()
    channel.declare("kept", durable=True)
    channel.confirm()
    for _ in range(100):
        channel.publish("kept", b"m")
    assert channel.state("kept") == (100, 0)
    operator("stop_app")
    assert channel.settled(100) == [True] * 100
    connection.abort()
    operator("start_app")
    with Connection(operator.url) as again:
        assert again.channel().state("kept") == (100, 0)


def test_suspended_listeners_accept_nobody_and_keep_connections(operator: Operator) -> None:
    with Connection(operator.url) as connection:
        channel = connection.channel()
        operator("suspend_listeners")
        operator("suspend_listeners")
        assert refuses_connections(operator)
        channel.declare("q")
        assert f"127.0.0.1:{port_of(operator)}" in operator("listeners")[1]
        assert operator.run("check_port_connectivity").status == 1

        operator("resume_listeners")
        operator("resume_listeners")
        assert operator("check_port_connectivity")
        with Connection(operator.url) as other:
            assert other.channel().exists("q")


@pytest.mark.parametrize(
    ("stop", "start"), [("stop_app", "start_app"), ("suspend_listeners", "resume_listeners")]
)
def test_a_port_that_another_program_has_taken_is_named(operator: Operator, stop: str, start: str) -> None:
    operator(stop)
    with socket.create_server(("127.0.0.1", port_of(operator))):
        assert f"port {port_of(operator)} at 127.0.0.1 is in use" in operator.refused(start)
    operator(start)
    with Connection(operator.url) as connection:
        connection.channel()


@pytest.fixture
def served() -> Iterator[InProcessBroker]:
    config = BrokerConfig(management_port=0, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker:
        yield broker


def test_a_broker_that_accepts_nobody_is_not_in_service(served: InProcessBroker) -> None:
    assert served.broker is not None
    broker = served.broker
    api = HttpApi(f"http://{broker.management_addresses[0]}")
    management = broker._management
    assert management is not None
    for check in ("is-in-service", "ready-to-serve-clients"):
        assert api.ask("GET", f"health/checks/{check}").status == 200
    served._run(management.listener.suspend())
    for check in ("is-in-service", "ready-to-serve-clients"):
        found = api.ask("GET", f"health/checks/{check}")
        assert (found.status, "suspended" in found.body["reason"]) == (503, True)
    served._run(management.listener.resume())
    assert api.ask("GET", "health/checks/is-in-service").status == 200


def test_verbs_that_have_nothing_to_do_answer_as_rabbitmqctl(operator: Operator) -> None:
    assert operator("restart_vhost") == ["Vhost '/' is already running on node 'warren@localhost'"]
    assert "nosuch" in operator.refused("restart_vhost", "-p", "nosuch")
    assert "does not rotate logs anymore" in operator.refused("rotate_logs")
