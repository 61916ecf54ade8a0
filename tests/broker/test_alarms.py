"""Memory and disk alarms: publishers, and nobody else, are blocked and notified; the same on RabbitMQ.

https://www.rabbitmq.com/docs/alarms, .../docs/connection-blocked
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from pamqp import commands
from pamqp.commands import Connection
from pamqp.heartbeat import Heartbeat

from tests.broker.conftest import pass_time
from tests.support.in_process_broker import InProcessBroker
from tests.support.polling import wait_until
from tests.support.rabbitmq import RabbitMQ, installed, rabbitmq_server
from tests.support.raw_client import RawClient, content, encoded, made
from warren.broker import BrokerConfig
from warren.broker.configuration.sizes import parse_size
from warren.broker.connection.heartbeats import HEARTBEAT_FRAME
from warren.broker.process_memory import MIN_MEMORY_LIMIT, available_memory
from warren.core.operating_system.memory import release_memory, resident_memory


class Switches(Protocol):
    """Switches that raise and clear the alarms of a broker."""

    url: str

    def memory(self, raised: bool) -> None: ...
    def disk(self, raised: bool) -> None: ...


class OnWarren:
    def __init__(self, broker: InProcessBroker) -> None:
        self.broker = broker
        self.url = broker.url

    def memory(self, raised: bool) -> None:
        assert self.broker.broker is not None
        resources = self.broker.broker.resources
        self.broker.call(lambda: setattr(resources, "memory_limit", MIN_MEMORY_LIMIT if raised else 2**62))

    def disk(self, raised: bool) -> None:
        assert self.broker.broker is not None
        resources = self.broker.broker.resources
        self.broker.call(lambda: setattr(resources, "disk_free_limit", 2**62 if raised else 0))


class OnRabbitMQ:
    def __init__(self, server: RabbitMQ) -> None:
        self.server = server
        self.url = server.url

    def memory(self, raised: bool) -> None:
        share = "0.00000001" if raised else "0.9"
        self._change(f"vm_memory_monitor:set_vm_memory_high_watermark({share})", "memory", raised)

    def disk(self, raised: bool) -> None:
        limit = 2**60 if raised else 1
        self._change(f"rabbit_disk_monitor:set_disk_free_limit({limit})", "disk", raised)

    def _change(self, change: str, resource: str, raised: bool) -> None:
        active = self.server.ctl("eval", f"{change}, rabbit_alarm:get_alarms().")
        if (resource in active) != raised:
            wait_until(
                lambda: (resource in self.server.ctl("eval", "rabbit_alarm:get_alarms().")) == raised,
                f"the {resource} alarm is {raised}",
                30,
            )


@pytest.fixture(scope="module", params=["warren", "rabbitmq"])
def alarms(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switches]:
    if request.param == "rabbitmq":
        if not installed():
            pytest.skip("rabbitmq-server is not installed")
        with rabbitmq_server() as server:
            yield OnRabbitMQ(server)
        return
    config = BrokerConfig(memory_alarm=True, memory_limit=2**62)
    with InProcessBroker(tmp_path_factory.mktemp("data"), config=config) as broker:
        yield OnWarren(broker)


@contextmanager
def raised(switch: Callable[[bool], None]) -> Iterator[None]:
    switch(True)
    try:
        yield
    finally:
        switch(False)


def silent(peer: RawClient) -> bool:
    """Return whether the broker leaves a request unanswered."""
    peer._socket.settimeout(0.3)
    try:
        peer.read_bytes(1)
    except (TimeoutError, socket.timeout):  # noqa: UP041 - an alias, and what the library raises
        return True
    finally:
        peer._socket.settimeout(60)
    return False


def ask_behind_a_publish(peer: RawClient) -> None:
    publish = made(commands.Basic.Publish, exchange="amq.fanout", routing_key="")
    peer.send_bytes(encoded(publish) + content(b"x") + encoded(commands.Basic.Qos(prefetch_count=0)))


def ask(peer: RawClient) -> None:
    peer.send(commands.Basic.Qos(prefetch_count=0))


def test_a_publisher_is_blocked_and_notified_during_an_alarm(alarms: Switches) -> None:
    with RawClient(alarms.url) as before, ExitStack() as connected:
        before.connect().open()
        queue = before.declare(exclusive=True)
        before.publish("", queue)
        before.sync()
        with raised(alarms.memory):
            # Whoever published before, and does not now, goes on.
            before.sync()
            assert before.purge(queue) == 1
            # Connected when they speak: to raise an alarm may take longer than a broker waits for a handshake.
            publisher = connected.enter_context(RawClient(alarms.url))
            publisher.connect().open()
            publisher.sync()
            # What stands behind the publish in the same packet waits as well.
            ask_behind_a_publish(publisher)
            assert publisher.expect(Connection.Blocked).reason == "low on memory"
            assert silent(publisher)
            # A client without the capability connection.blocked gets no such method.
            deaf = connected.enter_context(RawClient(alarms.url))
            deaf.greet()
            deaf.send(deaf.start_ok(properties={}), 0)
            deaf.expect(Connection.Tune)
            deaf.tune()
            deaf.call(Connection.Open("/"), 0, Connection.OpenOk)
            deaf.open()
            ask_behind_a_publish(deaf)
            assert silent(deaf)
        publisher.expect(Connection.Unblocked)
        publisher.expect(commands.Basic.QosOk)
        deaf.expect(commands.Basic.QosOk)
        # Unblocked once: no further method arrives.
        publisher.sync()
        before.sync()


def test_nothing_is_published_during_an_alarm(alarms: Switches) -> None:
    """Neither by a connection that published before, nor by a new one: a program may connect for each publish."""
    with RawClient(alarms.url) as before, RawClient(alarms.url) as reader, ExitStack() as connected:
        queue = reader.connect().open().declare()
        before.connect().open().publish("", queue, b"first")
        before.sync()
        with raised(alarms.memory):
            before.publish("", queue, b"second")
            before.expect(Connection.Blocked)
            for body in (b"third", b"fourth"):
                publisher = connected.enter_context(RawClient(alarms.url))
                publisher.connect().open().publish("", queue, body)
                publisher.expect(Connection.Blocked)
            assert (
                reader.call(made(commands.Queue.Purge, queue=queue), 1, commands.Queue.PurgeOk).message_count
                == 1
            )
        before.expect(Connection.Unblocked)
        before.sync()
        wait_until(lambda: counted(reader, queue) == 3, "the messages arrive after the alarm")
        reader.call(made(commands.Queue.Delete, queue=queue), 1, commands.Queue.DeleteOk)


def counted(peer: RawClient, queue: str) -> int | None:
    declare = made(commands.Queue.Declare, queue=queue, passive=True)
    return peer.call(declare, 1, commands.Queue.DeclareOk).message_count


def test_memory_and_disk_alarms_at_once(alarms: Switches) -> None:
    with RawClient(alarms.url) as first, RawClient(alarms.url) as second:
        first.connect().open()
        second.connect().open()
        with raised(alarms.disk):
            first.publish("amq.fanout", "")
            assert first.expect(Connection.Blocked).reason == "low on disk"
            with raised(alarms.memory):
                second.publish("amq.fanout", "")
                assert second.expect(Connection.Blocked).reason == "low on disk & memory"
            # One alarm is still raised: no client is unblocked.
            ask(first)
            assert silent(first)
        for peer in (first, second):
            peer.expect(Connection.Unblocked)
        first.expect(commands.Basic.QosOk)


def test_a_consumer_continues_during_an_alarm(alarms: Switches) -> None:
    with RawClient(alarms.url) as peer:
        peer.connect().open()
        queue = peer.declare(exclusive=True)
        for _ in range(3):
            peer.publish("", queue, b"kept")
        peer.sync()
        with raised(alarms.memory):
            peer.call(made(commands.Basic.Consume, queue=queue), 1, commands.Basic.ConsumeOk)
            for _ in range(3):
                assert peer.receive_message(commands.Basic.Deliver).body == b"kept"
            peer.send(commands.Basic.Ack(3, True))
            peer.sync()


def test_a_closing_connection_is_not_blocked(alarms: Switches) -> None:
    """Frames behind connection.close are discarded, but for close-ok (AMQP 0-9-1 section 4.2.2)."""
    with RawClient(alarms.url) as peer:
        peer.connect().open()
        peer.publish("amq.fanout", "")
        peer.sync()
        peer.send(commands.Basic.Qos(prefetch_size=1))
        peer.expect(Connection.Close)
        with raised(alarms.memory):
            peer.publish("amq.fanout", "")
            peer.send(Connection.CloseOk(), 0)
            assert peer.at_end()


def test_a_blocked_connection_that_sends_heartbeats_is_kept() -> None:
    """Warren only: a heartbeat is missed after two timeouts."""
    config = BrokerConfig(memory_alarm=True, memory_limit=MIN_MEMORY_LIMIT)
    with InProcessBroker(config=config) as broker, RawClient(broker.url) as peer:
        peer.connect(heartbeat=1000).open()
        peer.publish("amq.fanout", "")
        peer.expect(Connection.Blocked)
        # In the first interval the frames of the broker count as its heartbeat. Then it sends four.
        pass_time(broker, 1000)
        for _ in range(4):
            # The broker does not read it: it goes by what has arrived.
            peer.send_bytes(HEARTBEAT_FRAME)
            pass_time(broker, 1000)
            assert isinstance(peer.read()[1], Heartbeat)
        OnWarren(broker).memory(False)
        peer.expect(Connection.Unblocked)
        peer.sync()


def test_memory_of_this_process() -> None:
    release_memory()
    used = resident_memory()
    assert MIN_MEMORY_LIMIT < used < available_memory()
    assert used > 1000 * os.sysconf("SC_PAGE_SIZE")


# -- how much there is


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1048576),
        ("400MB", 400_000_000),
        ("400 MiB", 400 * 1024**2),
        ("2G", 2 * 1024**3),
        ("2gb", 2 * 10**9),
        ("64k", 65536),
        ("64kB", 64000),
        ("1TiB", 1024**4),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "4.5MB", "-1", "1 XB", "1MBps"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def groups(folder: Path, lines: list[str], limits: dict[str, str]) -> int:
    membership = folder / "cgroup"
    membership.write_text("\n".join(lines) + "\n")
    for path, text in limits.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text + "\n")
    return available_memory(folder, membership)


def test_the_smallest_limit_of_the_control_groups_applies(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert groups(tmp_path / "", ["0::/"], {}) == total
    v2 = tmp_path / "v2"
    v2.mkdir()
    assert groups(v2, ["0::/a/b"], {"a/b/memory.max": "max", "a/memory.max": "67108864"}) == 67108864
    v1 = tmp_path / "v1"
    v1.mkdir()
    unlimited = {"memory/d/memory.limit_in_bytes": "9223372036854771712"}
    assert groups(v1, ["5:cpu:/d", "4:memory:/d"], unlimited) == total
    assert groups(v1, ["4:memory:/d"], {"memory/memory.limit_in_bytes": "33554432"}) == 33554432
    assert available_memory(tmp_path / "none", tmp_path / "none") == total


@pytest.mark.parametrize(
    ("limit", "size"),
    [
        (MIN_MEMORY_LIMIT, MIN_MEMORY_LIMIT),
        ("20MB", 20_000_000),
        (0.5, available_memory() // 2),
        ("0.25", available_memory() // 4),
    ],
)
def test_a_memory_limit(limit: int | float | str, size: int) -> None:
    assert BrokerConfig(memory_limit=limit).memory_bytes == size


@pytest.mark.parametrize("limit", [0, 1.5, 0.0, "1.5", "lots", "", -1, "1kB"])
def test_an_invalid_memory_limit_is_refused(limit: int | float | str) -> None:
    with pytest.raises(ValueError, match="memory_limit is"):
        BrokerConfig(memory_limit=limit)


def test_an_invalid_disk_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="disk_free_limit"):
        BrokerConfig(disk_free_limit="lots")
