"""Clients that end, or fall silent, while a resource alarm keeps the broker from reading them; Warren only.

RabbitMQ notices their end by the heartbeats that it sends; without heartbeats, only when the alarm is over
(https://github.com/rabbitmq/rabbitmq-server/issues/384).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pamqp import commands
from pamqp.commands import Connection as ConnectionClass
from pamqp.heartbeat import Heartbeat

from tests.broker.conftest import pass_time, stop_time
from tests.broker.test_disk_faults import Disk
from tests.support.blocking_client import Connection
from tests.support.certificates import Authority
from tests.support.frames import publish_frames
from tests.support.in_process_broker import PATIENCE, InProcessBroker
from tests.support.polling import wait_until
from tests.support.processes import Child
from tests.support.raw_client import RawClient
from warren.broker import BrokerConfig
from warren.broker.connection.hangup_watch import PROBE_SECONDS
from warren.broker.connection.tcp_statistics import KEEPALIVE_INTERVAL, KEEPALIVE_PROBES
from warren.broker.connection.tls import TlsConfig
from warren.broker.resource_alarms import BLOCKED_INPUT_SECONDS

CLIENT = """
import ssl, sys, time
from pamqp import commands
from tests.support.raw_client import RawClient
url, authority, floods = sys.argv[1:]
tls = ssl.create_default_context(cafile=authority) if authority else None
peer = RawClient(url, tls=tls).connect().open()
peer.declare("exclusive", exclusive=True)
peer.send(commands.Basic.Consume(queue="shared"))
peer.expect(commands.Basic.ConsumeOk)
peer.receive_message(commands.Basic.Deliver)
peer.send(commands.Basic.Consume(queue="exclusive"))
peer.expect(commands.Basic.ConsumeOk)
print("consuming", flush=True)
while not peer.has_input(0.05):
    peer.publish("amq.fanout", "")
peer.expect(commands.Connection.Blocked)
print("blocked", flush=True)
if floods:
    # More than the sockets hold: the end of this client waits behind it.
    peer._socket.settimeout(0.5)
    try:
        while True:
            peer.send_bytes(bytes(100_000))
    except TimeoutError:
        pass
    print("full", flush=True)
