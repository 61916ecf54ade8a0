"""Shovels: messages move between queues and exchanges, of one broker and of two, and none is lost on the way."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocking_client import Channel, Connection
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.proxy import Proxy
from tests.support.shovels import ShovelHost
from warren.broker.model.operator_errors import OperationRefused

MODES = ("on-confirm", "on-publish", "no-ack")
LARGE = bytes(range(256)) * 2000
"""Body that needs several frames."""


@pytest.fixture
def here() -> Iterator[InProcessBroker]:
    """Run the broker that has the shovels."""
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def there() -> Iterator[InProcessBroker]:
    """Run another broker."""
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def shovels(here: InProcessBroker) -> ShovelHost:
    return ShovelHost(here)


@pytest.fixture
def channel(here: InProcessBroker) -> Iterator[Channel]:
    """Return a channel to the broker that has the shovels, with the queues `a` and `b`."""
    with Connection(here.url) as connection:
        channel = connection.channel()
        channel.declare("a", durable=True)
        channel.declare("b", durable=True)
        yield channel


@pytest.fixture
def far(there: InProcessBroker) -> Iterator[Channel]:
    """Return a channel to the other broker."""
    with Connection(there.url) as connection:
        yield connection.channel()


@pytest.fixture
def proxy(there: InProcessBroker) -> Iterator[Proxy]:
    """Return a proxy before the other broker, which runs on that broker's event loop."""

    def run(work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, there._loop).result(PATIENCE)

    proxy = Proxy(there.url)
    run(proxy.__aenter__())
    yield proxy
    run(proxy.__aexit__(None, None, None))


def arrives(channel: Channel, queue: str, count: int) -> None:
    wait_until(lambda: channel.ready(queue) == count, f"{count} messages are ready in {queue}")


def unacknowledged(broker: InProcessBroker, queue: bytes) -> int:
    return broker.call(lambda: len(broker.virtual_host().queues[queue].unacknowledged_messages()))


# -- moving


@pytest.mark.parametrize("mode", MODES)
def test_messages_move_in_their_order_with_their_properties(
    shovels: ShovelHost, channel: Channel, there: InProcessBroker, far: Channel, mode: str
) -> None:
    far.declare("b", durable=True)
    channel.publish("a", "first", message_id="m", headers={"x": 1}, delivery_mode=2)
    channel.publish("a", LARGE)
    channel.publish("a", b"")
    for number in range(300):
        channel.publish("a", str(number))

    shovels.define(src_queue="a", dest_uri=there.url, dest_queue="b", ack_mode=mode)
    arrives(far, "b", 303)

    first = far.get("b", no_ack=True)
    assert first is not None
    assert (first.body, first.properties.message_id, first.headers) == (b"first", "m", {"x": 1})
    assert first.properties.delivery_mode == 2
    assert far.drain("b") == [LARGE, b"", *(str(number).encode() for number in range(300))]
    assert shovels.status()["forwarded"] == 303
    shovels.delete()
    wait_until(lambda: channel.state("a") == (0, 0), "all is acknowledged, and the consumer is gone")


def test_a_source_of_another_broker_is_consumed(
    shovels: ShovelHost, channel: Channel, there: InProcessBroker, far: Channel
) -> None:
    far.declare("a", durable=True)
    far.publish("a", "x")

    shovels.define(src_uri=there.url, src_queue="a", dest_queue="b")

    arrives(channel, "b", 1)


def test_moving_the_messages_of_a_queue_ends_with_the_last_one(shovels: ShovelHost, channel: Channel) -> None:
    """Define the shovel that "move messages" of RabbitMQ's management page defines."""
    for number in range(1500):
        channel.publish("a", str(number))
    assert channel.ready("a") == 1500

    shovels.define(
        "Move from a",
        src_uri="amqp:///%2F",
        src_queue="a",
        src_protocol="amqp091",
        src_prefetch_count=1000,
        src_delete_after="queue-length",
        dest_protocol="amqp091",
        dest_uri="amqp:///%2F",
        dest_queue="moved",
        dest_add_forward_headers=False,
        ack_mode="on-confirm",
        src_consumer_args={},
    )
    shovels.finishes("Move from a")

    assert channel.state("a") == (0, 0)
    assert channel.drain("moved") == [str(number).encode() for number in range(1500)]


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_queue_is_moved_at_once(shovels: ShovelHost, channel: Channel, mode: str) -> None:
    shovels.define(src_queue="a", dest_queue="b", src_delete_after="queue-length", ack_mode=mode)

    shovels.finishes()
    assert channel.state("a") == (0, 0)


