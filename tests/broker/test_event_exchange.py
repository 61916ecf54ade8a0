"""Event exchange: what happens in the broker, as messages of `amq.rabbitmq.event`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp.commands import Queue

from tests.support.blocking_client import Channel, Closed, Connection, Message
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from warren.broker import BrokerConfig
from warren.wire.properties import decode

EVENTS = "amq.rabbitmq.event"


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    config = BrokerConfig(event_exchange="/", handshake_timeout=PATIENCE, login_failure_delay=0)
    with InProcessBroker(config=config) as running:
        yield running


@pytest.fixture
def channel(broker: InProcessBroker) -> Iterator[Channel]:
    with Connection(broker.url) as connection:
        yield connection.channel()


def listen(channel: Channel, *keys: str) -> None:
    queue = channel.declare(exclusive=True)
    for key in keys:
        channel.bind(queue, EVENTS, key)
    channel.consume(queue, no_ack=True)


def events(channel: Channel, count: int) -> list[tuple[str, Message]]:
    return [(str(each.carrier.routing_key), each) for each in channel.deliveries(count)]


def test_topology_is_reported_with_the_user(broker: InProcessBroker, channel: Channel) -> None:
    listen(channel, "queue.*", "exchange.*", "binding.*")
    events(channel, 1)
    with Connection(broker.url) as other:
        acting = other.channel()
        acting.declare("work", durable=True)
        acting.declare_exchange("topics", "topic")
        acting.bind("work", "topics", "a.#")
        acting.call(Queue.Unbind(queue="work", exchange="topics", routing_key="a.#"), Queue.UnbindOk)
        acting.delete_exchange("topics")
        acting.delete("work")
    found = events(channel, 6)
    assert [key for key, _ in found] == [
        "queue.created",
        "exchange.created",
        "binding.created",
        "binding.deleted",
        "exchange.deleted",
        "queue.deleted",
    ]
    for _, message in found:
        assert message.headers["vhost"] == "/"
        assert message.headers["user_who_performed_action"] == "guest"
        assert message.body == b""
    created = dict(found[0][1].headers)
    assert {created[name] for name in ("name", "type")} == {"work", "rabbit_classic_queue"}
    fields = decode(found[2][1].header).headers
    assert fields["timestamp_in_ms"].kind == "l"
    assert (fields["source_name"].value, fields["destination_kind"].value) == ("topics", "queue")
    assert decode(found[0][1].header)["delivery_mode"] == 2


def test_clients_are_reported_from_login_to_the_end(broker: InProcessBroker, channel: Channel) -> None:
    listen(channel, "user.authentication.*", "connection.*", "channel.*", "consumer.*")
    events(channel, 1)
    with Connection(broker.url) as other:
        acting = other.channel()
        queue = acting.declare(exclusive=True)
        acting.cancel(acting.consume(queue, "c"))
    assert sorted(key for key, _ in events(channel, 7)) == sorted(
        [
            "user.authentication.success",
            "connection.created",
            "channel.created",
            "consumer.created",
            "consumer.deleted",
            "connection.closed",
            "channel.closed",
        ]
    )


def test_a_failed_login_is_reported(broker: InProcessBroker, channel: Channel) -> None:
    listen(channel, "user.authentication.failure")
    with contextlib.suppress(AssertionError, Closed, OSError):
        Connection(broker.url.replace("guest:guest", "guest:wrong"))
    ((_, message),) = events(channel, 1)
    assert "invalid credentials" in str(message.headers["error"])
    assert message.headers["auth_mechanism"] == "PLAIN"


def test_alarms_and_virtual_hosts_are_reported(broker: InProcessBroker, channel: Channel) -> None:
    listen(channel, "alarm.*", "vhost.*")
    assert broker.broker is not None
    running = broker.broker
    broker.call(lambda: running._running.flow.set_alarm("test", "disk", True))
    broker.call(lambda: running._running.flow.set_alarm("test", "disk", False))
    broker.call(lambda: running.virtual_hosts.add("other"))
    broker.call(lambda: running.virtual_hosts.delete("other"))
    found = events(channel, 4)
    assert [key for key, _ in found] == ["alarm.set", "alarm.cleared", "vhost.created", "vhost.deleted"]
    assert found[0][1].headers["source"] == "disk"
    assert found[2][1].headers["name"] == "other"


def test_without_the_setting_there_is_no_such_exchange(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as plain, Connection(plain.url) as connection:
        channel = connection.channel()
        queue = channel.declare(exclusive=True)
        channel.send(Queue.Bind(queue=queue, exchange=EVENTS, routing_key="#"))
        assert channel.closed().code == 404


def test_a_broker_starts_without_the_setting_that_a_binding_needs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    config = BrokerConfig(event_exchange="/", handshake_timeout=PATIENCE)
    with InProcessBroker(data, config=config) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("kept", durable=True)
        channel.bind("kept", EVENTS, "vhost.#")
    with InProcessBroker(data) as broker, Connection(broker.url) as connection:
        assert connection.channel().exists("kept")