time.sleep(600)
"""


def set_alarm(broker: InProcessBroker, raised: bool) -> None:
    assert broker.broker is not None
    flow = broker.broker._running.flow
    broker.call(lambda: flow.set_alarm("test", "memory", raised))


def open_connections(broker: InProcessBroker) -> int:
    assert broker.broker is not None
    return len(broker.broker._running.connections)


@contextmanager
def tls_broker(folder: Path) -> Iterator[tuple[InProcessBroker, str]]:
    authority = Authority(folder)
    certificate, key = authority.issue("server", "/CN=localhost")
    tls = TlsConfig(listeners=("127.0.0.1:0",), certificate=certificate, key=key)
    config = BrokerConfig(handshake_timeout=PATIENCE, tls=tls)
    with InProcessBroker(config=config) as broker:
        yield broker, str(authority.certificate)


@pytest.mark.processes
@pytest.mark.parametrize("floods", ["", "floods"], ids=["idle", "flooding"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_a_blocked_client_that_is_killed_releases_what_it_holds(
    tmp_path: Path, encrypted: bool, floods: str
) -> None:
    with ExitStack() as started:
        broker, authority = started.enter_context(tls_broker(tmp_path))
        assert broker.broker is not None
        url = broker.url
        if encrypted:
            url = url.replace("amqp:", "amqps:").replace(
                f":{broker.broker.port}", f":{broker.broker.bound_addresses[1].address.port}"
            )
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.declare("shared")
            channel.publish("shared", b"back")
            words = [sys.executable, "-c", CLIENT, url, authority if encrypted else "", floods]
            child = started.enter_context(Child(words))
            child.wait_for_line("consuming")
            stop_time(broker)
            set_alarm(broker, True)
            child.wait_for_line("full" if floods else "blocked")
            assert channel.ready("shared") == 0
            child.kill()
            if floods:
                pass_time(broker, PROBE_SECONDS)
            wait_until(lambda: channel.ready("shared") == 1, "the message was not given back")
            wait_until(lambda: open_connections(broker) == 1, "the connection stays")
            # It was exclusive to the connection that is gone.
            assert channel.declare("exclusive", exclusive=True) == "exclusive"
            set_alarm(broker, False)


@pytest.mark.parametrize("alarm_first", [True, False], ids=["alarm-first", "request-first"])
def test_a_client_that_waits_for_a_full_disk_and_ends_is_released(tmp_path: Path, alarm_first: bool) -> None:
    disk = Disk()
    with InProcessBroker(tmp_path / "data", files=disk) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        channel.publish("q", b"taken", delivery_mode=2)
        assert channel.settled(1) == [True]
        peer = RawClient(broker.url)
        peer.connect(heartbeat=0).open()
        peer.call(commands.Tx.Select(), 1, commands.Tx.SelectOk)
        peer.send(commands.Basic.Get(queue="q"))
        assert peer.receive_message(commands.Basic.GetOk).body == b"taken"
        assert broker.broker is not None
        connections = broker.broker._running.connections
        disk.full = True
        if alarm_first:
            channel.publish("q", b"waits", delivery_mode=2)
            wait_until(lambda: broker.alarm == b"low on disk", "the alarm is set")
        peer.send(commands.Basic.Ack(1))
        peer.send(commands.Tx.Commit())
        wait_until(lambda: broker.alarm == b"low on disk", "the alarm is set")
        wait_until(lambda: broker.connections()[-1].reads_paused != 0, "the commit waits for the disk")
        peer.abort()
        wait_until(lambda: len(connections) == 1, "the connection stays")
        disk.full = False
        wait_until(lambda: not broker.alarm, "the alarm is over")


def test_a_blocked_client_without_heartbeats_is_probed_with_them() -> None:
    with InProcessBroker() as broker, RawClient(broker.url) as peer:
        peer.connect(heartbeat=0).open()
        stop_time(broker)
        set_alarm(broker, True)
        peer.publish("amq.fanout", "")
        peer.expect(ConnectionClass.Blocked)
        for _ in range(2):
            pass_time(broker, PROBE_SECONDS)
            assert isinstance(peer.read()[1], Heartbeat)
        set_alarm(broker, False)
        peer.expect(ConnectionClass.Unblocked)
        peer.sync()


def test_a_blocked_client_that_falls_silent_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with InProcessBroker() as broker, RawClient(broker.url) as peer:
        peer.connect(heartbeat=1000).open()
        stop_time(broker)
        set_alarm(broker, True)
        peer.publish("amq.fanout", "")
        peer.expect(ConnectionClass.Blocked)
        # The publish counts for the first timeout.
        for _ in range(3):
            assert open_connections(broker) == 1
            pass_time(broker, 1000)
            broker.call(lambda: None)
        wait_until(lambda: open_connections(broker) == 0, "the connection stays")
    assert "event=connection.heartbeat_missed" in caplog.text


def test_the_input_of_blocked_connections_does_not_keep_up_an_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = 1_000_000_000
    monkeypatch.setattr("warren.broker.resource_alarms.resident_memory", lambda: used)
    config = BrokerConfig(memory_alarm=True, memory_limit=used - 20_000, handshake_timeout=PATIENCE)
    with InProcessBroker(config=config) as broker, RawClient(broker.url) as peer:
        peer.connect().open()
        queue = peer.declare(exclusive=True)
        assert broker.alarm
        stop_time(broker)
        # Both are held in memory, and stand for all that exceeds the limit.
        peer.send_bytes(publish_frames(1, "", queue, b"") + publish_frames(1, "", queue, bytes(20_000)))
        assert peer.expect(ConnectionClass.Blocked).reason == "low on memory"
        assert broker.broker is not None
        flow = broker.broker._running.flow
        wait_until(lambda: flow.blocked_input_bytes() > 20_000, "the publishes are held")
        assert not peer.has_input(0.1)
        pass_time(broker, BLOCKED_INPUT_SECONDS + 1)
        peer.expect(ConnectionClass.Unblocked)
        used -= 100_000
        wait_until(lambda: not broker.alarm, "the alarm is over")


@pytest.mark.parametrize("seconds", [60, 0])
def test_accepted_sockets_have_a_keepalive(seconds: int) -> None:
    with InProcessBroker(config=BrokerConfig(tcp_keepalive=seconds)) as broker, RawClient(broker.url) as peer:
        peer.connect()
        assert broker.broker is not None
        (connection,) = broker.broker._running.connections
        sock = connection.transport.get_extra_info("socket")

        def option(level: int, name: int) -> Callable[[], int]:
            return lambda: sock.getsockopt(level, name)

        assert broker.call(option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) == bool(seconds)
        if seconds:
            assert broker.call(option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)) == seconds
            assert broker.call(option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)) == KEEPALIVE_INTERVAL
            assert broker.call(option(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)) == KEEPALIVE_PROBES