def test_messages_that_come_while_a_queue_is_moved_stay_there(shovels: ShovelHost, channel: Channel) -> None:
    for _ in range(5):
        channel.publish("a", "old")
    assert channel.ready("a") == 5

    # The shovel consumes no more than one at a time from a queue that is filled again as fast as it is emptied.
    shovels.define(src_queue="a", dest_queue="a", src_delete_after="queue-length", src_prefetch_count=1)
    shovels.finishes()

    assert channel.state("a") == (5, 0)


@pytest.mark.parametrize("mode", ["on-confirm", "on-publish"])
def test_a_number_of_messages_is_moved(shovels: ShovelHost, channel: Channel, mode: str) -> None:
    for number in range(10):
        channel.publish("a", str(number))

    shovels.define(src_queue="a", dest_queue="b", src_delete_after=3, ack_mode=mode)
    shovels.finishes()

    assert channel.drain("b") == [b"0", b"1", b"2"]
    assert channel.drain("a") == [str(number).encode() for number in range(3, 10)]


def test_a_shovel_without_acknowledgements_moves_no_more_than_the_queue_had(
    shovels: ShovelHost, channel: Channel
) -> None:
    for _ in range(3):
        channel.publish("a", "old")
    assert channel.ready("a") == 3

    shovels.define(
        src_queue="a", dest_exchange="amq.fanout", src_delete_after="queue-length", ack_mode="no-ack"
    )
    shovels.finishes()

    assert channel.state("a") == (0, 0)


def test_a_shovel_ends_after_a_time(here: InProcessBroker, shovels: ShovelHost, channel: Channel) -> None:
    shovels.define(src_queue="a", dest_queue="b", src_delete_after_duration=100)
    shovels.reaches("running")

    here.advance(99)
    assert shovels.is_defined()
    here.advance(1)

    shovels.finishes()


def test_an_exchange_is_the_source(shovels: ShovelHost, channel: Channel) -> None:
    shovels.define(src_exchange="amq.topic", src_exchange_key="a.#", dest_queue="b")
    shovels.reaches("running")

    channel.publish("a.1", "yes", exchange="amq.topic")
    channel.publish("b.1", "no", exchange="amq.topic")

    arrives(channel, "b", 1)
    assert channel.drain("b") == [b"yes"]


def test_messages_keep_exchange_and_routing_key_unless_the_destination_names_them(
    shovels: ShovelHost, channel: Channel
) -> None:
    channel.bind("a", "amq.direct", "k")
    channel.bind("b", "amq.fanout")
    shovels.define(src_queue="a", dest_exchange="amq.fanout", dest_exchange_key="new")
    channel.publish("k", "x", exchange="amq.direct")
    arrives(channel, "b", 1)
    moved = channel.get("b", no_ack=True)
    assert moved is not None
    assert (moved.carrier.exchange, moved.carrier.routing_key) == ("amq.fanout", "new")

    shovels.define(src_queue="a", dest_exchange="amq.fanout")
    shovels.reaches("running")
    channel.publish("k", "y", exchange="amq.direct")
    arrives(channel, "b", 1)
    moved = channel.get("b", no_ack=True)
    assert moved is not None
    assert (moved.carrier.exchange, moved.carrier.routing_key) == ("amq.fanout", "k")


def test_forward_headers_name_each_shovel_and_no_password(
    here: InProcessBroker, shovels: ShovelHost, channel: Channel
) -> None:
    shovels.define(
        "one",
        src_queue="a",
        dest_queue="b",
        dest_uri=here.url,
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
        dest_publish_properties={"type": "t", "delivery_mode": 2, "priority": 7},
    )
    shovels.define("two", src_queue="b", dest_queue="c", dest_add_forward_headers=True)

    channel.publish("a", "x", headers={"own": "kept"}, message_type="other")

    wait_until(lambda: channel.exists("c") and channel.ready("c") == 1, "the message has passed both")
    moved = channel.get("c", no_ack=True)
    assert moved is not None
    second, first = moved.headers["x-shovelled"]
    assert (second["shovel-name"], second["src-queue"], second["dest-queue"]) == ("two", "b", "c")
    assert first == {
        "shovelled-by": "warren@localhost",
        "shovel-type": "dynamic",
        "shovel-name": "one",
        "shovel-vhost": "/",
        "src-uri": "amqp://",
        "dest-uri": f"amqp://127.0.0.1:{here.url.rpartition(':')[2]}",
        "src-queue": "a",
        "dest-queue": "b",
    }
    assert moved.headers["x-shovelled-timestamp"] == 1_000_000_000
    assert moved.headers["own"] == "kept"
    properties = moved.properties
    assert (properties.message_type, properties.delivery_mode, properties.priority) == ("t", 2, 7)


def test_the_protocol_local_moves_messages_without_a_socket(shovels: ShovelHost, channel: Channel) -> None:
    channel.publish("a", "x")

    shovels.define(
        src_protocol="local",
        dest_protocol="local",
        src_queue="a",
        dest_queue="b",
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
    )

    arrives(channel, "b", 1)
    moved = channel.get("b", no_ack=True)
    assert moved is not None
    assert moved.headers == {
        "x-opt-shovelled-by": "warren@localhost",
        "x-opt-shovel-type": "dynamic",
        "x-opt-shovel-name": "s",
        "x-opt-shovelled-timestamp": 1_000_000_000_000,
    }
    status = shovels.status()
    assert (status["src_protocol"], status["src_uri"]) == ("local", "")


# -- topology


def test_missing_queues_are_declared_with_their_arguments(
    here: InProcessBroker, shovels: ShovelHost, channel: Channel
) -> None:
    shovels.define(
        src_queue="new.a",
        src_queue_args={"x-queue-type": "quorum"},
        dest_queue="new.b",
        dest_queue_args={"x-max-length": 5},
        src_consumer_name="mine",
    )
    shovels.reaches("running")

    queues = here.virtual_host().queues
    assert queues[b"new.a"].arguments.quorum
    assert queues[b"new.b"].arguments.max_length == 5
    assert queues[b"new.a"].durable
    assert [consumer.tag for consumer in queues[b"new.a"].consumers] == [b"mine"]


@pytest.mark.parametrize("end", ["src", "dest"])
def test_a_predeclared_queue_must_exist(shovels: ShovelHost, channel: Channel, end: str) -> None:
    names: dict[str, Any] = {"src": "a", "dest": "b", end: "missing"}
    flags: dict[str, Any] = {f"{end}_predeclared": True}
    shovels.define(src_queue=names["src"], dest_queue=names["dest"], **flags, reconnect_delay=0)

    assert shovels.reaches("terminated")["reason"] == '"failed to set up topology"'
    assert not channel.exists("missing")


# -- failures


def test_what_the_destination_has_not_confirmed_is_not_acknowledged(
    here: InProcessBroker,
    shovels: ShovelHost,
    channel: Channel,
    far: Channel,
    proxy: Proxy,
    there: InProcessBroker,
) -> None:
    far.declare("b", durable=True)
    shovels.define(src_queue="a", dest_uri=proxy.url, dest_queue="b")
    shovels.reaches("running")
    there.call(proxy.to_client.hold)
    for number in range(20):
        channel.publish("a", str(number))
    arrives(far, "b", 20)

    assert channel.ready("a") == 0
    assert unacknowledged(here, b"a") == 20

    there.call(proxy.to_client.release)
    wait_until(lambda: unacknowledged(here, b"a") == 0, "the confirms have arrived")
    shovels.delete()
    wait_until(lambda: channel.state("a") == (0, 0), "nothing comes back")


def test_a_lost_destination_gives_the_messages_back_and_gets_them_again(
    here: InProcessBroker,
    shovels: ShovelHost,
    channel: Channel,
    far: Channel,
    proxy: Proxy,
    there: InProcessBroker,
) -> None:
    far.declare("b", durable=True)
    shovels.define(src_queue="a", dest_uri=proxy.url, dest_queue="b", reconnect_delay=7)
    shovels.reaches("running")
    there.call(proxy.to_client.hold)
    channel.publish("a", "x")
    arrives(far, "b", 1)

    there.call(proxy.refuse)
    there.call(proxy.cut)
    shovels.reaches("terminated")
    arrives(channel, "a", 1)
    there.call(proxy.accept)
    there.call(proxy.to_client.release)
    here.advance(6)
    assert shovels.status()["state"] == "terminated"
    here.advance(1)

    shovels.reaches("running")
    arrives(far, "b", 2)
    assert far.drain("b") == [b"x", b"x"]


def test_a_lost_source_is_connected_again(
    here: InProcessBroker,
    shovels: ShovelHost,
    channel: Channel,
    far: Channel,
    proxy: Proxy,
    there: InProcessBroker,
) -> None:
    far.declare("a", durable=True)
    shovels.define(src_uri=proxy.url, src_queue="a", dest_queue="b", reconnect_delay=3)
    shovels.reaches("running")

    there.call(proxy.cut)
    shovels.reaches("terminated")
    far.publish("a", "x")
    here.advance(3)

    shovels.reaches("running")
    arrives(channel, "b", 1)


def test_the_first_uri_that_can_be_connected_is_used(
    shovels: ShovelHost, channel: Channel, there: InProcessBroker, far: Channel
) -> None:
    far.declare("b", durable=True)
    channel.publish("a", "x")

    shovels.define(
        src_queue="a", dest_uri=["amqp://127.0.0.1:1", there.url, "amqp://x:y@127.0.0.1:1"], dest_queue="b"
    )

    arrives(far, "b", 1)


def test_a_wrong_password_is_neither_shown_nor_logged(
    shovels: ShovelHost, channel: Channel, there: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    url = there.url.replace("guest:guest@", "guest:hidden-word@")

    shovels.define(src_queue="a", dest_uri=url, dest_queue="b", reconnect_delay=0)
    status = shovels.reaches("terminated")

    assert status["reason"] == '"failed to connect to destination"'
    assert "ACCESS_REFUSED" in caplog.text
    assert "hidden-word" not in caplog.text + json.dumps(status)


def test_refused_messages_stay_at_the_source_until_the_destination_takes_them(
    here: InProcessBroker, shovels: ShovelHost, channel: Channel
) -> None:
    channel.declare("full", durable=True, x_max_length=2, x_overflow="reject-publish")
    for number in range(5):
        channel.publish("a", str(number))

    shovels.define(src_queue="a", dest_queue="full")
    wait_until(lambda: unacknowledged(here, b"a") == 3, "three messages were refused")
    taken = channel.drain("full")
    here.advance(1)

    arrives(channel, "full", 2)
    assert taken == [b"0", b"1"]
    assert channel.drain("full") == [b"2", b"3"]


def test_a_cancelled_consumer_is_noticed(
    here: InProcessBroker, shovels: ShovelHost, channel: Channel
) -> None:
    shovels.define(src_queue="a", dest_queue="b", reconnect_delay=2)
    shovels.reaches("running")

    channel.delete("a")
    shovels.reaches("terminated")
    here.advance(2)

    shovels.reaches("running")
    assert channel.exists("a")


# -- flow control


def test_a_blocked_destination_pauses_the_shovel_and_loses_nothing(
    shovels: ShovelHost, channel: Channel, there: InProcessBroker, far: Channel
) -> None:
    far.declare("b", durable=True)
    shovels.define(src_queue="a", dest_uri=there.url, dest_queue="b")
    shovels.reaches("running")
    assert there.broker is not None
    node = there.broker._node
    assert node is not None

    there.call(lambda: node.flow.set_alarm("test", "memory", True))
    for number in range(50):
        channel.publish("a", str(number))
    shovels.reaches("blocked")
    there.call(lambda: node.flow.set_alarm("test", "memory", False))

    shovels.reaches("running")
    arrives(far, "b", 50)
    wait_until(lambda: channel.ready("a") == 0, "the source is empty")


def test_deleting_a_shovel_gives_the_unacknowledged_messages_back(
    here: InProcessBroker,
    shovels: ShovelHost,
    channel: Channel,
    far: Channel,
    proxy: Proxy,
    there: InProcessBroker,
) -> None:
    far.declare("b", durable=True)
    shovels.define(src_queue="a", dest_uri=proxy.url, dest_queue="b")
    shovels.reaches("running")
    there.call(proxy.to_server.hold)
    for number in range(10):
        channel.publish("a", str(number))
    wait_until(lambda: unacknowledged(here, b"a") == 10, "the shovel has taken them")

    shovels.delete()

    arrives(channel, "a", 10)
    assert channel.state("a") == (10, 0)


# -- definitions


def test_a_wrong_definition_is_refused_in_one_line(shovels: ShovelHost) -> None:
    with pytest.raises(
        OperationRefused, match=r"^Validation failed: Must specify .*; Unrecognised terms .*$"
    ):
        shovels.define(foo="x" * 100)
    assert not shovels.is_defined()


def test_a_changed_definition_replaces_the_shovel(shovels: ShovelHost, channel: Channel) -> None:
    shovels.define(src_queue="a", dest_queue="b")
    shovels.reaches("running")

    shovels.define(src_queue="a", dest_queue="c")
    wait_until(lambda: shovels.status().get("dest_queue") == "c", "the new definition is used")

    channel.publish("a", "x")
    arrives(channel, "c", 1)
    assert channel.state("a") == (0, 1)


def test_the_same_definition_again_changes_nothing(shovels: ShovelHost, channel: Channel) -> None:
    shovels.define(src_queue="a", dest_queue="b")
    channel.publish("a", "x")
    arrives(channel, "b", 1)

    shovels.define(src_queue="a", dest_queue="b")

    assert shovels.status()["forwarded"] == 1


def test_shovels_run_again_after_a_restart(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "data") as broker:
        shovels = ShovelHost(broker)
        with Connection(broker.url) as connection:
            connection.channel().declare("a", durable=True)
        shovels.define(src_queue="a", dest_queue="b")
        shovels.reaches("running")

        broker.restart()

        shovels.reaches("running")
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.publish("a", "x")
            arrives(channel, "b", 1)


def test_a_stopped_broker_leaves_each_message_at_one_end(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path / "here") as here, InProcessBroker(tmp_path / "there") as there:
        with Connection(here.url) as connection:
            channel = connection.channel()
            channel.declare("a", durable=True)
            channel.confirm()
            for number in range(3000):
                channel.publish("a", str(number), delivery_mode=2)
            channel.settled(3000)
        shovels = ShovelHost(here)
        shovels.define(src_queue="a", dest_uri=there.url, dest_queue="b", src_prefetch_count=50)
        wait_until(lambda: shovels.status().get("forwarded", 0) > 100, "messages are on their way")

        here.restart()
        shovels.reaches("running")

        with Connection(there.url) as connection:
            channel = connection.channel()
            arrives(channel, "b", 3000)
            assert channel.drain("b") == [str(number).encode() for number in range(3000)]


def test_a_deleted_virtual_host_ends_its_shovels(
    here: InProcessBroker, shovels: ShovelHost, channel: Channel
) -> None:
    assert here.broker is not None
    hosts = here.broker.virtual_hosts
    here.call(lambda: hosts.add("v"))
    management = here.broker._management
    assert management is not None
    value: dict[str, Any] = {
        "src-uri": "amqp:///v",
        "dest-uri": "amqp://",
        "src-queue": "a",
        "dest-queue": "b",
    }
    here.call(lambda: management.parameters.set(b"v", "shovel", "s", value))
    registry = management.shovels
    wait_until(lambda: registry.all()[0].state.value == "running", "the shovel runs")

    here.call(lambda: hosts.delete("v"))

    wait_until(lambda: not registry.all(), "the shovel is gone")


@pytest.mark.processes
def test_nothing_of_shovels_is_imported_while_none_is_defined() -> None:
    program = (
        "import asyncio, sys\n"
        "from warren.broker import Broker, BrokerConfig\n"
        "async def run():\n"
        "    async with Broker(BrokerConfig(port=0)):\n"
        "        return [name for name in sys.modules if name.startswith('warren.broker.shovel')]\n"
        "print(asyncio.run(run()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout.strip() == "[]"
